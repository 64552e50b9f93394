/* The map of all pairs: its colours, and how a pair is chosen on it by keys and by pointer. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});
  const {make, clamp, mean} = cx;

  const KEYS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
    PageUp: [-5, 0], PageDown: [5, 0], Home: [0, -Infinity], End: [0, Infinity]};

  // The colours run from 0 to 1 for every model, so that maps of different models can be compared.
  // `choose(l, m)` is called with a pair, counted from 0; `name` stands before the names of a map that is not alone.
  cx.map = (choose, name = "") => {
    const grid = make("div.grid", {role: "grid", "aria-label": `${name}Map of the coupling of all pairs of blocks`});
    const top = make("div.ticks.top", {"aria-hidden": "true"}), side = make("div.ticks.side", {"aria-hidden": "true"});
    const bar = make("canvas", {height: 1, "aria-hidden": "true"}), mark = make("span.mark");
    const caption = make("p.note"), here = make("p.here");
    const box = make("section.map", {role: "region", "aria-label": `${name}Map`}, here,
      make("div.axis", {}, "vectors of block ", make("i", {}, "l′"), " →"),
      make("div.frame", {}, make("div.axis.down", {}, "Jacobian of block ", make("i", {}, "l"), " →"), top, side, grid),
      make("div.bar", {}, bar, mark), make("div.ends", {}, make("span", {}, "0"), make("span", {}, "more coupling → 1")), caption);
    let cells = [], n = 0, at = {l: 0, m: 0}, describe = () => {};

    function build() {
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

    // Asked for before its numbers are there, the map takes the focus when they come.
    let awaited = false;
    function focus() {
      awaited = !n;
      if (n) cells[at.l * n + at.m].focus();
    }

    // Where the chosen pair is not `paired` in these data, none is marked.
    function show(v, data, colours, paired = true) {
      const values = data.map(v);
      at = v;
      if (n !== data.blocks) { n = data.blocks; build(); }
      cells.forEach((cell, pair) => {
        const l = Math.floor(pair / n), m = pair % n, here = l === v.l && m === v.m, chosen = paired && here;
        cell.style.backgroundColor = l === m ? colours.mask : cx.shade(colours, values[pair]);
        cell.setAttribute("aria-label", `Jacobian of block ${l + 1}, vectors of block ${m + 1}: ${values[pair].toFixed(3)}`);
        cell.setAttribute("aria-selected", chosen);
        cell.classList.toggle("cx-reverse", paired && l === v.m && m === v.l && l !== m);
        cell.tabIndex = here ? 0 : -1;
      });
      if (awaited) focus();
      const chances = data.chance(v), chance = chances && mean(chances), {label} = data.readings[v.reading];
      describe = (l, m) => {
        here.textContent = l === m ? `Block ${l + 1} with itself: coupled by construction` : `Blocks ${l + 1} and ${m + 1}: `
          + `${label.toLowerCase()} ${values[l * n + m].toFixed(3)}${chances ? `, by chance ${chances[l].toFixed(3)}` : ""}`;
      };
      describe(v.l, v.m);
      bar.width = colours.ink.length;
      const ink = bar.getContext("2d");
      colours.ink.forEach((c, x) => { ink.fillStyle = c; ink.fillRect(x, 0, 1, 1); });
      mark.hidden = !chances;
      mark.style.left = `${100 * chance}%`;
      const others = Array.from(values).filter((_, pair) => pair % (n + 1));
      caption.textContent = `${[label, data.part?.label].filter(Boolean).join(", ")}: mean of all pairs ${mean(others).toFixed(3)}`
        + `${chances ? `, by chance ${chance.toFixed(3)} (the mark)` : ""}. Grey: a block with itself. Dashed: the pair the other way round.`;
    }

    grid.addEventListener("keydown", event => {
      const move = KEYS[event.key];
      if (!move || !n || event.altKey || event.metaKey) return;
      event.preventDefault();
      const [down, right] = event.ctrlKey && !move[0] ? [move[1], move[1]] : move;
      const l = clamp(at.l + down, 0, n - 1), m = clamp(at.m + right, 0, n - 1);
      choose(l, m);
      cells[l * n + m].focus();
    });

    const under = event => {
      const box = grid.getBoundingClientRect(), part = share => clamp(Math.floor(share * n), 0, n - 1);
      return [part((event.clientY - box.top) / box.height), part((event.clientX - box.left) / box.width)];
    };
    const pointed = event => {
      const [l, m] = under(event);
      if (l !== at.l || m !== at.m) choose(l, m);
      cells[l * n + m].focus({preventScroll: true});
    };
    grid.addEventListener("pointerdown", event => {
      if (!n || event.button) return;
      event.preventDefault();
      // A mouse or a pen may be drawn over the map; a finger scrolls the page, and taps.
      if (event.pointerType !== "touch") grid.setPointerCapture(event.pointerId);
      pointed(event);
    });
    grid.addEventListener("pointermove", event => {
      if (!n || event.pointerType === "touch") return;
      event.buttons === 1 ? pointed(event) : describe(...under(event));
    });
    grid.addEventListener("pointerleave", () => { if (n) describe(at.l, at.m); });

    // A cell of the map says its number by itself when it is moved to.
    return {box, show, focus, speaks: () => grid.contains(document.activeElement)};
  };
})();
