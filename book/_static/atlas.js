// The atlas: sorts and filters its table, moves the points of its scatter to other axes, sets two models side by side.
// All numbers stand in the table; coupling by distance in the script of data beside it. The address holds axes and rows.
(function () {
  "use strict";
  const atlas = document.querySelector(".atlas");
  if (!atlas) return;
  const $ = (selector) => atlas.querySelector(selector);
  const heads = [...atlas.querySelectorAll("thead th")], body = $("tbody"), svg = $("svg");
  const away = JSON.parse($('script[type="application/json"]').textContent);
  const points = [...atlas.querySelectorAll(".atlas-point")];
  const rows = [...body.rows].map((row, at) => ({ row, at, point: points[at], name: row.cells[0].textContent, how: row.className }));
  const columns = heads.map((th, at) => ({ at, name: th.dataset.name, label: th.textContent, log: "log" in th.dataset }));
  const numbers = columns.slice(2);
  const value = (row, column) => { const v = row.row.cells[column.at].dataset.value; return v === undefined ? null : +v; };

  // -- a choice with its label; the address may hold another than the usual one
  const asked = () => new URLSearchParams(location.hash.slice(1));
  function choice(label, options, chosen, change, place) {
    const l = document.createElement("label"), select = document.createElement("select");
    l.append(label + " ", select);
    for (const [key, text] of options) select.add(new Option(text, key, false, key === chosen));
    select.addEventListener("change", change);
    place.append(l);
    return select;
  }

  // -- the table: a heading sorts, words and a mark filter
  heads.forEach((th, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...th.childNodes);
    th.append(button);
    button.addEventListener("click", () => {
      const down = th.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (r) => (at < 2 ? r.row.cells[at].textContent : value(r, columns[at]));
      // What has no value stands last, whichever way it is sorted.
      const order = [...rows].sort((a, b) => {
        const [p, q] = [key(a), key(b)];
        if (p === null || q === null) return (p === null) - (q === null);
        return (p < q ? -1 : p > q ? 1 : a.at - b.at) * (down ? -1 : 1);
      });
      body.append(...order.map((r) => r.row));
    });
  });
  const bar = document.createElement("div"), status = document.createElement("p"), search = document.createElement("input");
  bar.className = "atlas-controls";
  status.setAttribute("role", "status");
  search.type = "search";
  const label = document.createElement("label");
  label.append("Name contains ", search);
  bar.append(label);
  const kind = choice("Rows", [["measured", "measured here"], ["digitised", "digitised"], ["all", "all"]], "measured", changed, bar);
  bar.append(status);
  $(".atlas-scroll").before(bar);
  search.addEventListener("input", show);

  // -- the scatter
  const axes = $(".atlas-axes"), options = numbers.map((c) => [c.name, c.label]);
  const x = choice("Across", options, atlas.dataset.x, changed, axes), y = choice("Up", options, atlas.dataset.y, changed, axes);
  const kept = { x, y, rows: kind }, usual = Object.fromEntries(Object.entries(kept).map(([key, s]) => [key, s.value]));
  // As in atlas.py, but narrow on a phone, where words would else be too small.
  const narrow = matchMedia("(max-width: 600px)").matches;
  const size = { width: narrow ? 400 : 720, height: 380, left: 58, top: 12, right: 14, bottom: 46 };
  const box = `0 0 ${size.width} ${size.height}`;
  svg.setAttribute("viewBox", box);
  $(".atlas-x-name").setAttribute("x", (size.left + size.width - size.right) / 2);
  function scaleOf(values, log) {
    let low = Math.min(...values), high = Math.max(...values);
    const ticks = [];
    if (log) {
      const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
      low /= 1.15; high *= 1.15;
      for (let e = from; e <= to; e++) for (const m of [1, 2, 5]) if (m * 10 ** e >= low && m * 10 ** e <= high) ticks.push(m * 10 ** e);
      return { ticks, place: (v) => Math.log(v / low) / Math.log(high / low) };
    }
    const span = high - low || 1, power = 10 ** Math.floor(Math.log10(span / 5));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= span / 5);
    low -= 0.04 * span; high += 0.04 * span;
    for (let n = Math.ceil(low / step); n <= Math.floor(high / step); n++) ticks.push(n * step);
    return { ticks, place: (v) => (v - low) / (high - low) };
  }
  const across = (share) => size.left + share * (size.width - size.left - size.right);
  const up = (share) => size.height - size.bottom - share * (size.height - size.top - size.bottom);
  const written = (tick) => String(+tick.toPrecision(6));
  const line = (x1, y1, x2, y2) => `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;
  const text = (tx, ty, anchor, words) => `<text x="${tx}" y="${ty}" text-anchor="${anchor}">${words}</text>`;
  function gridX(scale) {
    return scale.ticks.map((t) => [t, across(scale.place(t))]).map(([t, at]) =>
      line(at, size.top, at, size.height - size.bottom) + text(at, size.height - size.bottom + 18, "middle", written(t))).join("");
  }
  function gridY(scale) {
    return scale.ticks.map((t) => [t, up(scale.place(t))]).map(([t, at]) =>
      line(size.left, at, size.width - size.right, at) + text(size.left - 8, at + 4, "end", written(t))).join("");
  }
  function changed() {
    const changes = Object.entries(kept).filter(([key, s]) => s.value !== usual[key]).map(([key, s]) => [key, s.value]);
    history.replaceState(null, "", `#${new URLSearchParams(changes)}`);
    show();
  }
  function follow() {
    for (const [key, select] of Object.entries(kept)) {
      select.value = asked().get(key) ?? usual[key];
      if (select.selectedIndex < 0) select.value = usual[key];
    }
    show();
  }
  addEventListener("hashchange", follow);
  function show() {
    const words = search.value.trim().toLowerCase();
    const [cx, cy] = [x, y].map((s) => columns.find((c) => c.name === s.value));
    for (const r of rows) {
      r.row.hidden = !r.name.toLowerCase().includes(words) || (kind.value !== "all" && r.how !== kind.value);
      r.there = !r.row.hidden && value(r, cx) !== null && value(r, cy) !== null;
      r.point.toggleAttribute("hidden", !r.there);
    }
    const left = rows.filter((r) => !r.row.hidden).length, there = rows.filter((r) => r.there);
    status.textContent = `${left} of ${rows.length} models in the table, ${there.length} in the figure`;
    $(".atlas-x-name").textContent = cx.label;
    $(".atlas-y-name").textContent = cy.label;
    if (!there.length) { $(".atlas-x").innerHTML = $(".atlas-y").innerHTML = ""; return; }
    const sx = scaleOf(there.map((r) => value(r, cx)), cx.log), sy = scaleOf(there.map((r) => value(r, cy)), cy.log);
    $(".atlas-x").innerHTML = gridX(sx);
    $(".atlas-y").innerHTML = gridY(sy);
    for (const r of there) r.point.setAttribute("transform", `translate(${across(sx.place(value(r, cx)))} ${up(sy.place(value(r, cy)))})`);
  }

  // -- two models side by side
  const two = $(".atlas-two"), models = rows.map((r) => [r.name + "|" + r.how, `${r.name} (${r.how})`]);
  two.innerHTML = '<h2 id="two-models">Two models side by side</h2><div class="atlas-controls"></div><div class="atlas-pair"></div>';
  const named = (start) => (models.find(([, text]) => text.startsWith(start)) || models[0])[0];
  const first = choice("First", models, named("nano-neox-step10000"), pair, two.children[1]);
  const second = choice("Second", models, named("smollm2-135m ("), pair, two.children[1]);
  const cut = (s) => s.value.split("|");
  function curve(name, kind) {
    const steps = away[name];
    if (!steps) return "";
    const place = (v, at) => `${across(steps.length > 1 ? at / (steps.length - 1) : 0)},${up(Math.max(0, v) / top)}`;
    return `<polyline class="${kind}" points="${steps.map(place).join(" ")}"/>`;
  }
  let top = 1;
  function pair() {
    const chosen = [first, second].map((s) => rows[s.selectedIndex]);
    const lines = columns.slice(1).map((c) => `<tr><th scope="row">${c.label}</th>${chosen.map((r) => `<td>${r.row.cells[c.at].innerHTML || "–"}</td>`).join("")}</tr>`);
    const known = [first, second].map((s) => cut(s)).map(([name, how]) => (how === "measured" ? name : ""));
    top = 1.1 * Math.max(0.1, ...known.flatMap((name) => away[name] || []));
    const scale = { place: (v) => v / top, ticks: scaleOf([0, top], false).ticks.filter((t) => t >= 0 && t <= top) };
    const curves = curve(known[0], "first") + curve(known[1], "second");
    const figure = curves && `<figure class="atlas-figure"><svg viewBox="${box}" role="img" aria-label="Coupling against the distance between blocks, of the chosen models"><g class="atlas-y">${gridY(scale)}</g>${curves}` +
      text(across(0), size.height - 22, "start", "neighbours") + text(across(1), size.height - 22, "end", "first and last block") +
      '</svg><figcaption>Coupling of whole Jacobians against the distance between blocks. Solid: the first model. Dashed: the second. A digitised model has no line.</figcaption></figure>';
    two.lastElementChild.innerHTML = `<table><caption>The chosen models in numbers</caption><thead><tr><td></td>${chosen.map((r) => `<th scope="col">${r.name}</th>`).join("")}</tr></thead><tbody>${lines.join("")}</tbody></table>${figure}`;
  }
  pair();
  follow();
})();
