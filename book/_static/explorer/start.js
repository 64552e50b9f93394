/* Starts the explorer on a page of the book: its state is the page's address, its data are classic scripts.

   On its own page it opens at once, unless the address asks for the other tab. In a chapter it is loaded when one of
   the views that stand above it is chosen, or when the address holds a view. */
(() => {
  "use strict";
  const here = document.currentScript.src, keys = ["model", "state", "prompt", "token", "reading", "part", "l", "m", "with"];
  // The heading of the page has the name "explorer" already.
  const el = document.getElementById("coupling-explorer"), atOnce = "open" in el.dataset;
  let models = [], start = {}, opening = null;

  const load = name => window.bookAddress.read(new URL(name, here));
  const loadData = (kind, name) => load(`../explorer-data/${name}.js`).then(() => window.couplingExplorer[kind][name]);
  const parsed = text => window.bookAddress.parsed(keys, text);

  const given = () => ({load: loadData, models, settings: window.couplingExplorer.settings.book});
  const model = window.bookAddress.makeModel(keys, given);

  function take(view) {
    model.state = {...start, ...view};
  }

  const open = view => (opening ??= (async () => {
    await load("../explorer-data/settings.js");
    for (const name of ["data", "choice", "parts", "map", "pair", "own", "explorer"]) await load(`${name}.js`);
    models = window.couplingExplorer.settings.book.models;
    start = {model: models[0][0], state: "", prompt: "mean", token: "", reading: "", part: "", l: "", m: "", with: "", ...parsed(el.dataset.view)};
    take(view);
    window.couplingExplorer.render({model, el});
  })().catch(error => { el.textContent = error.message; }));

  async function choose(view) {
    await open(view);
    model.change({...start, ...view});
  }

  // Of the views that a chapter offers, the one that is shown is marked.
  const links = [...document.querySelectorAll(".cx-views a")];
  function mark() {
    for (const link of links) {
      const offered = {...start, ...parsed(link.dataset.view)};
      const same = keys.every(key => String(model.state[key]) === String(offered[key]));
      same ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    }
  }
  model.on("settled", mark);

  for (const link of links) {
    const {view} = link.dataset;
    link.href = `#${view}`;
    link.addEventListener("click", event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      choose(parsed(view));
    });
  }
  const elsewhere = () => new URLSearchParams(location.hash.slice(1)).has("own-prompt");
  window.addEventListener("hashchange", () => {
    if (elsewhere()) return;
    const view = model.inAddress();
    if (Object.keys(view).length) choose(view);
    else if (atOnce) open(view);
  });
  const asked = model.inAddress();
  if (elsewhere()) return;
  if (atOnce) open(asked);
  else if (Object.keys(asked).length) open(asked).then(() => el.scrollIntoView());
})();
