/* Opens the tab on the reader's own prompt when the address asks for it. Its state is the address; its scripts, and the
   weights of a step, are read then. */
(() => {
  "use strict";
  const here = document.currentScript.src, el = document.getElementById("own-prompt-here");
  const SCRIPTS = [
    "explorer-data/settings", "explorer/parts", "explorer/map", "explorer/pair", "own-prompt-data/model",
    "own-prompt/tokenizer", "own-prompt/linalg", "own-prompt/model", "own-prompt/beside", "own-prompt/page",
  ];
  let config = null, opening = null;

  const read = name => window.bookAddress.read(new URL(`../${name}.js`, here));
  const load = name => read(`own-prompt-data/${name}`).then(() => window.ownPrompt.weights[name]);
  const given = () => ({load, config, settings: window.couplingExplorer.settings.book});
  const model = window.bookAddress.makeModel(["own-prompt", "prompt", "step", "token", "l", "m"], given, ["own-prompt", "prompt"]);
  const take = () => {
    model.state = {"own-prompt": "", prompt: config.start, step: config.opens, token: "", l: "", m: "", ...model.inAddress()};
  };

  const open = () => (opening ??= (async () => {
    for (const name of SCRIPTS) await read(name);
    [config] = Object.values(window.ownPrompt.models);
    take();
    window.ownPrompt.render({model, el});
  })().catch(error => { el.textContent = error.message; }));

  function follow() {
    if (!("own-prompt" in model.inAddress())) return;
    if (!config) return open();
    take();
    model.notify();
  }
  window.addEventListener("hashchange", follow);
  follow();
})();
