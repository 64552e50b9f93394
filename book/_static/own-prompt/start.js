/* Starts the page on one's own prompt: its state is the page's address, the weights of a step are a classic script. */
(() => {
  "use strict";
  const here = document.currentScript.src, own = window.ownPrompt, config = Object.values(own.models)[0];
  // The heading of the page has a name of its own.
  const el = document.getElementById("own-prompt-here");
  const keys = ["prompt", "step", "token", "l", "m"], heard = [], loading = {};
  // The most coupled step comes first: there is something to see.
  const start = {prompt: config.examples[0], step: config.steps[1].name, token: "", l: 5, m: 6};

  const load = name => (loading[name] ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = new URL(`../own-prompt-data/${name}.js`, here);
    script.onload = () => done(own.weights[name]);
    script.onerror = () => {
      delete loading[name];
      failed(new Error(`the weights cannot be read from ${script.src}; build the book again`));
    };
    document.head.append(script);
  }));

  let state = {};
  const take = () => {
    const said = new URLSearchParams(location.hash.slice(1));
    state = {...start, ...Object.fromEntries(keys.filter(key => said.has(key)).map(key => [key, said.get(key)]))};
  };
  const model = {
    get: key => ({load, config, look: window.couplingExplorer.look.book})[key] ?? state[key],
    set: (key, value) => { state[key] = value; },
    save_changes() {
      const said = keys.filter(key => state[key] !== "" || key === "prompt").map(key => [key, state[key]]);
      history.replaceState(null, "", `#${new URLSearchParams(said)}`);
      heard.forEach(tell => tell());
    },
    on: (_, tell) => heard.push(tell),
  };

  take();
  window.addEventListener("hashchange", () => { take(); heard.forEach(tell => tell()); });
  own.render({model, el});
})();
