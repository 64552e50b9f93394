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
    const listeners = [], inAddress = () => parsed(keys, location.hash.slice(1));
    let addressed = Object.keys(inAddress()).length > 0;
    const model = {
      state: {},
      get: key => given()[key] ?? model.state[key],
      set: (key, value) => { model.state[key] = value; },
      on: (event, listener) => listeners.push([event, listener]),
      notify: (event = "change") => listeners.forEach(([name, listener]) => name === event && listener()),
      inAddress,
      // Asks for something; the address holds it once it is shown, which `settle` reports.
      change(part) {
        Object.assign(model.state, part);
        addressed = true;
        model.notify();
      },
      settle(part) {
        Object.assign(model.state, part);
        if (addressed) model.write();
        model.notify("settled");
      },
      write() {
        const present = keys.filter(key => (model.state[key] ?? "") !== "" || evenEmpty.includes(key));
        history.replaceState(null, "", `#${new URLSearchParams(present.map(key => [key, model.state[key]]))}`);
      },
      save_changes() {
        model.write();
        model.notify();
      },
    };
    return model;
  }

  window.bookAddress = {read, parsed, makeModel};
})();
