/* The page on one's own prompt: the model runs here, and what it gives is shown as the explorer shows it.

   `render({model, el})` has anywidget's shape: `model` holds the view (prompt, step, token, l, m), `config` and `settings`,
   and `load`, which gives the weights of a step; all that is shown lies in `el`. start.js gives it a model whose state
   is the page's address. */
(() => {
  "use strict";
  const cx = window.couplingExplorer, {make, mean} = cx;
  const {tokenizer, makeModel, topTriplets, coupled, gallery, follow} = window.ownPrompt;

  const READING = "paper", CALM = 500, SLICE = 40, LIKELY = 4;
  const visible = text => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "�";
  const offDiagonal = (values, n) => values.filter((_, pair) => pair % (n + 1));

  class Refused extends Error {}

  // Gives the page a turn whenever a slice of time has passed.
  function breather() {
    let last = performance.now();
    return async () => {
      if (performance.now() - last < SLICE) return;
      await new Promise(done => setTimeout(done));
      last = performance.now();
    };
  }

  // The tokens of a prompt, or one line that says what is wrong with it.
  function read(text, tokens, config) {
    if (!text.trim()) throw new Refused("The prompt is empty. Type a word or more.");
    if (/\p{Surrogate}/u.test(text)) throw new Refused("The prompt holds half a character (a lone surrogate). Delete it.");
    const ids = tokens.encode(text);
    if (ids.length > config.longest)
      throw new Refused(`The prompt has ${ids.length} tokens, and ${config.label} reads at most ${config.longest}. `
        + "Shorten it.");
    return ids;
  }

  function position(token, n) {
    if (token === "") return n - 1;
    if (!/^\d+$/.test(token) || +token >= n)
      throw new Refused(`There is no token ${token} in this prompt. Choose one from 0 to ${n - 1}.`);
    return +token;
  }

  // The states of all blocks; `current` says whether they are still wanted.
  async function passed(network, ids, blocks, current, breathe) {
    const calls = [];
    for (let l = 0, X = network.embedded(ids); l < blocks && current(); l++) {
      calls.push(network.run(l, X, ids.length));
      X = calls[l].out;
      await breathe();
    }
    return calls;
  }

  // All that is shown of one token, in the form in which the explorer's map and pair ask for it.
  async function measured(network, calls, t, config, frames, current, breathe) {
    const {blocks, width, k} = config, jacobians = [], triplets = [], pairs = [];
    for (let l = 0; l < blocks && current(); l++) {
      jacobians.push(network.jacobian(l, calls[l], t));
      triplets.push(topTriplets(jacobians[l], width, k));
      await breathe();
    }
    for (let l = 0; l < blocks && current(); l++) {
      pairs.push(coupled(jacobians[l], triplets, width, k));
      await breathe();
    }
    if (!current()) return null;
    const values = pairs.flatMap(row => row.values), chance = new Array(blocks).fill(config.chance);
    if (!values.every(Number.isFinite)) throw new Error("a coupling is not a number");
    const random = ({spectrum}) => Float64Array.from({length: k * k}, (_, at) => {
      let sum = 0;
      const left = Math.floor(at / k), right = width * k + (at % k);
      for (let r = 0; r < width; r++) sum += spectrum[r] * frames[r * k + left] * frames[r * k + right];
      return sum;
    });
    const absolute = matrix => Array.from(matrix, Math.abs);
    return {
      blocks, k,
      readings: {[READING]: {label: "Coupling"}},
      prompts: [{text: ""}],
      coupling: mean(offDiagonal(values, blocks)),
      map: () => Float64Array.from(values),
      chance: () => chance,
      hasMatrices: () => true,
      matrix: (_, l, m) => absolute(pairs[l].matrices[m]),
      nothing: (_, l) => absolute(random(triplets[l])),
      singular: (_, l) => Array.from(triplets[l].S),
    };
  }

  function render({model, el}) {
    const config = model.get("config"), settings = model.get("settings"), tokens = tokenizer(config.tokenizer);
    const networks = new Map(), unpackedFrames = cx.bytes(config.frames).then(found => new Float32Array(found));
    const passes = {}, kept = {l: "", m: ""};
    let asked = 0, data = null, shown = "", count = 1, found = {of: "", steps: {}}, waiting = 0, announcedPair = "";

    // What has been typed and waits goes along.
    const change = part => {
      const typed = waiting ? {prompt: field.value, token: ""} : {};
      clearTimeout(waiting);
      waiting = 0;
      for (const [key, value] of Object.entries({...typed, ...part})) model.set(key, value);
      model.save_changes();
    };

    const field = make("textarea", {id: "own-prompt-text", rows: 2, spellcheck: false, autocomplete: "off",
      oninput() {
        clearTimeout(waiting);
        waiting = setTimeout(() => change({}), CALM);
      }});
    const button = (text, part) => make("button", {type: "button", onclick: () => change(part)}, text);
    // The small maps are those of the last step.
    const offered = gallery(config, text => change({prompt: text, token: "", step: config.steps.at(-1).name}));
    const steps = config.steps.map(({name, label}) => button(label, {step: name}));
    const training = make("div.field", {role: "group", "aria-label": "Training"},
      make("span.label", {}, "Training"), make("div.toggle", {}, ...steps));
    // No number stands for the last token, so that it stays the last when the prompt changes.
    const choose = at => change({token: at === count - 1 ? "" : String(at)});
    const slider = cx.slider("Token", choose);
    const quoted = make("div.tokens", {tabIndex: 0, role: "region", "aria-label": "The prompt in tokens"});
    const likely = make("p.note");
    const notice = make("p.notice", {role: "status"}), status = make("p.status", {role: "status"}), took = make("p.note");
    const bars = make("div.bars");
    const map = cx.map((l, m) => change({l: l + 1, m: m + 1})), pair = cx.pair(change);
    const numbers = cx.folded("The numbers of this map as a table", "Numbers of the map", () => data
      ? cx.table(data.map(), data.blocks, `Coupling of ${config.label}${cx.byChance({}, data)}. `
        + "Rows: block l, whose Jacobian. Columns: block l′, whose vectors.")
      : []);
    const result = make("div.result", {hidden: true}, bars,
      make("div.columns", {}, map.box, pair.box, pair.plot), numbers.box, took);
    el.classList.add("cx", "cx-own");
    el.setAttribute("role", "region");
    el.setAttribute("aria-label", "Your prompt");
    el.replaceChildren(
      make("div.field", {}, make("label", {htmlFor: field.id}, "Prompt"), field,
        make("details.more", {}, make("summary", {}, "Prompts whose maps differ the most"), offered.box)),
      make("div.controls", {}, training, slider.box), notice, quoted, status, likely, result);

    cx.skip("Skip to the prompt", el, field);
    cx.skip("Skip to the map", el, map);

    const network = async name => {
      if (!networks.has(name)) networks.set(name, await makeModel(config, await model.get("load")(name)));
      return networks.get(name);
    };

    // What the address asks for and the model has not is replaced, and named in a notice.
    function settled() {
      const lacks = [], {blocks, label, steps} = config, step = model.get("step");
      if (!steps.some(s => s.name === step)) {
        lacks.push(`no “${step}”`);
        model.set("step", config.opens);
      }
      const pair = ["l", "m"].map(key => String(model.get(key)));
      const bad = pair.filter(x => x !== "" && !(/^\d+$/.test(x) && +x >= 1 && +x <= blocks));
      if (bad.length) lacks.push(`no block ${[...new Set(bad)].join(" or ")} (it has ${blocks})`);
      else Object.assign(kept, pair.every(Boolean) ? {l: pair[0], m: pair[1]} : {l: "", m: ""});
      for (const key of ["l", "m"]) model.set(key, kept[key]);
      if (lacks.length) model.write();
      const shown = kept.l ? `blocks ${kept.l} and ${kept.m}` : "the strongest pair";
      notice.textContent = lacks.length ? `${label} has ${lacks.join(", ")}. Shown instead: ${chosenStep().label}, ${shown}.` : "";
    }

    const chosenStep = () => config.steps.find(s => s.name === model.get("step"));

    // What one step gives at a token. The pass through all blocks is kept for other tokens of the prompt.
    async function resultAt({name}, ids, t, current, breathe) {
      const running = await network(name), began = performance.now(), of = ids.join();
      if (passes[name]?.of !== of) passes[name] = {of, calls: await passed(running, ids, config.blocks, current, breathe)};
      const {calls} = passes[name];
      if (calls.length < config.blocks) delete passes[name];
      const now = current() && await measured(running, calls, t, config, await unpackedFrames, current, breathe);
      if (!now) return null;
      const {shares} = running.next(calls.at(-1).out.subarray(t * config.width, (t + 1) * config.width));
      return {...now, shares, seconds: (performance.now() - began) / 1000};
    }

    async function update() {
      settled();
      const ask = ++asked, current = () => ask === asked, text = model.get("prompt"), chosen = chosenStep();
      if (field.value !== text && document.activeElement !== field) field.value = text;
      steps.forEach((b, at) => b.setAttribute("aria-pressed", config.steps[at] === chosen));
      follow({prompt: text, step: chosen.name, token: model.get("token")});
      const wanted = JSON.stringify([chosen.name, model.get("token"), text]);
      if (shown !== wanted) el.setAttribute("aria-busy", "true");
      try {
        const ids = read(text, tokens, config), t = position(model.get("token"), ids.length), of = `${t} ${ids.join()}`;
        if (!data) status.textContent = `Working at ${chosen.label} …`;
        if (found.of !== of) found = {of, steps: {}};
        const {steps} = found, breathe = breather();
        // The chosen step comes first, and the others fill their bars behind it.
        for (const step of [chosen, ...config.steps.filter(one => one !== chosen)]) {
          steps[step.name] ??= await resultAt(step, ids, t, current, breathe);
          if (!current()) return;
          if (step === chosen) {
            data = steps[step.name];
            if (shown !== wanted) report(ids, t, step.name);
            shown = wanted;
            el.removeAttribute("aria-busy");
            show();
          } else showBars();
        }
        el.dataset.filled = `${t} ${ids.length}`;
      } catch (error) {
        if (current()) refuse(error);
      }
    }

    function refuse(error) {
      data = null;
      shown = "";
      el.classList.add("cx-refused");
      status.textContent = error instanceof Refused ? error.message : `Not measured: ${error.message}.`;
      likely.textContent = "";
      el.dataset.ready = "refused";
      el.removeAttribute("aria-busy");
      show();
    }

    function report(ids, t, name) {
      const {shares, seconds, coupling} = data;
      el.classList.remove("cx-refused");
      status.textContent = `Coupling of all pairs of blocks ${coupling.toFixed(3)}, by chance ${config.chance.toFixed(3)}.`;
      const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]);
      const words = order.slice(0, LIKELY).map(id => `“${visible(tokens.decode(id))}” ${(100 * shares[id]).toFixed(1)} %`);
      likely.textContent = `Most likely next tokens: ${words.join(", ")}.`;
      showTokens(ids, t);
      took.textContent = `${config.blocks} Jacobians of ${config.width} × ${config.width}, their ${config.k} strongest `
        + `singular triplets and all pairs took ${seconds.toFixed(2)} s in this browser.`;
      Object.assign(el.dataset, {ready: `${name} ${t} ${ids.length}`, seconds: seconds.toFixed(3)});
    }

    // The prompt, cut into its tokens; the chosen one is marked. A pointer may choose another, as the slider does.
    function showTokens(ids, t) {
      count = ids.length;
      const pieces = ids.map(id => visible(tokens.decode(id)));
      slider.show(t, ids.length, `“${pieces[t].trim()}”, position ${t} of ${ids.length - 1}`);
      quoted.replaceChildren(...pieces.map((piece, at) => make(at === t ? "mark" : "span",
        {onclick: () => choose(at)}, piece)));
    }

    function show() {
      const colours = cx.coloured(el, settings);
      offered.show(model.get("prompt"), colours);
      result.hidden = !data;
      quoted.hidden = slider.box.hidden = !data;
      if (!data) return;
      // A pair that the reader did not choose is the strongest.
      const [l, m] = kept.l ? [kept.l, kept.m] : cx.strongest(data.map(), data.blocks);
      const v = {l: l - 1, m: m - 1, prompt: 0, reading: READING};
      showBars();
      map.show(v, data, colours);
      // A pair is announced when another one was chosen, not again with every result.
      const chosen = `${v.l} ${v.m}`;
      pair.show(v, data, colours, announcedPair !== "" && announcedPair !== chosen && !map.speaks());
      announcedPair = chosen;
      numbers.update();
    }

    // The same prompt and token at every step, beside the value by chance.
    function showBars() {
      const line = (label, value, kind) => make(`div.bar-line.${kind}`, {}, make("span.bar-name", {}, label),
        make("span.bar-room", {}, make("span.bar-ink", {style: `width: ${100 * (value ?? 0)}%`})),
        make("span.bar-value", {}, value === undefined ? "…" : value.toFixed(3)));
      const chosen = chosenStep().name;
      const title = "Coupling, mean of all pairs, from 0 to 1";
      bars.replaceChildren(make("p.bar-title", {}, title),
        ...config.steps.map(({name, label}) => line(label, found.steps[name]?.coupling, name === chosen ? "now" : "other")),
        line("by chance", config.chance, "random"));
    }

    const watch = new MutationObserver(show);
    watch.observe(document.documentElement, {attributes: true, attributeFilter: ["data-theme"]});
    model.on("change", update);
    update();
    return () => watch.disconnect();
  }

  Object.assign(window.ownPrompt, {render});
})();
