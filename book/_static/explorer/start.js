/* Starts the explorer on a page of the book: its state is the page's address, its data are classic scripts.

   On its own page it opens at once. In a chapter it is loaded when one of the views that stand above it is chosen, or
   when the address holds a view. */
(() => {
  "use strict";
  const here = document.currentScript.src, keys = ["model", "state", "prompt", "token", "reading", "l", "m"];
  // The heading of the page has the name "explorer" already.
  const el = document.getElementById("coupling-explorer");
  const heard = [], loading = {};
  let state = {}, models = [], start = {}, opening = null;

  const load = name => (loading[name] ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = new URL(name, here);
    script.onload = done;
    script.onerror = () => failed(new Error(`${script.src} cannot be read; build the book again`));
    document.head.append(script);
  }));
  const loadModel = name => load(`../explorer-data/${name}.js`).then(() => window.couplingExplorer.data[name]);

  const parsed = text => Object.fromEntries([...new URLSearchParams(text)].filter(([key]) => keys.includes(key)));
  const inAddress = () => parsed(location.hash.slice(1));

  function take(view) {
    state = {...start, ...view};
    if (!models.some(([name]) => name === state.model)) state.model = models[0][0];
    for (const key of ["l", "m"]) state[key] = Math.max(1, Math.round(+state[key]) || 1);
  }

  const model = {
    get: key => ({load: loadModel, models, look: window.couplingExplorer.look.book})[key] ?? state[key],
    set: (key, value) => { state[key] = value; },
    save_changes() {
      const said = keys.filter(key => state[key] !== "" && state[key] !== undefined).map(key => [key, state[key]]);
      history.replaceState(null, "", `#${new URLSearchParams(said)}`);
      heard.forEach(tell => tell());
    },
    on: (_, tell) => heard.push(tell),
  };

  const open = view => (opening ??= (async () => {
    await load("../explorer-data/look.js");
    for (const name of ["data", "parts", "map", "pair", "explorer"]) await load(`${name}.js`);
    models = window.couplingExplorer.look.book.models;
    start = {model: models[0][0], state: "", prompt: "mean", token: "", reading: "", l: 12, m: 14, ...parsed(el.dataset.view)};
    take(view);
    window.couplingExplorer.render({model, el});
    mark();
  })().catch(error => { el.textContent = error.message; }));

  async function choose(view) {
    await open(view);
    take(view);
    model.save_changes();
  }

  // Of the views that a chapter offers, the one that is shown is marked.
  const links = [...document.querySelectorAll(".cx-views a")];
  function mark() {
    for (const link of links) {
      const offered = {...start, ...parsed(link.dataset.view)};
      const same = keys.every(key => String(state[key]) === String(offered[key]));
      same ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    }
  }
  heard.push(mark);

  for (const link of links) {
    const {view} = link.dataset;
    link.href = `#${view}`;
    link.addEventListener("click", event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      choose(parsed(view));
    });
  }
  window.addEventListener("hashchange", () => {
    const view = inAddress();
    if (Object.keys(view).length) choose(view);
  });
  const given = inAddress();
  if ("open" in el.dataset) open(given);
  else if (Object.keys(given).length) open(given).then(() => el.scrollIntoView());
})();
