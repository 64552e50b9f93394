/* The explorer: a map of coupling, and the two matrices of a pair of blocks beside draws by chance; a second network
   beside the first on the same scale of colours, if one is chosen; a training that plays step by step.

   `render({model, el})` takes a `model` that holds the view (get, change, settle, on) and `load`, which gives the data of
   a network; all that is shown lies in `el`. start.js gives it a model whose state is the page's address. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});
  const {make} = cx;
  const OWN = "own", PACE = 1000;

  cx.render = ({model, el}) => {
    const settings = model.get("settings"), [[whole]] = settings.parts, read = {}, own = {};
    let now = null, asked = 0;

    const change = part => { stop(); model.change(part); };
    const measured = () => model.get("models").filter(([name]) => settings.states[name].length);
    const known = () => [...measured(), ...(own[whole] ? [[OWN, own[whole].label]] : [])];
    const absent = () => model.get("models").filter(([name]) => !settings.states[name].length);
    const statesOf = name => (name === OWN ? own[whole].states.map(s => [s.name, s.label]) : settings.states[name]);

    // What was chosen goes along to another model, as far as that has it: the first and the last step by these names.
    const models = cx.menu("Model", value => {
      const {v, data} = now, end = data.states.length - 1, prompt = data.prompts[v.prompt];
      // A step in the middle has no counterpart: the other model is shown where it is most coupled.
      const state = v.state === end ? "trained" : v.state === 0 ? "untrained" : "";
      change({model: value, state: model.get("state") && state, piece: prompt?.pieces?.[model.get("token")] ?? ""});
    });
    const prompts = cx.menu("Prompt", value => change({prompt: value, token: ""}));
    const readings = cx.menu("Reading", value => change({reading: value}));
    const parts = cx.menu("Part", value => change({part: value}));
    const others = cx.menu("Compare with", value => change({with: value}));
    const training = cx.slider("Training", at => change({state: now.data.states[at].name}));

    // Runs over the training from its first step. Who wants no motion gets one step a press.
    const calm = matchMedia("(prefers-reduced-motion: reduce)");
    let playing = 0;
    function stop() {
      clearTimeout(playing);
      playing = 0;
      play.textContent = calm.matches ? "Next step" : "Play";
    }
    function next(at) {
      const {states} = now.data;
      if (at >= states.length) return stop();
      model.change({state: states[at].name});
      // A step that is still being read is waited for.
      playing = calm.matches ? 0 : setTimeout(() => next(el.hasAttribute("aria-busy") ? at : at + 1), PACE);
    }
    const play = make("button.play-button", {type: "button", onclick() {
      if (playing) return stop();
      next(calm.matches ? (now.v.state + 1) % now.data.states.length : 0);
      if (playing) play.textContent = "Pause";
    }});
    stop();

    const tokens = cx.slider("Token", at => change({token: now.data.prompts[now.v.prompt].tokens[at]}));
    const quoted = make("p.prompt"), notice = make("p.notice", {role: "status"});
    const choose = (l, m) => change({l: l + 1, m: m + 1});
    const columns = make("div.columns"), shown = [];
    const column = (name, steps) => {
      const title = make("p.title"), map = cx.map(choose, name), pair = cx.pair(change, steps, name);
      map.box.prepend(title);
      columns.append(map.box, pair.box, pair.plot);
      shown.push({title, map, pair});
    };
    column("", true);
    const numbers = cx.folded("The numbers of this map as a table", "Numbers of the map", () => [now, now.second].filter(Boolean)
      .map(({v, data}) => cx.table(data.map(v), data.blocks, `${data.readings[v.reading].label}, ${data.part.label}, of ${data.label}, `
        + `${data.states[v.state].label}${cx.byChance(v, data)}. Rows: block l, whose Jacobian. Columns: block l′, whose vectors.`)));
    const origin = make("p.origin");
    const opened = cx.opener(el, settings, given => {
      Object.assign(own, {[whole]: null, shared: null}, given);
      now = now && {...now, data: {...now.data, name: ""}};
      change({model: OWN, state: "", piece: ""});
    });
    el.classList.add("cx");
    el.setAttribute("role", "region");
    el.setAttribute("aria-label", "Explorer");
    // What is rarely chosen is folded away.
    const more = make("details.more", {}, make("summary", {}, "Prompt, token, reading, part, second network"),
      make("div.controls", {}, prompts.box, tokens.box, readings.box, parts.box, others.box, quoted));
    el.replaceChildren(
      make("div.controls.first", {role: "region", "aria-label": "What is shown"}, models.box, training.box, play),
      more, notice, columns, numbers.box, opened, origin);
    cx.skip("Skip to the map", el, shown[0].map);

    // A part has a file of its own, and matrices have theirs: read when they are asked for, since most readers never do.
    const dataOf = (name, part) => name === OWN ? own[part] : (read[`${name} ${part}`] ??= (async () => {
      const file = part === whole ? name : `${name}-${part}`, load = model.get("load");
      const data = await cx.unpacked(await load("data", file), state => load("matrices", `${file}-${state}`));
      return {...data, name};
    })().catch(error => { delete read[`${name} ${part}`]; throw error; }));

    // What of that which is asked for is there, ready to be shown, and the lines that say what is not.
    async function found() {
      const lines = [], names = Object.fromEntries(known()), [[usual]] = known(), get = key => model.get(key);
      let name = get("model") || usual, part = get("part") || whole, beside = get("with") || "";
      if (!names[name]) {
        const [, label] = absent().find(([key]) => key === name) ?? [];
        lines.push(name === OWN ? "A file of your own is not kept in the address: open it again."
          : label ? `${label} is not measured here.` : `There is no model “${name}” here.`,
          `Shown instead: ${names[usual]}.`);
        name = usual;
      }
      const label = settings.parts.find(([key]) => key === part)?.[1];
      if (!label || (name === OWN && !own[part])) {
        lines.push(`There is no part “${label ?? part}” here. Shown instead: ${settings.parts[0][1]}.`);
        part = whole;
      }
      const one = cx.chosen(get, await dataOf(name, part), now);
      await one.data.prepare(one.v);
      lines.push(one.line);
      const [, other, state] = /^(.*)\.(.*)$/.exec(beside) ?? [];
      const there = names[other] && statesOf(other).some(([key]) => key === state) && (other !== OWN || own[part]);
      if (beside && !there) lines.push(`There is no “${beside}” to compare with here. Shown instead: one network alone.`);
      if (there) {
        const {address, data, v} = one, piece = address.token && (data.prompts[v.prompt]?.pieces?.[address.token] ?? "");
        const same = {...address, state, reading: v.reading, piece, l: v.l + 1, m: v.m + 1};
        one.second = cx.chosen(key => same[key], await dataOf(other, part), null, "its map alone");
        await one.second.data.prepare(one.second.v);
        lines.push(one.second.line);
      }
      const network = {model: name, part: part === whole ? get("part") && whole : part, with: there ? beside : ""};
      return {...one, address: {...one.address, ...network}, lines: lines.filter(Boolean)};
    }

    async function update() {
      const ask = ++asked;
      el.setAttribute("aria-busy", "true");
      try {
        const one = await found();
        if (ask !== asked) return;
        more.open ||= !now && ["token", "reading", "part", "with"].some(key => one.address[key]);
        more.open ||= !now && one.v.prompt >= 0;
        now = one;
        notice.textContent = one.lines.join(" ");
      } catch (error) {
        if (ask !== asked) return;
        notice.textContent = error.message;
      }
      el.removeAttribute("aria-busy");
      if (!now) return;
      show();
      model.settle(now.address);
    }

    function show() {
      if (!now) return;
      const {data, v, second} = now, {states} = data, prompt = data.prompts[v.prompt], colours = cx.coloured(el, settings);
      models.fill([...known(), ...absent().map(([key, label]) => [key, `${label}: not measured here`, true])], data.name);
      const several = p => (p.tokens.length > 1 ? ` (${p.tokens.length} tokens)` : "");
      prompts.fill([["mean", `mean over ${data.prompts.length} prompts`], ...data.prompts.map(p => [p.name, p.text + several(p)])],
        prompt ? prompt.name : "mean");
      readings.fill(Object.entries(data.readings).map(([key, {label}]) => [key, `${label} (${settings.readings[key].source})`]), v.reading);
      parts.fill(settings.parts, data.part.name);
      others.fill([["", "nothing"], ...known().flatMap(([name, label]) =>
        statesOf(name).map(([key, words]) => [`${name}.${key}`, `${label}, ${words}`]))], now.address.with);
      training.show(v.state, states.length, states[v.state].label);
      play.hidden = states.length < 3;
      showToken(v, data, prompt);
      columns.classList.toggle("cx-two", Boolean(second));
      const both = [now, second].filter(one => one && (one === now || one.paired)).map(one => cx.scales(one.v, one.data));
      const scales = {ink: Math.max(...both.map(s => s.ink)), tall: Math.max(...both.map(s => s.tall))};
      if (second && shown.length === 1) column("Second network: ", false);
      [now, second].slice(0, shown.length).forEach((one, at) => {
        const {title, map, pair} = shown[at];
        for (const part of [map.box, pair.box, pair.plot]) part.classList.toggle("cx-away", !one || (at === 1 && part !== map.box && !one.paired));
        title.hidden = !second;
        if (!one) return;
        const name = title.textContent = `${one.data.label}, ${one.data.states[one.v.state].label}`;
        map.show(one.v, one.data, colours, at === 0 || one.paired);
        if (at === 0 || one.paired) pair.show(one.v, one.data, colours, !shown.some(s => s.map.speaks()), scales, second ? ` of ${name}` : "");
      });
      numbers.update();
      origin.textContent = [...new Set([now, second].filter(Boolean).map(one => one.data.provenance))].join("\n");
      el.dataset.ready = `${data.name} ${data.blocks}`;
    }

    // The prompt is quoted with the chosen token marked in it.
    function showToken(v, data, prompt) {
      const {pieces, text} = prompt ?? {};
      if (!prompt) {
        tokens.show(0, 1, "the last of each prompt");
        const [first] = data.prompts;
        quoted.replaceChildren(...(first.tokens.length > 1 ? [make("button", {type: "button", onclick: () => change({prompt: first.name})},
          `Go from token to token of “${first.text}”`)] : []));
      } else if (!pieces) {
        tokens.show(0, 1, data.token);
        quoted.replaceChildren(`“${text}”`);
      } else {
        const at = prompt.tokens[v.token], piece = pieces[at], words = part => part.join("");
        tokens.show(v.token, prompt.tokens.length, `“${piece.trim()}”, position ${at} of ${pieces.length - 1}`);
        quoted.replaceChildren("“", words(pieces.slice(0, at)), piece.startsWith(" ") ? " " : "",
          make("mark", {}, piece.trim()), words(pieces.slice(at + 1)), "”");
      }
    }

    const watch = new MutationObserver(show);
    watch.observe(document.documentElement, {attributes: true, attributeFilter: ["data-theme"]});
    model.on("change", update);
    update();
    return () => watch.disconnect();
  };
})();
