/* What pages with a state share: scripts that are read when they are needed, and a model whose state is the address. */
(() => {
  "use strict";
  const reading = {};

  // One that cannot be read is tried anew when it is asked for again.
  const read = address => (reading[address] ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = done;
    script.onerror = () => {
      delete reading[address];
      failed(new Error(`${script.src} cannot be read; build the book again`));
    };
    document.head.append(script);
  }));

  const parsed = (keys, text) =>
    Object.fromEntries([...new URLSearchParams(text)].filter(([key]) => keys.includes(key)));

  /* Of the keys, those that are empty stay out of the address, but for some; `given` is what else a view asks for. */
  function makeModel(keys, given, evenEmpty = []) {
    const heard = [], inAddress = () => parsed(keys, location.hash.slice(1));
    let told = Object.keys(inAddress()).length > 0;
    const model = {
      state: {},
      get: key => given()[key] ?? model.state[key],
      set: (key, value) => { model.state[key] = value; },
      on: (event, tell) => heard.push([event, tell]),
      tell: (event = "change") => heard.forEach(([name, tell]) => name === event && tell()),
      inAddress,
      // Asks for something; the address holds it once it is shown, which `settle` is told.
      change(part) {
        Object.assign(model.state, part);
        told = true;
        model.tell();
      },
      settle(part) {
        Object.assign(model.state, part);
        if (told) model.write();
        model.tell("settled");
      },
      write() {
        const said = keys.filter(key => (model.state[key] ?? "") !== "" || evenEmpty.includes(key));
        history.replaceState(null, "", `#${new URLSearchParams(said.map(key => [key, model.state[key]]))}`);
      },
      save_changes() {
        model.write();
        model.tell();
      },
    };
    return model;
  }

  window.bookAddress = {read, parsed, makeModel};
})();
