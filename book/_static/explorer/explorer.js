/* The explorer: a map of coupling, and the two matrices of a pair of blocks beside random directions.

   `render({model, el})` has anywidget's shape: `model` holds the view (get, set, save_changes, on) and `load`, which
   gives the data of a network; all that is shown lies in `el`. start.js gives it a model whose state is the page's
   address. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});
  const {make} = cx;

  cx.render = ({model, el}) => {
    const look = model.get("look");
    let data = null, asked = 0;

    const change = part => {
      for (const [key, value] of Object.entries(part)) model.set(key, value);
      model.save_changes();
    };
    const view = () => data.view(key => model.get(key));

    const models = cx.menu("Model", value => change({model: value, state: "", prompt: "mean", token: ""}));
    const prompts = cx.menu("Prompt", value => change({prompt: value, token: ""}));
    const readings = cx.menu("Reading", value => change({reading: value}));
    readings.box.classList.add("cx-reading");
    const parts = cx.menu("Part", value => change({part: value}));
    const ends = ["untrained", "trained"].map((word, n) =>
      make("button", {type: "button", onclick: () => change({state: data.states.at(-n).name})}, word));
    const training = cx.slider("Training", at => change({state: data.states[at].name}), ...ends);
    const tokens = cx.slider("Token", at => change({token: data.prompts[view().prompt].tokens[at]}));
    const quoted = make("p.prompt");
    const map = cx.map((l, m) => change({l: l + 1, m: m + 1})), pair = cx.pair(change);
    const numbers = cx.folded("The numbers of this map as a table", "Numbers of the map", () => {
      const v = view();
      return cx.table(data.map(v), data.blocks, `${data.readings[v.reading].label}, ${data.part.label}, of ${data.label}, `
        + `${data.states[v.state].label}. Rows: block l, whose Jacobian. Columns: block l′, whose vectors.`);
    });
    const origin = make("p.origin");
    el.classList.add("cx");
    el.replaceChildren(
      make("div.controls", {}, models.box, training.box, prompts.box, tokens.box, readings.box, parts.box, quoted),
      make("div.columns", {}, map.box, pair.box, pair.plot), numbers.box, origin);

    async function update() {
      // A part has a file of its own, loaded when it is asked for: most readers never do.
      const [[whole]] = look.parts, part = look.parts.some(([key]) => key === model.get("part")) ? model.get("part") : whole;
      const name = model.get("model") + (part === whole ? "" : `-${part}`), ask = ++asked;
      el.setAttribute("aria-busy", "true");
      try {
        const found = data?.file === name ? data : {...await cx.unpacked(await model.get("load")(name)), name: model.get("model"), file: name};
        if (ask === asked) data = found;
      } catch (error) {
        quoted.textContent = error.message;
      }
      if (ask !== asked) return;
      el.removeAttribute("aria-busy");
      show();
    }

    function show() {
      if (!data) return;
      const v = view(), {states} = data, prompt = data.prompts[v.prompt], colours = cx.coloured(el, look);
      models.fill(model.get("models"), data.name);
      const several = p => (p.tokens.length > 1 ? ` (${p.tokens.length} tokens)` : "");
      prompts.fill([["mean", `mean over ${data.prompts.length} prompts`], ...data.prompts.map(p => [p.name, p.text + several(p)])],
        prompt ? prompt.name : "mean");
      readings.fill(Object.entries(data.readings).map(([key, r]) => [key, r.label]), v.reading);
      parts.fill(look.parts, data.part.name);
      training.show(v.state, states.length, states[v.state].label);
      ends.forEach((b, k) => b.setAttribute("aria-pressed", v.state === (k ? states.length - 1 : 0)));
      showToken(v, prompt);
      map.show(v, data, colours);
      pair.show(v, data, colours, !map.speaks());
      numbers.update();
      origin.textContent = data.provenance;
      el.dataset.ready = `${data.name} ${data.blocks}`;
    }

    // The prompt is quoted with the chosen token marked in it.
    function showToken(v, prompt) {
      if (!prompt) {
        tokens.show(0, 1, "the last of each prompt");
        const [first] = data.prompts;
        quoted.replaceChildren(make("button", {type: "button", onclick: () => change({prompt: first.name})},
          `Go from token to token of “${first.text}”`));
        return;
      }
      const at = prompt.tokens[v.token], piece = prompt.pieces[at];
      tokens.show(v.token, prompt.tokens.length, `“${piece.trim()}”, position ${at} of ${prompt.pieces.length - 1}`);
      const words = part => part.join("");
      quoted.replaceChildren("“", words(prompt.pieces.slice(0, at)), piece.startsWith(" ") ? " " : "",
        make("mark", {}, piece.trim()), words(prompt.pieces.slice(at + 1)), "”");
    }

    const watch = new MutationObserver(show);
    watch.observe(document.documentElement, {attributes: true, attributeFilter: ["data-theme"]});
    model.on("change", update);
    update();
    return () => watch.disconnect();
  };
})();
