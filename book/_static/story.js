// Makes the stills of the front page's story one figure that moves with the reader: by scrolling, by keys, or by itself.
(function () {
  "use strict";
  const story = document.getElementById("story");
  if (!story) return;
  const data = JSON.parse(story.querySelector('script[type="application/json"]').textContent);
  const stops = [...story.querySelectorAll(".story-stop")], last = stops.length - 1, acts = data.stops.length;
  const still = story.querySelector("figure"), calm = matchMedia("(prefers-reduced-motion: reduce)");
  const GAP = 14, HEAD = 22, PLAY = 1700; // pixels, pixels, milliseconds a stop

  // -- what the reader has in hand

  const stage = document.createElement("figure");
  stage.className = "story-stage";
  stage.innerHTML =
    `<div class="story-controls"><button type="button">Play</button><label>Moment <input type="range" min="0" max="${last}" step="1" value="0"></label></div>` +
    '<canvas role="img"></canvas><figcaption></figcaption>';
  const button = stage.querySelector("button"), slider = stage.querySelector("input");
  const canvas = stage.querySelector("canvas"), pen = canvas.getContext("2d");
  stage.querySelector("figcaption").append(still.querySelector(".tbc-number") ?? "", " ", still.querySelector(".tbc-links") ?? "");
  story.prepend(stage);
  still.hidden = true;
  story.dataset.ready = "yes";

  // -- drawing

  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const mix = (a, b, share) => a + share * (b - a);
  const smooth = (share) => share * share * (3 - 2 * share);
  const colours = () => data[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
  const grid = document.createElement("canvas"), gridPen = grid.getContext("2d");
  let wide = 0, high = 0, phone = false;

  function measure() {
    wide = stage.clientWidth;
    phone = wide < 560;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    // On a phone the curves stand below both squares; else beside them.
    const square = phone ? (wide - GAP) / 2 : (wide - 2 * GAP) * 0.3;
    high = Math.round(phone ? square + HEAD + 150 : square + HEAD);
    canvas.style.height = `${high}px`;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = `${phone ? 13 : 14}px system-ui, sans-serif`;
  }

  // A matrix, row after row, a pixel for each entry, enlarged without smoothing.
  function squares(values, top, x, y, size) {
    const side = Math.round(Math.sqrt(values.length)), { ink, mask } = colours();
    const blank = [1, 3, 5].map((at) => parseInt(mask.slice(at, at + 2), 16));
    grid.width = grid.height = side;
    const image = gridPen.createImageData(side, side);
    values.forEach((value, at) => {
      const colour = value === null ? blank : ink[Math.round(clamp(value / top, 0, 1) * (ink.length - 1))];
      image.data.set([...colour, 255], 4 * at);
    });
    gridPen.putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(grid, x, y, size, size);
  }

  function write(text, x, y, align = "center", most = wide) {
    pen.fillStyle = colours().text;
    pen.textAlign = align;
    pen.fillText(text, x, y, most);
  }

  function path(points, colour, dashes = []) {
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.setLineDash(dashes);
    pen.beginPath();
    points.forEach(([x, y], at) => (at ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
    pen.setLineDash([]);
  }

  function dot(x, y, colour, size) {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(x, y, size, 0, 7);
    pen.fill();
  }

  // A quantity against the step, with a dot at the moment.
  function curve(name, values, moment, colour, left, top, width, height, chance) {
    const low = chance === undefined ? Math.min(...values) : 0, most = Math.max(...values);
    const x = (place) => left + 6 + place * (width - 14), y = (value) => top + height - ((value - low) / (most - low)) * height;
    path([[left, top + height + 6], [left + width, top + height + 6]], colours().faint);
    if (chance !== undefined) path([[left, y(chance)], [left + width, y(chance)]], colours().null, [6, 4]);
    path(values.map((value, at) => [x(data.places[at]), y(value)]), colour);
    const before = Math.floor(moment), after = Math.min(before + 1, values.length - 1), share = moment - before;
    const now = mix(values[before], values[after], share);
    dot(x(mix(data.places[before], data.places[after], share)), y(now), colour, 6);
    write(`${name} ${now.toFixed(2)}`, left + width, top + (chance === undefined ? 8 : 12), "right");
    return x;
  }

  function training(moment) {
    const before = Math.floor(moment), after = Math.min(before + 1, data.steps.length - 1), share = moment - before;
    const between = (all) => all[before].map((value, at) => (value === null ? null : mix(value, all[after][at], share)));
    const square = high - HEAD - (phone ? 150 : 0), second = square + GAP;
    const step = share ? "" : ` at step ${data.steps[before].toLocaleString("en")}`;
    write(`Coupling${step}`, square / 2, 15, "center", square);
    write(`|A| of blocks ${data.pair.join(" and ")}`, second + square / 2, 15, "center", square);
    squares(between(data.maps), data.top, 0, HEAD, square);
    squares(between(data.matrices), 1, second, HEAD, square);
    const left = phone ? 0 : 2 * second + 8, top = phone ? square + HEAD + 16 : HEAD;
    const width = wide - left - 4, height = phone ? 40 : square / 2 - 34;
    curve("coupling", data.coupling, moment, colours().trained, left, top, width, height, data.chance);
    const x = curve("loss", data.loss, moment, colours().text, left, top + height + (phone ? 22 : 34), width, height);
    data.stops.forEach((at) => write(data.steps[at] < 1000 ? data.steps[at] : `${data.steps[at] / 1000}k`, x(data.places[at]), high - 2));
  }

  // On a phone two in a row.
  function decoders() {
    const columns = phone ? 2 : data.decoders.length, size = (wide - (columns - 1) * GAP) / columns;
    const row = high / Math.ceil(data.decoders.length / columns), side = Math.min(size, row - HEAD);
    data.decoders.forEach(({ name, map }, at) => {
      const centre = size / 2 + (at % columns) * (size + GAP), top = HEAD + Math.floor(at / columns) * row;
      write(name, centre, top - 7, "center", size);
      squares(map, data.top, centre - side / 2, top, side);
    });
  }

  function paper() {
    const left = 48, bottom = high - 36, widths = data.curve.map(([x]) => x), all = [...data.points, ...data.curve].map(([, y]) => y);
    const scale = (values, from, to) => {
      const low = Math.min(...values), most = Math.max(...values);
      return (value) => mix(from, to, (value - low) / (most - low));
    };
    const x = scale(widths, left + 10, wide - 10), y = scale(all, bottom - 8, 12);
    path([[left, 4], [left, bottom], [wide, bottom]], colours().faint);
    [1000, 2000, 3000, 4000, 5000].forEach((value) => write(value, x(value), bottom + 16));
    [0.9, 0.92, 0.94].forEach((value) => write(value.toFixed(2), left - 6, y(value) + 4, "right"));
    write("width of the model", (left + wide) / 2, high - 3);
    write("the paper's coupling", left + 10, 16, "left");
    path(data.curve.map(([a, b]) => [x(a), y(b)]), colours().null, [6, 4]);
    data.points.forEach(([a, b]) => dot(x(a), y(b), colours().trained, 5));
    write("dashed: blocks that share nothing, flat spectrum", wide - 6, bottom - 14, "right");
  }

  // `at` counts stops; the training is drawn between two of its steps, and acts fade into each other.
  function draw(at) {
    const low = Math.floor(at), share = smooth(clamp((at - low - 0.25) / 0.5, 0, 1));
    const scene = (stop) => (stop < acts ? () => training(data.stops[stop]) : stop === acts ? decoders : paper);
    pen.clearRect(0, 0, wide, high);
    if (share > 0 && low + 1 < acts) return training(mix(data.stops[low], data.stops[low + 1], share));
    for (const [stop, alpha] of [[low, 1 - share], [low + 1, share]]) {
      pen.globalAlpha = alpha;
      if (alpha > 0) scene(stop)();
    }
    pen.globalAlpha = 1;
  }

  // -- where the reader is

  // The stop that the page scrolls to is `aimed` at: until it is there, the slider stays where the reader has put it.
  let shown = -1, active = -1, aimed = null, asked = 0, playing = 0;
  const labelOf = (stop) => stops[stop].querySelector(".story-label").textContent;
  // A stop is reached when its middle is in the middle of what is seen below the figure.
  const line = () => (stage.getBoundingClientRect().bottom + innerHeight) / 2;
  const middles = () => stops.map((stop) => { const box = stop.getBoundingClientRect(); return (box.top + box.bottom) / 2; });

  function place() {
    const at = line(), all = middles(), next = all.findIndex((middle) => middle > at);
    if (next === 0) return 0;
    return next < 0 ? last : next - 1 + (at - all[next - 1]) / (all[next] - all[next - 1]);
  }

  function update() {
    asked = 0;
    const at = calm.matches ? Math.round(place()) : place(), near = Math.round(at);
    if (at !== shown) draw((shown = at));
    if (near === active) return;
    active = near;
    stops.forEach((stop, number) => stop.classList.toggle("story-now", number === near));
    canvas.setAttribute("aria-label", labelOf(near));
    if (aimed === near) aimed = null;
    if (aimed === null) showStop(near);
  }

  function showStop(stop) {
    slider.value = stop;
    slider.setAttribute("aria-valuetext", labelOf(stop));
  }

  function soon() {
    asked ||= requestAnimationFrame(update);
  }

  function renew() {
    measure();
    shown = -1;
    soon();
  }

  // The figure is stuck to the top when a stop is reached, so that the line is where it will be then.
  function go(to) {
    const next = clamp(to, 0, last), stuck = parseFloat(getComputedStyle(stage).top) + stage.offsetHeight;
    const top = scrollY + middles()[next] - (stuck + innerHeight) / 2;
    aimed = next === active ? null : next;
    showStop(next);
    scrollTo({ top: Math.ceil(top), behavior: calm.matches ? "instant" : "smooth" });
  }

  // -- what moves it

  function stop() {
    clearInterval(playing);
    playing = 0;
    button.textContent = "Play";
  }

  function play() {
    let to = active === last ? 0 : active;
    button.textContent = "Pause";
    go(to);
    playing = setInterval(() => (to < last ? go(++to) : stop()), PLAY);
  }

  function takeOver() {
    aimed = null;
    if (playing) stop();
  }

  button.addEventListener("click", () => (playing ? stop() : play()));
  slider.addEventListener("input", () => { const to = Number(slider.value); stop(); go(to); });
  ["wheel", "touchmove"].forEach((kind) => addEventListener(kind, takeOver, { passive: true }));
  addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], box = stage.getBoundingClientRect();
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.target.closest?.("input, select, textarea, [role=tab], [tabindex]")) return;
    if (box.top > innerHeight / 2 || box.bottom < 0) return;
    event.preventDefault();
    stop();
    go((aimed ?? active) + by);
  });
  addEventListener("scroll", soon, { passive: true });
  new ResizeObserver(renew).observe(stage);
  new MutationObserver(renew).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  calm.addEventListener("change", soon);
  measure();
  update();
})();
