// Makes the pictures of the front page's answer one that moves: a slider over training steps, and a choice of reading.
(function () {
  "use strict";
  const place = document.getElementById("answer");
  if (!place) return;
  const { steps, loss, readings } = JSON.parse(place.querySelector("script").textContent);
  const still = place.querySelector("figure");
  const SVG = "http://www.w3.org/2000/svg", W = 640, H = 340, LEFT = 52, RIGHT = 12, TOP = 12, BOTTOM = 44;
  const all = Object.values(readings).flatMap(({ coupling }) => coupling.flat());
  const x = scale(Math.min(0, ...all), Math.max(...all), LEFT, W - RIGHT);
  const y = scale(Math.min(...loss.flat()), Math.max(...loss.flat()), TOP, H - BOTTOM);

  function scale(low, high, from, to) {
    const pad = 0.04 * (high - low);
    return (value) => from + ((value - low + pad) / (high - low + 2 * pad)) * (to - from);
  }

  function element(name, attributes, parent, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function line(xs, ys) {
    const mean = (values) => values.reduce((a, b) => a + b) / values.length;
    const mx = mean(xs), my = mean(ys);
    const slope = mean(xs.map((v, i) => (v - mx) * (ys[i] - my))) / mean(xs.map((v) => (v - mx) ** 2));
    return [Math.min(...xs), Math.max(...xs)].map((v) => [v, my + slope * (v - mx)]);
  }

  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
  const figure = document.createElement("figure");
  figure.className = "answer-figure";
  const svg = element("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-labelledby": "answer-said" }, figure);
  for (const value of [0, 0.1, 0.2, 0.3, 0.4, 0.5].filter((v) => v <= Math.max(...all))) {
    element("line", { x1: x(value), x2: x(value), y1: TOP, y2: H - BOTTOM, class: "grid" }, svg);
    element("text", { x: x(value), y: H - BOTTOM + 16, "text-anchor": "middle" }, svg, value);
  }
  for (const value of [5, 5.5, 6, 6.5, 7]) {
    element("line", { x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value), class: "grid" }, svg);
    element("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, svg, value.toFixed(1));
  }
  element("text", { x: (LEFT + W - RIGHT) / 2, y: H - 8, "text-anchor": "middle" }, svg, "coupling (0: random directions, 1: perfect)");
  element("text", { x: 14, y: (H - BOTTOM) / 2, "text-anchor": "middle", class: "upright", transform: `rotate(-90 14 ${(H - BOTTOM) / 2})` }, svg, "loss, better models up");
  const ghosts = loss.flat().map(() => element("circle", { r: 2.5, class: "ghost" }, svg));
  const dots = loss[0].map(() => element("circle", { r: 5, class: "model" }, svg));
  const fit = element("line", { class: "fit" }, svg);
  const said = document.createElement("p");
  said.id = "answer-said";
  said.setAttribute("role", "status");
  const controls = document.createElement("div");
  controls.className = "answer-controls";
  controls.innerHTML =
    `<label>Training step <input type="range" min="0" max="${steps.length - 1}" step="1" list="answer-steps"></label>` +
    `<label>Coupling of <select>${Object.keys(readings).map((name) => `<option>${name}</option>`).join("")}</select></label>` +
    `<datalist id="answer-steps">${steps.map((step, at) => `<option value="${at}" label="${step}"></option>`).join("")}</datalist>`;
  const slider = controls.querySelector("input"), choice = controls.querySelector("select");
  slider.value = steps.length - 1;
  figure.prepend(controls, said);
  const caption = document.createElement("figcaption");
  caption.textContent = `Each dot is one of ${loss[0].length} small models that were trained alike but for size and settings, at the same step. Better models stand higher. The line is the best straight fit; pale dots are the other steps. `;
  caption.prepend(still.querySelector(".tbc-number") ?? "", " ");
  caption.append(still.querySelector(".tbc-links"));
  figure.append(caption);

  let shown = null, frame = 0;
  function draw(now) {
    dots.forEach((dot, i) => { dot.setAttribute("cx", x(now.xs[i])); dot.setAttribute("cy", y(now.ys[i])); });
    const [[x1, y1], [x2, y2]] = line(now.xs, now.ys);
    for (const [key, value] of Object.entries({ x1: x(x1), y1: y(y1), x2: x(x2), y2: y(y2) })) fit.setAttribute(key, value);
    shown = now;
  }
  function move(animate) {
    const at = Number(slider.value), { coupling, r } = readings[choice.value];
    const wanted = { xs: coupling[at], ys: loss[at] }, from = shown, start = performance.now();
    const [value, low, high] = r[at], places = coupling.flat();
    loss.flat().forEach((value, i) => { ghosts[i].setAttribute("cx", x(places[i])); ghosts[i].setAttribute("cy", y(value)); });
    slider.setAttribute("aria-valuetext", `step ${steps[at]}`);
    const sure = low > 0 ? "the more coupled model is the better one" : high < 0 ? "the more coupled model is the worse one" : "no relation is shown";
    said.innerHTML = `<span>Step <b>${steps[at]}</b>:</span> <span>r = <b>${signed(value)}</b> (${signed(low)} to ${signed(high)}),</span> <span>${sure}</span>`;
    cancelAnimationFrame(frame);
    if (!animate || !from || matchMedia("(prefers-reduced-motion: reduce)").matches) return draw(wanted);
    const between = (a, b, share) => a.map((value, i) => value + share * (b[i] - value));
    (function tick(time) {
      const share = Math.min(1, Math.max(0, (time - start) / 450)), eased = share * (2 - share);
      draw({ xs: between(from.xs, wanted.xs, eased), ys: between(from.ys, wanted.ys, eased) });
      if (share < 1) frame = requestAnimationFrame(tick);
    })(start);
  }
  slider.addEventListener("input", () => move(true));
  choice.addEventListener("change", () => move(true));
  move(false);
  still.hidden = true;
  still.after(figure);
  place.dataset.ready = "yes";
})();
