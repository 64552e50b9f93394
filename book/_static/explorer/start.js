/* Starts the explorer on a page of the book: its state is the page's address, its data are classic scripts. */
(() => {
  "use strict";
  const here = document.currentScript.src, explorer = window.couplingExplorer;
  // The heading of the page has the name "explorer" already.
  const el = document.getElementById("coupling-explorer");
  const models = JSON.parse(el.dataset.models), keys = ["model", "state", "prompt", "reading", "l", "m"];
  const start = {model: models[0][0], state: "", prompt: "mean", reading: "", l: 12, m: 14};
  const heard = [];
  let state = {};

  const waiting = {};
  const load = name => (waiting[name] ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = new URL(`../explorer-data/${name}.js`, here);
    script.onload = () => done(explorer.data[name]);
    script.onerror = () => failed(new Error(`the data of ${name} are not there: ${script.src} cannot be read; build the book again`));
    document.head.append(script);
  }));

  function fromAddress() {
    const found = new URLSearchParams(location.hash.slice(1)), next = {...start};
    for (const key of keys) if (found.has(key)) next[key] = found.get(key);
    if (!models.some(([name]) => name === next.model)) next.model = start.model;
    for (const key of ["l", "m"]) next[key] = Math.max(1, Math.round(+next[key]) || 1);
    return next;
  }

  const model = {
    get: key => ({load, models, look: explorer.look.book})[key] ?? state[key],
    set: (key, value) => { state[key] = value; },
    save_changes() {
      const said = keys.filter(key => state[key] !== "" && state[key] !== undefined).map(key => [key, state[key]]);
      history.replaceState(null, "", `#${new URLSearchParams(said)}`);
      heard.forEach(tell => tell());
    },
    on: (_, tell) => heard.push(tell),
  };

  state = fromAddress();
  window.addEventListener("hashchange", () => { state = fromAddress(); heard.forEach(tell => tell()); });
  explorer.render({model, el});
})();
