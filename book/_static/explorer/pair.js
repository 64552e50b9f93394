/* The chosen pair: its numbers, its matrices beside draws by chance, and its singular values. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});
  const {make, draw, clamp} = cx;

  const diagonal = (values, k) => values.filter((_, at) => at % (k + 1) === 0);

  // The matrices that are shown of a pair, divided by the largest singular value of the Jacobian.
  const matrices = ({l, m, ...v}, data) => [[l, m], [m, l]].flatMap(([a, b]) => {
    const [largest] = data.singular(v, a), relative = matrix => matrix.map(x => x / largest);
    const random = data.nothing ? [{a, b, values: relative(data.nothing(v, a)), random: true}] : [];
    return [{a, b, values: relative(data.matrix(v, a, b))}, ...random];
  });
  const full = sets => Math.max(...sets.flatMap(set => set.values));
  // What full ink stands for in the matrices of a pair, and the largest singular value.
  cx.scales = (v, data) => data.hasMatrices(v)
    ? {ink: full(matrices(v, data)), tall: Math.max(...[v.l, v.m].flatMap(block => data.singular(v, block)))} : {ink: 0, tall: 0};

  // `change` is called with l and m, counted from 1; `steps` whether they are chosen here. `name` stands before all names.
  cx.pair = (change, steps = true, name = "") => {
    let now = null;
    const chosen = part => now && change({l: now.v.l + 1, m: now.v.m + 1, ...part});
    const first = cx.stepper("Block l", l => chosen({l}));
    const second = cx.stepper("Block l′", m => chosen({m}));
    const swap = make("button.swap", {type: "button", "aria-label": "swap the two blocks",
      onclick: () => now && change({l: now.v.m + 1, m: now.v.l + 1})}, "⇄");
    const steppers = steps ? [make("div.steppers", {}, first.box, second.box, swap)] : [];
    const numbers = make("div.numbers"), spoken = make("p.spoken", {role: "status"}), missing = make("p.note");
    const figures = [0, 1, 2, 3].map(() => {
      const canvas = make("canvas", {role: "img", "aria-label": "Coupling matrix"}), title = make("figcaption");
      return {canvas, title, box: make("figure", {}, title, canvas)};
    });
    const squares = make("div.squares", {}, ...figures.map(f => f.box));
    const entry = make("p.note.entry"), plot = make("div.plot", {role: "region", "aria-label": `${name}Singular values`});
    const entries = cx.folded("The entries of |A| as a table", `${name}Entries of the matrix`, () => {
      const {v, data} = now;
      const caption = `|A| of the Jacobian of block ${v.l + 1} and the vectors of block ${v.m + 1}. Rows: left vectors. Columns: right vectors.`;
      return data.hasMatrices(v) ? cx.table(data.matrix(v, v.l, v.m), data.k, caption, 2) : [];
    });
    const box = make("section.pair", {role: "region", "aria-label": `${name}The chosen pair`}, ...steppers, numbers, spoken, missing, squares, entry, entries.box);

    // `of` says whose pair it is, where it is not the only one.
    function show(v, data, colours, aloud, {ink: most, tall} = cx.scales(v, data), of = "") {
      now = {v, data};
      const {l, m} = v, reading = data.readings[v.reading], n = data.blocks, values = data.map(v), chance = data.chance(v);
      first.show(l + 1, n);
      second.show(m + 1, n);
      const line = (a, b) => make("tr", {},
        make("th", {scope: "row"}, `Jacobian of ${a + 1}, vectors of ${b + 1}`),
        make("td", {}, values[a * n + b].toFixed(3)), make("td", {}, chance ? chance[a].toFixed(3) : "not in the file"));
      const head = ["", reading.label.toLowerCase(), "by chance"].map(text =>
        text ? make("th", {scope: "col"}, text) : make("td"));
      numbers.replaceChildren(make("table", {},
        make("caption", {}, (l === m ? `Block ${l + 1} with itself: diagonal by construction` : `Blocks ${l + 1} and ${m + 1}`) + of),
        make("thead", {}, make("tr", {}, ...head)),
        make("tbody", {}, line(l, m), ...(l === m ? [] : [line(m, l)]))));
      if (aloud)
        spoken.textContent = `Blocks ${l + 1} and ${m + 1}: ${values[l * n + m].toFixed(3)}, the other way round ${values[m * n + l].toFixed(3)}`;

      const kept = data.hasMatrices(v), {text} = data.prompts[0];
      missing.textContent = !kept
        ? !(data.kept?.length ?? 1) ? "The file holds no matrices."
          : data.kept.includes(v.shown) ? "The matrices of this pair were not kept: they are not measured here."
            : `The matrices of this model are kept for the first prompt only. Choose “${text}” to see them.`
        : v.prompt < 0 ? `Matrices are of one prompt, the first, at its last token: “${text}”` : "";
      for (const part of [squares, entry, plot, entries.box]) part.hidden = !kept;
      if (!kept) return;
      const sets = matrices(v, data);
      sets.forEach((set, k) => square(figures[k], set, most, data.k, colours));
      figures.forEach((figure, k) => { figure.box.hidden = k >= (l === m ? sets.length / 2 : sets.length); });
      entry.textContent = `|A| / σ₁ of the Jacobian, one scale for all: no ink is 0, full ink is ${most.toFixed(2)}. `
        + "Percentages are shares of the squared entries.";
      plot.replaceChildren(curves(v, data, colours, tall * 1.04, of));
      entries.update();
    }

    function square({canvas, title, box}, {a, b, values, random}, most, k, colours) {
      canvas.width = canvas.height = k;
      const ink = canvas.getContext("2d");
      values.forEach((x, at) => {
        ink.fillStyle = cx.shade(colours, x / most);
        ink.fillRect(at % k, Math.floor(at / k), 1, 1);
      });
      const share = Math.round(100 * (Math.hypot(...diagonal(values, k)) / Math.hypot(...values)) ** 2);
      title.textContent = `${random ? `By chance, spectrum of ${a + 1}` : `Jacobian ${a + 1}, vectors ${b + 1}`}: ${share} % on the diagonal`;
      canvas.setAttribute("aria-label", `${random ? "A draw by chance with the singular values of" : "Coupling matrix: Jacobian of"} block ${a + 1}`
        + `${random ? "" : `, vectors of block ${b + 1}`}, ${k} by ${k}; ${share} % of its square lies on the diagonal`);
      box.dataset.share = share;
      canvas.onpointermove = event => {
        const at = part => clamp(Math.floor(part * k), 0, k - 1);
        const i = at(event.offsetY / canvas.clientHeight), j = at(event.offsetX / canvas.clientWidth);
        entry.textContent = `row ${i + 1}, column ${j + 1}: |a| / σ₁ = ${values[i * k + j].toFixed(3)}`;
      };
    }

    // Singular values of both blocks, and the diagonals of |A|, which reach them where the blocks are coupled.
    function curves(v, data, colours, most, of) {
      const W = 340, H = 210, left = 40, bottom = 34, right = 8, above = 46, k = data.k;
      const lines = [v.l, v.m].map(block => data.singular(v, block));
      const dots = [diagonal(data.matrix(v, v.l, v.m), k), diagonal(data.matrix(v, v.m, v.l), k)];
      const x = i => left + ((i + 0.5) / k) * (W - left - right), y = s => H - bottom - (s / most) * (H - bottom - above);
      const description = `Singular values 1 to ${k}${of}: block ${v.l + 1} from ${lines[0][0].toFixed(2)} to ${lines[0][k - 1].toFixed(2)}, `
        + `block ${v.m + 1} from ${lines[1][0].toFixed(2)} to ${lines[1][k - 1].toFixed(2)}; points: the diagonals of |A|.`;
      const svg = draw("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": description});
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
        const stroke = {stroke: colour, "stroke-width": 2, "stroke-dasharray": which ? "5 3" : "none"};
        svg.append(draw("path", {d: path, fill: "none", ...stroke}));
        const dot = (cx, cy) => svg.append(which
          ? draw("rect", {x: cx - 3.2, y: cy - 3.2, width: 6.4, height: 6.4, fill: colours.page, stroke: colour, "stroke-width": 1.6})
          : draw("circle", {cx, cy, r: 3.4, fill: colour}));
        dots[which].forEach((s, i) => dot(x(i), y(s)));
        const row = 13 + which * 17;
        svg.append(draw("path", {d: `M${left} ${row - 4}h22`, ...stroke}));
        text(left + 28, row, `σᵢ of block ${block}`);
        dot(left + 132, row - 4);
        text(left + 142, row, `|aᵢᵢ|, vectors of block ${across}`);
      });
      return svg;
    }

    return {box, plot, show};
  };
})();
