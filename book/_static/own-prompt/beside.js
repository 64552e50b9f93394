/* What stands beside the result of a prompt: small maps of prompts that are offered, and the library's lines. */
(() => {
  "use strict";
  const cx = window.couplingExplorer, {make} = cx;

  // Prompts with their maps; `choose` is given a prompt's text.
  function gallery(config, choose) {
    const n = config.blocks;
    const each = config.gallery.map(({text, map}) => {
      const canvas = make("canvas", {width: n, height: n, "aria-hidden": "true"});
      const button = make("button", {type: "button", title: text, onclick: () => choose(text)}, canvas, make("span", {}, text));
      return {text, canvas, button, shares: cx.bytes(map).then(found => new Uint8Array(found))};
    });
    return {
      box: make("div.gallery", {role: "group", "aria-label": "Prompts whose maps differ the most"}, ...each.map(one => one.button)),
      async show(chosen, colours) {
        for (const {text, canvas, button, shares} of each) {
          button.setAttribute("aria-pressed", text === chosen);
          const ink = canvas.getContext("2d");
          (await shares).forEach((x, at) => {
            ink.fillStyle = at % (n + 1) ? cx.shade(colours, x / 255) : colours.mask;
            ink.fillRect(at % n, Math.floor(at / n), 1, 1);
          });
        }
      },
    };
  }

  // The lines of code on the page that measure the same: their texts, and the token.
  function lines(box) {
    const texts = [...(box?.querySelectorAll(".s2, .s1") ?? [])];
    const span = value => texts.find(node => value.test(node.textContent));
    const step = span(/^"step\d+"$/), prompt = texts.at(-1);
    const token = [...(box?.querySelectorAll(".o") ?? [])].find(node => node.textContent === "=-");
    if (!step || !prompt || step === prompt || !token) return () => {};
    const position = token.nextSibling;
    return view => {
      step.textContent = JSON.stringify(view.step);
      // A text of JSON is one of Python.
      prompt.textContent = JSON.stringify(view.prompt);
      token.textContent = view.token === "" ? "=-" : "=";
      position.textContent = view.token === "" ? "1" : view.token;
    };
  }

  Object.assign((window.ownPrompt ??= {}), {gallery, lines});
})();
