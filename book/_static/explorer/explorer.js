/* The explorer: a map of coupling, and the two matrices of a pair of blocks beside random directions.

   `render({model, el})` has anywidget's shape: `model` holds the view (get, set, save_changes, on) and `load`, which
   gives the data of a network; all that is shown lies in `el`. A classic script, since browsers refuse modules and
   `fetch` to pages that were opened from the disk. start.js gives it a model whose state is the page's address. */
(() => {
  "use strict";

  // -- data

  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer;

  // Arrays have the order state, prompt, block of the Jacobian, block of the vectors, row, column.
  function unpacked(raw) {
    const size = raw.blocks * raw.blocks, entries = raw.k * raw.k, prompts = raw.prompts.length;
    const maps = {};
    for (const [name, reading] of Object.entries(raw.readings)) {
      const {low, step, numbers} = reading.pairs;
      maps[name] = Float64Array.from(new Uint16Array(bytes(numbers)), n => low + step * n);
    }
    const eight = packed => ({scale: new Float32Array(bytes(packed.scale)), entries: new Int8Array(bytes(packed.entries))});
    const matrices = eight(raw.matrices), nulls = eight(raw.nulls), values = new Float32Array(bytes(raw.singularValues));
    const one = (packed, n) =>
      Array.from(packed.entries.subarray(n * entries, (n + 1) * entries), x => Math.abs(x) * packed.scale[n]);
    const place = (state, prompt, l) => (state * raw.matrixPrompts + prompt) * raw.blocks + l;
    return {
      ...raw,
      // One number per pair; prompt -1 is the mean over prompts.
      map(state, prompt, reading) {
        const all = maps[reading], first = state * prompts;
        if (prompt >= 0) return all.slice((first + prompt) * size, (first + prompt + 1) * size);
        const mean = new Float64Array(size);
        for (let p = 0; p < prompts; p++)
          for (let n = 0; n < size; n++) mean[n] += all[(first + p) * size + n] / prompts;
        return mean;
      },
      matrix: (state, prompt, l, m) => one(matrices, place(state, prompt, l) * raw.blocks + m),
      nothing: (state, prompt, l) => one(nulls, place(state, prompt, l)),
      singular(state, prompt, l) {
        const n = ((state * prompts + prompt) * raw.blocks + l) * raw.k;
        return Array.from(values.subarray(n, n + raw.k));
      },
    };
  }

  // The ends of the map's colours: all networks of a model share them, so that they can be compared.
  function ends(data, reading, prompt) {
    let low = Infinity, high = -Infinity;
    data.states.forEach((_, state) => {
      const map = data.map(state, prompt, reading);
      map.forEach((x, n) => {
        if (n % (data.blocks + 1)) { low = Math.min(low, x); high = Math.max(high, x); }
      });
      for (const x of data.readings[reading].chance[state]) { low = Math.min(low, x); high = Math.max(high, x); }
    });
    return [low, high];
  }

  // -- parts of the page

  const theme = () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light");
  const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, attributes = {}, ...children) {
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
  }

  function draw(tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  let made = 0;
  function menu(label, changed) {
    const id = `cx-${++made}`;
    let filled = "";
    const select = make("select", {id, onchange: () => changed(select.value)});
    const box = make("div.field", {}, make("label", {htmlFor: id}, label), select);
    return {
      box,
      fill(options, chosen) {
        const key = JSON.stringify(options);
        if (key !== filled) select.replaceChildren(...options.map(([value, text]) => make("option", {value}, text)));
        filled = key;
        select.value = chosen;
      },
    };
  }

  function stepper(label, changed) {
    const id = `cx-${++made}`;
    const input = make("input", {id, type: "number", min: 1, inputMode: "numeric", onchange: () => changed(+input.value)});
    const button = (sign, by) =>
      make("button", {type: "button", "aria-label": `${label}: ${by > 0 ? "next" : "previous"}`, onclick: () => changed(+input.value + by)}, sign);
    const box = make("div.field", {}, make("label", {htmlFor: id}, label), make("div.stepper", {}, button("−", -1), input, button("+", 1)));
    return {box, show(value, most) { input.max = most; input.value = value; }};
  }

  // -- the explorer

  function render({model, el}) {
    const look = model.get("look");
    let data = null, asked = 0, cells = [], drawnFor = "";

    const change = part => {
      for (const [key, value] of Object.entries(part)) model.set(key, value);
      model.save_changes();
    };

    const models = menu("Model", value => change({model: value, state: "", prompt: "mean"}));
    const prompts = menu("Prompt", value => change({prompt: value}));
    const readings = menu("Reading", value => change({reading: value}));
    const sliderId = `cx-${++made}`;
    const slider = make("input", {
      type: "range", min: 0, step: 1, id: sliderId,
      oninput: () => change({state: data.states[+slider.value].name}),
    });
    const ends2 = ["untrained", "trained"].map((word, n) =>
      make("button", {type: "button", onclick: () => change({state: data.states.at(-n).name})}, word));
    const step = make("output", {htmlFor: sliderId});
    const training = make("div.field.training", {role: "group", "aria-label": "Training"},
      make("label", {htmlFor: sliderId}, "Training: ", step), make("div.both", {}, make("div.toggle", {}, ...ends2), slider));
    const quoted = make("p.prompt");

    const grid = make("div.grid", {role: "grid", "aria-label": "Map of all pairs of blocks"});
    const top = make("div.ticks.top", {"aria-hidden": "true"}), side = make("div.ticks.side", {"aria-hidden": "true"});
    const bar = make("canvas", {height: 1, "aria-hidden": "true"}), mark = make("span.mark");
    const low = make("span"), high = make("span"), caption = make("p.note");
    const map = make("section.map", {"aria-label": "Map"},
      make("div.axis", {}, "vectors of block ", make("i", {}, "l′"), " →"),
      make("div.frame", {}, make("div.axis.down", {}, "Jacobian of block ", make("i", {}, "l"), " →"), top, side, grid),
      make("div.bar", {}, bar, mark), make("div.ends", {}, low, high), caption);

    const first = stepper("Block l", value => data && change({l: clamp(value || 1, 1, data.blocks)}));
    const second = stepper("Block l′", value => data && change({m: clamp(value || 1, 1, data.blocks)}));
    const swap = make("button.swap", {type: "button", "aria-label": "swap the two blocks", onclick: () => change({l: model.get("m"), m: model.get("l")})}, "⇄");
    const told = make("div.told"), spoken = make("p.spoken", {role: "status"});
    const figures = ["forth", "forth null", "back", "back null"].map(() => {
      const canvas = make("canvas", {role: "img"});
      const title = make("figcaption");
      return {canvas, title, box: make("figure", {}, title, canvas)};
    });
    const squares = make("div.squares", {}, ...figures.map(f => f.box));
    const entry = make("p.note.entry");
    const plot = make("div.plot");
    const missing = make("p.note");
    const matrixTable = make("div.scroll", {tabIndex: 0, role: "region", "aria-label": "Entries of the matrix"});
    const matrixToggle = make("details", {ontoggle: () => fillMatrixTable()}, make("summary", {}, "The entries of |A| as a table"), matrixTable);
    const pair = make("section.pair", {"aria-label": "The chosen pair"},
      make("div.steppers", {}, first.box, second.box, swap), told, spoken, missing, squares, entry, matrixToggle);

    const mapTable = make("div.scroll", {tabIndex: 0, role: "region", "aria-label": "Numbers of the map"});
    const mapToggle = make("details", {ontoggle: () => fillMapTable()}, make("summary", {}, "The numbers of this map as a table"), mapTable);
    const origin = make("p.origin");
    el.classList.add("cx");
    el.replaceChildren(
      make("div.controls", {}, models.box, training, prompts.box, readings.box), quoted,
      make("div.columns", {}, map, pair, plot), mapToggle, origin);

    // What is chosen, as numbers into the data.
    function view() {
      const state = Math.max(0, data.states.findIndex(s => s.name === model.get("state")));
      const prompt = data.prompts.findIndex(p => p.name === model.get("prompt"));
      const reading = data.readings[model.get("reading")] ? model.get("reading") : Object.keys(data.readings)[0];
      const block = key => clamp(Math.round(+model.get(key)) || 1, 1, data.blocks) - 1;
      return {
        state: data.states.some(s => s.name === model.get("state")) ? state : data.states.length - 1,
        prompt, reading, l: block("l"), m: block("m"), shown: Math.max(0, prompt),
      };
    }

    async function update() {
      const name = model.get("model"), ask = ++asked;
      el.setAttribute("aria-busy", "true");
      const raw = await model.get("load")(name).catch(error => { quoted.textContent = error.message; });
      if (ask !== asked) return;
      el.removeAttribute("aria-busy");
      if (!raw) return;
      if (!data || data.name !== name) data = {...unpacked(raw), name};
      show();
    }

    function show() {
      if (!data) return;
      const v = view(), states = data.states, n = data.blocks;
      const colours = look[theme()];
      for (const [key, value] of Object.entries(colours)) if (key !== "ink") el.style.setProperty(`--cx-${key}`, value);
      models.fill(model.get("models"), data.name);
      prompts.fill([["mean", `mean over ${data.prompts.length} prompts`], ...data.prompts.map(p => [p.name, p.text])],
        v.prompt < 0 ? "mean" : data.prompts[v.prompt].name);
      readings.fill(Object.entries(data.readings).map(([key, r]) => [key, r.label]), v.reading);
      slider.max = states.length - 1;
      slider.value = v.state;
      slider.hidden = states.length < 3;
      slider.setAttribute("aria-valuetext", states[v.state].label);
      step.textContent = states[v.state].label;
      ends2.forEach((b, k) => b.setAttribute("aria-pressed", v.state === (k ? states.length - 1 : 0)));
      quoted.textContent = v.prompt < 0 ? "" : `“${data.prompts[v.prompt].text}”`;
      showMap(v, colours);
      showPair(v, colours);
      if (mapToggle.open) fillMapTable();
      if (matrixToggle.open) fillMatrixTable();
      origin.textContent = data.provenance;
      el.dataset.ready = `${data.name} ${n}`;
    }

    function showMap(v, colours) {
      const n = data.blocks, values = data.map(v.state, v.prompt, v.reading);
      const [bottom, most] = ends(data, v.reading, v.prompt), label = data.readings[v.reading].label;
      if (drawnFor !== data.name) build(n);
      drawnFor = data.name;
      // More ink is more coupling, which is a smaller value.
      const shade = x => colours.ink[Math.round(clamp((most - x) / (most - bottom), 0, 1) * (colours.ink.length - 1))];
      cells.forEach((cell, at) => {
        const l = Math.floor(at / n), m = at % n, chosen = l === v.l && m === v.m;
        cell.style.backgroundColor = l === m ? colours.mask : shade(values[at]);
        cell.setAttribute("aria-label", `Jacobian of block ${l + 1}, vectors of block ${m + 1}: ${values[at].toFixed(3)}`);
        cell.setAttribute("aria-selected", chosen);
        cell.classList.toggle("cx-reverse", l === v.m && m === v.l && l !== m);
        cell.tabIndex = chosen ? 0 : -1;
      });
      const chance = mean(data.readings[v.reading].chance[v.state]);
      bar.width = colours.ink.length;
      const ink = bar.getContext("2d");
      colours.ink.forEach((c, x) => { ink.fillStyle = c; ink.fillRect(colours.ink.length - 1 - x, 0, 1, 1); });
      mark.style.left = `${(100 * (chance - bottom)) / (most - bottom)}%`;
      low.textContent = `${bottom.toFixed(2)} ← more coupling`;
      high.textContent = most.toFixed(2);
      const others = Array.from(values).filter((_, at) => at % (n + 1));
      caption.replaceChildren(`${label}: mean of all pairs ${mean(others).toFixed(3)}; random directions ${chance.toFixed(3)} (the mark). `
        + "Grey: a block with itself. Dashed: the pair the other way round.");
    }

    function build(n) {
      grid.style.setProperty("--cx-n", n);
      grid.setAttribute("aria-rowcount", n);
      grid.setAttribute("aria-colcount", n);
      cells = [];
      const rows = [];
      for (let l = 0; l < n; l++) {
        const row = make("div.row", {role: "row"});
        for (let m = 0; m < n; m++) cells.push(row.appendChild(make("div.cell", {role: "gridcell"})));
        rows.push(row);
      }
      grid.replaceChildren(...rows);
      const every = n > 16 ? 5 : n > 8 ? 2 : 1;
      for (const ticks of [top, side]) {
        const shown = Array.from({length: n}, (_, k) => k).filter(k => k === 0 || (k + 1) % every === 0);
        ticks.replaceChildren(...shown.map(k => {
          const tick = make("span", {}, String(k + 1));
          tick.style[ticks === top ? "left" : "top"] = `${(100 * (k + 0.5)) / n}%`;
          return tick;
        }));
      }
    }

    function showPair(v, colours) {
      const {l, m} = v, reading = data.readings[v.reading], n = data.blocks;
      first.show(l + 1, n);
      second.show(m + 1, n);
      const values = data.map(v.state, v.prompt, v.reading);
      const line = (a, b) => make("tr", {},
        make("th", {scope: "row"}, `Jacobian of ${a + 1}, vectors of ${b + 1}`),
        make("td", {}, values[a * n + b].toFixed(3)), make("td", {}, reading.chance[v.state][a].toFixed(3)));
      const head = ["", reading.label.replace(/ \(.*/, ""), "random directions"].map(text =>
        text ? make("th", {scope: "col"}, text) : make("td"));
      told.replaceChildren(make("table", {},
        make("caption", {}, l === m ? `Block ${l + 1} with itself: diagonal by construction` : `Blocks ${l + 1} and ${m + 1}`),
        make("thead", {}, make("tr", {}, ...head)),
        make("tbody", {}, line(l, m), ...(l === m ? [] : [line(m, l)]))));

      // A cell of the map says its number by itself when it is moved to.
      if (!grid.contains(document.activeElement))
        spoken.textContent = `Blocks ${l + 1} and ${m + 1}: ${values[l * n + m].toFixed(3)}, the other way round ${values[m * n + l].toFixed(3)}`;

      const kept = v.shown < data.matrixPrompts;
      missing.textContent = !kept
        ? `The matrices of this model are kept for the first prompt only. Choose “${data.prompts[0].text}” to see them.`
        : v.prompt < 0 ? `Matrices are of one prompt, the first: “${data.prompts[0].text}”` : "";
      for (const part of [squares, entry, plot, matrixToggle]) part.hidden = !kept;
      if (!kept) return;
      const two = [[l, m], [m, l]];
      const sets = two.flatMap(([a, b]) => {
        const top1 = data.singular(v.state, v.shown, a)[0];
        const relative = matrix => matrix.map(x => x / top1);
        return [
          {a, b, values: relative(data.matrix(v.state, v.shown, a, b)), random: false},
          {a, b, values: relative(data.nothing(v.state, v.shown, a)), random: true},
        ];
      });
      const most = Math.max(...sets.flatMap(s => s.values));
      sets.forEach((set, k) => square(figures[k], set, most, colours));
      figures.slice(2).forEach(figure => { figure.box.hidden = l === m; });
      entry.textContent = `|A| / σ₁ of the Jacobian, one scale for all: no ink is 0, full ink is ${most.toFixed(2)}.`;
      plot.replaceChildren(curves(v, colours));
    }

    function square({canvas, title, box}, {a, b, values, random}, most, colours) {
      const k = data.k;
      canvas.width = canvas.height = k;
      const ink = canvas.getContext("2d");
      values.forEach((x, at) => {
        ink.fillStyle = colours.ink[Math.round((x / most) * (colours.ink.length - 1))];
        ink.fillRect(at % k, Math.floor(at / k), 1, 1);
      });
      const all = Math.hypot(...values), diagonal = Math.hypot(...values.filter((_, at) => at % (k + 1) === 0));
      const share = Math.round(100 * (diagonal / all) ** 2);
      title.textContent = random ? `random, spectrum of ${a + 1}` : `Jacobian ${a + 1}, vectors ${b + 1}`;
      canvas.setAttribute("aria-label", `${random ? "A draw of random directions with the singular values of" : "Coupling matrix: Jacobian of"} block ${a + 1}`
        + `${random ? "" : `, vectors of block ${b + 1}`}, ${k} by ${k}; ${share} % of its square lies on the diagonal`);
      box.dataset.share = share;
      canvas.onpointermove = event => {
        const at = part => clamp(Math.floor(part * k), 0, k - 1);
        const i = at(event.offsetY / canvas.clientHeight), j = at(event.offsetX / canvas.clientWidth);
        entry.textContent = `row ${i + 1}, column ${j + 1}: |a| / σ₁ = ${values[i * k + j].toFixed(3)}`;
      };
    }

    // Singular values of both blocks, and the diagonals of |A|, which reach them where the blocks are coupled.
    function curves(v, colours) {
      const W = 340, H = 210, left = 40, bottom = 34, right = 8, above = 46, k = data.k;
      const lines = [v.l, v.m].map(block => data.singular(v.state, v.shown, block));
      const diagonal = (a, b) => data.matrix(v.state, v.shown, a, b).filter((_, at) => at % (k + 1) === 0);
      const dots = [diagonal(v.l, v.m), diagonal(v.m, v.l)];
      const most = Math.max(...lines.flat()) * 1.04;
      const x = i => left + ((i + 0.5) / k) * (W - left - right), y = s => H - bottom - (s / most) * (H - bottom - above);
      const told = `Singular values 1 to ${k}: block ${v.l + 1} from ${lines[0][0].toFixed(2)} to ${lines[0][k - 1].toFixed(2)}, `
        + `block ${v.m + 1} from ${lines[1][0].toFixed(2)} to ${lines[1][k - 1].toFixed(2)}; points: the diagonals of |A|.`;
      const svg = draw("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": told});
      const text = (tx, ty, words, more = {}) => svg.append(draw("text", {x: tx, y: ty, fill: colours.text, ...more}, words));
      const power = 10 ** Math.floor(Math.log10(most / 2)), pace = [1, 2, 5, 10].map(f => f * power).find(f => most / f <= 4.5);
      for (let s = 0; s <= most; s += pace) {
        svg.append(draw("line", {x1: left, x2: W - right, y1: y(s), y2: y(s), stroke: colours.faint, "stroke-width": 0.7}));
        text(left - 5, y(s) + 4, String(+s.toPrecision(3)), {"text-anchor": "end"});
      }
      for (let i = 0; i < k; i++) text(x(i), H - bottom + 14, i + 1, {"text-anchor": "middle"});
      text((left + W - right) / 2, H - 4, "rank i", {"text-anchor": "middle"});
      (v.l === v.m ? [0] : [0, 1]).forEach(which => {
        const colour = [colours.first, colours.second][which], block = [v.l, v.m][which] + 1, across = [v.m, v.l][which] + 1;
        const path = lines[which].map((s, i) => `${i ? "L" : "M"}${x(i)} ${y(s)}`).join("");
        svg.append(draw("path", {d: path, fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": which ? "5 3" : "none"}));
        const dot = (cx, cy) => svg.append(which
          ? draw("rect", {x: cx - 3.2, y: cy - 3.2, width: 6.4, height: 6.4, fill: colours.page, stroke: colour, "stroke-width": 1.6})
          : draw("circle", {cx, cy, r: 3.4, fill: colour}));
        dots[which].forEach((s, i) => dot(x(i), y(s)));
        const row = 13 + which * 17;
        svg.append(draw("path", {d: `M${left} ${row - 4}h22`, stroke: colour, "stroke-width": 2, "stroke-dasharray": which ? "5 3" : "none"}));
        text(left + 28, row, `σᵢ of block ${block}`);
        dot(left + 132, row - 4);
        text(left + 142, row, `|aᵢᵢ|, vectors of block ${across}`);
      });
      return svg;
    }

    // -- tables

    const numbers = (rows, caption, count) => make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, make("td"), ...Array.from({length: count}, (_, j) => make("th", {scope: "col"}, String(j + 1))))),
      make("tbody", {}, ...rows.map((row, i) => make("tr", {}, make("th", {scope: "row"}, String(i + 1)), ...row.map(x => make("td", {}, x))))));
    const inRows = (values, n) => Array.from({length: n}, (_, i) => Array.from(values.slice(i * n, (i + 1) * n), x => x.toFixed(3)));

    function fillMapTable() {
      if (!data || !mapToggle.open) return;
      const v = view();
      mapTable.replaceChildren(numbers(inRows(data.map(v.state, v.prompt, v.reading), data.blocks),
        `${data.readings[v.reading].label} of ${data.label}, ${data.states[v.state].label}. Rows: block l, whose Jacobian. Columns: block l′, whose vectors.`, data.blocks));
    }

    function fillMatrixTable() {
      const v = data && view();
      if (!data || !matrixToggle.open || v.shown >= data.matrixPrompts) return;
      matrixTable.replaceChildren(numbers(inRows(data.matrix(v.state, v.shown, v.l, v.m), data.k),
        `|A| of the Jacobian of block ${v.l + 1} and the vectors of block ${v.m + 1}. Rows: left vectors. Columns: right vectors.`, data.k));
    }

    // -- the map by keys and by pointer

    const KEYS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      PageUp: [-5, 0], PageDown: [5, 0], Home: [0, -Infinity], End: [0, Infinity]};
    grid.addEventListener("keydown", event => {
      const move = KEYS[event.key];
      if (!move || event.altKey || event.metaKey) return;
      event.preventDefault();
      const far = event.ctrlKey && !move[0] ? [move[1], move[1]] : move, v = view(), n = data.blocks;
      const l = clamp(v.l + far[0], 0, n - 1), m = clamp(v.m + far[1], 0, n - 1);
      change({l: l + 1, m: m + 1});
      cells[l * n + m].focus();
    });

    const choose = event => {
      const box = grid.getBoundingClientRect(), n = data.blocks;
      const at = part => clamp(Math.floor(part * n), 0, n - 1);
      const l = at((event.clientY - box.top) / box.height), m = at((event.clientX - box.left) / box.width);
      if (l + 1 !== model.get("l") || m + 1 !== model.get("m")) change({l: l + 1, m: m + 1});
      cells[l * n + m].focus({preventScroll: true});
    };
    grid.addEventListener("pointerdown", event => {
      if (!data || event.button) return;
      event.preventDefault();
      // A mouse or a pen may be drawn over the map; a finger scrolls the page, and taps.
      if (event.pointerType !== "touch") grid.setPointerCapture(event.pointerId);
      choose(event);
    });
    grid.addEventListener("pointermove", event => {
      if (data && event.buttons === 1 && event.pointerType !== "touch") choose(event);
    });

    const watch = new MutationObserver(show);
    watch.observe(document.documentElement, {attributes: true, attributeFilter: ["data-theme"]});
    model.on("change", update);
    update();
    return () => watch.disconnect();
  }

  Object.assign((window.couplingExplorer ??= {}), {render});
})();
