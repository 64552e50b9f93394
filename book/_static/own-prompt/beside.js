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

  // Puts into the lines of code on the page what is shown: the step, the prompt, and the token.
  function follow({step, prompt, token}) {
    // They stand below the page's scripts.
    if (document.readyState === "loading") {
      document.addEventListener("DOMContentLoaded", () => follow({step, prompt, token}), {once: true});
      return;
    }
    const texts = [...document.querySelectorAll(".own-prompt-command .s2")];
    const sign = [...document.querySelectorAll(".own-prompt-command .o")].find(node => node.textContent.startsWith("=")
      && node.previousSibling.textContent.endsWith("token"));
    // A text of JSON is one of Python.
    texts.slice(-2).forEach((node, at) => { node.textContent = JSON.stringify([step, prompt][at]); });
    sign.textContent = token === "" ? "=-" : "=";
    sign.nextSibling.textContent = token === "" ? "1" : token;
  }

  Object.assign((window.ownPrompt ??= {}), {gallery, follow});
})();
