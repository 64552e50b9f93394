/* What the pages are made of that show maps of pairs: arrays, colours, elements, menus, sliders, tables. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});

  // An array as the book's scripts hold it: gzip in base64.
  cx.bytes = text => {
    const characters = atob(text), packed = new Uint8Array(characters.length);
    for (let at = 0; at < packed.length; at++) packed[at] = characters.charCodeAt(at);
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  };

  // Gives an element the colours of the page's theme, and returns them.
  cx.coloured = (el, settings) => {
    const colours = settings[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
    for (const [key, value] of Object.entries(colours)) if (key !== "ink") el.style.setProperty(`--cx-${key}`, value);
    return colours;
  };

  cx.clamp = (x, low, high) => Math.min(high, Math.max(low, x));
  cx.mean = values => values.reduce((a, b) => a + b, 0) / values.length;
  // The most coupled pair of different blocks of a map, counted from 1.
  cx.strongest = (values, n) => {
    let best = 1;
    values.forEach((value, pair) => { if (pair % (n + 1) && value > values[best]) best = pair; });
    return [Math.floor(best / n) + 1, best % n + 1];
  };
  // From the least ink to the most.
  cx.shade = (colours, share) => colours.ink[Math.round(cx.clamp(share, 0, 1) * (colours.ink.length - 1))];

  const make = (cx.make = (tag, attributes = {}, ...children) => {
    const [name, ...classes] = tag.split(".");
    const node = document.createElement(name);
    if (classes.length) node.className = classes.map(c => `cx-${c}`).join(" ");
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key in node && key !== "role") node[key] = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  });

  cx.draw = (tag, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  let made = 0;
  cx.menu = (label, changed) => {
    const id = `cx-${++made}`;
    let filled = "";
    const select = make("select", {id, onchange: () => changed(select.value)});
    const box = make("div.field", {}, make("label", {htmlFor: id}, label), select);
    return {
      box,
      fill(options, chosen) {
        const key = JSON.stringify(options);
        if (key !== filled) select.replaceChildren(...options.map(([value, text, off = false]) => make("option", {value, disabled: off}, text)));
        filled = key;
        select.value = chosen;
      },
    };
  };

  cx.stepper = (label, changed) => {
    const id = `cx-${++made}`;
    const input = make("input", {id, type: "number", min: 1, inputMode: "numeric", onchange: () => changed(+input.value)});
    const button = (sign, by) => make("button",
      {type: "button", "aria-label": `${label}: ${by > 0 ? "next" : "previous"}`, onclick: () => changed(+input.value + by)}, sign);
    const steps = make("div.stepper", {}, button("−", -1), input, button("+", 1));
    const box = make("div.field", {}, make("label", {htmlFor: id}, label), steps);
    return {box, show(value, most) { input.max = most; input.value = value; }};
  };

  // A slider over a list.
  cx.slider = (label, changed) => {
    const id = `cx-${++made}`, output = make("output", {htmlFor: id});
    const input = make("input", {id, type: "range", min: 0, step: 1, oninput: () => changed(+input.value)});
    const box = make("div.field", {}, make("label", {htmlFor: id}, `${label}: `, output), input);
    return {
      box,
      show(value, count, words) {
        input.max = count - 1;
        input.value = value;
        input.disabled = count < 2;
        input.setAttribute("aria-valuetext", words);
        output.textContent = words;
      },
    };
  };

  cx.table = (values, count, caption, digits = 3) => {
    const rows = Array.from({length: count}, (_, i) => Array.from(values.slice(i * count, (i + 1) * count), x => x.toFixed(digits)));
    const head = Array.from({length: count}, (_, j) => make("th", {scope: "col"}, String(j + 1)));
    return make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, make("td"), ...head)),
      make("tbody", {}, ...rows.map((row, i) =>
        make("tr", {}, make("th", {scope: "row"}, String(i + 1)), ...row.map(x => make("td", {}, x))))));
  };

  // What follows a caption: the value by chance, mean over blocks, where it is known.
  cx.byChance = (v, data) => data.chance(v) ? `; by chance ${cx.mean(data.chance(v)).toFixed(3)}` : "";

  // A link that stands after the theme's own at the top of the page, and is seen when it has the focus.
  cx.skip = (words, of, {focus}) => {
    const link = make("a", {href: "#", onclick: event => { event.preventDefault(); focus(); }}, words);
    const box = make("div", {}, link);
    box.className = "skip-link d-print-none cx-skip";
    box.dataset.own = Number(of.id === "own-prompt-here");
    (document.getElementById("pst-skip-link") ?? document.body.firstElementChild).after(box);
  };

  // A table that is made when it is opened; `fill` gives it, or nothing.
  cx.folded = (summary, label, fill) => {
    const scroll = make("div.scroll", {tabIndex: 0, role: "region", "aria-label": label});
    const update = () => { if (box.open) scroll.replaceChildren(...[fill()].flat()); };
    const box = make("details", {ontoggle: update}, make("summary", {}, summary), scroll);
    return {box, update};
  };
})();
