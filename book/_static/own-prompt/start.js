/* Starts the page on one's own prompt: its state is the page's address, the weights of a step are a classic script. */
(() => {
  "use strict";
  const here = document.currentScript.src, own = window.ownPrompt, config = Object.values(own.models)[0];
  // Where training has ended, prompts differ the most.
  const start = {prompt: config.start, step: config.steps.at(-1).name, token: "", l: 5, m: 6};

  const load = name =>
    window.bookAddress.read(new URL(`../own-prompt-data/${name}.js`, here)).then(() => own.weights[name]);
  const given = () => ({load, config, look: window.couplingExplorer.look.book});
  const model = window.bookAddress.makeModel(Object.keys(start), given, ["prompt"]);
  const take = () => { model.state = {...start, ...model.inAddress()}; };

  take();
  window.addEventListener("hashchange", () => { take(); model.tell(); });
  // The heading of the page has a name of its own.
  own.render({model, el: document.getElementById("own-prompt-here")});
})();
