/* A measurement of one's own: what `json.dumps(measured.to_dict())` writes of a data set of `cl.measure_depth` is
   opened from the disk, checked, and given the form of the explorer's data. It is sent nowhere. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});
  const {make} = cx;

  const WRITE = "write json.dumps(measured.to_dict()), where measured is what cl.measure_depth gave";
  const MOST_BLOCKS = 200, MOST_BYTES = 2e8, PREFERRED_K = 10;
  const some = words => words.slice(0, 4).join(", ") + (words.length > 4 ? ", …" : "") || "nothing";

  // One array of the file with its dimensions; `last` are those that it must end in, `rest` those it may have before.
  function array(held, name, rest, last) {
    const {dims, data} = held[name], refuse = (seen, expected) => { throw new Error(`${name} has ${seen}; expected ${expected}`); };
    const known = Array.isArray(dims) && last.every((d, at) => dims.at(at - last.length) === d)
      && dims.slice(0, -last.length).every(d => rest.includes(d));
    if (!known) refuse(`the dimensions (${[dims].flat().join(", ")})`, `(${[...rest, ...last].join(", ")})`);
    const shape = [];
    for (let part = data; Array.isArray(part); [part] = part) shape.push(part.length);
    const flat = [data].flat(Infinity), count = shape.reduce((a, b) => a * b, 1);
    if (shape.length !== dims.length || flat.length !== count) refuse(`${flat.length} numbers in ${shape.length} dimensions`, `${count} in ${dims.length}`);
    const odd = flat.find(x => typeof x !== "number");
    if (odd !== undefined) refuse(`the value ${JSON.stringify(odd)}`, "numbers alone");
    const size = name => (dims.includes(name) ? shape[dims.indexOf(name)] : 1);
    return {flat, size, of: dims};
  }

  // Gives each part that the file has in the form of `cx.unpacked`.
  cx.own = (text, settings) => {
    let file;
    try {
      file = JSON.parse(text);
    } catch (error) {
      throw new Error(`it is no JSON (${error.message.replace(/, ".*| in JSON.*/s, "")}); expected JSON without NaN`);
    }
    const held = file?.data_vars;
    if (!held || !file.coords) throw new Error(`it holds ${some(Object.keys(file ?? {}))}; expected data_vars and coords`);
    const readings = Object.entries(settings.readings), names = readings.map(([, {variant}]) => variant);
    const variant = key => settings.readings[key].variant;
    if (!names.some(name => held[name])) throw new Error(`its variables are ${some(Object.keys(held))}; expected one of ${names.join(", ")}`);
    const ks = [file.coords.k?.data ?? file.attrs?.k ?? PREFERRED_K].flat(), at = Math.max(0, ks.indexOf(PREFERRED_K)), k = ks[at];
    const maps = {}, n = array(held, names.find(name => held[name]), ["prompt", "k"], ["block_1", "block_2"]).size("block_1");
    const parts = settings.parts.map(([part]) => part).filter((part, p) => p === 0 || names.some(name => held[`${part}_${name}`]));
    const prefix = part => (part === parts[0] ? "" : `${part}_`);
    let prompts = 1;
    for (const part of parts) for (const name of names) {
      const full = prefix(part) + name;
      if (!held[full]) continue;
      const {flat, size, of} = array(held, full, ["prompt", "k"], ["block_1", "block_2"]);
      if (size("block_1") !== n || size("block_2") !== n || n < 2 || n > MOST_BLOCKS)
        throw new Error(`${full} has ${size("block_1")} × ${size("block_2")} blocks; expected as many as ${n} both ways, from 2 to ${MOST_BLOCKS}`);
      prompts = size("prompt");
      const [byPrompt, byK] = of.indexOf("k") < of.indexOf("prompt") ? [1, prompts] : [size("k"), 1];
      maps[full] = Array.from({length: prompts}, (_, p) => {
        const from = (p * byPrompt + Math.min(at, size("k") - 1) * byK) * n * n;
        return Float64Array.from(flat.slice(from, from + n * n), x => 1 - x);
      });
    }
    const texts = [file.coords.prompt?.data ?? "the prompt of the file"].flat().map(String);
    const {attrs = {}} = file, label = `${attrs.model ?? "model"} (your file)`;

    return Object.fromEntries(parts.map(part => {
      const own = name => prefix(part) + name;
      const kept = held[own("matrix")] && held[own("singular_values")] ? [0] : [];
      const A = kept.length && array(held, own("matrix"), [], ["block_1", "block_2", "row", "column"]);
      const S = kept.length && array(held, own("singular_values"), ["prompt"], ["block_1", "rank"]);
      const wide = kept.length && A.size("column");
      if (kept.length && (A.size("block_1") !== n || A.size("row") < k || S.size("rank") < k))
        throw new Error(`${own("matrix")} is ${A.size("row")} × ${wide} for ${A.size("block_1")} blocks; expected at least ${k} × ${k} for ${n}`);
      return [part, {
        name: "own", label, blocks: n, k, kept, opens: 0, first: texts.map((_, p) => p), token: `position ${attrs.token ?? "not said"}`,
        states: [{name: "measured", label: attrs.untrained ? "untrained" : String(attrs.revision || "as measured")}],
        prompts: texts.slice(0, prompts).map(name => ({name, text: name, tokens: [0]})),
        part: {name: part, label: settings.parts.find(([key]) => key === part)[1]},
        readings: Object.fromEntries(readings.filter(([, {variant}]) => maps[own(variant)])),
        provenance: `${["measure", "model", "revision", "precision", "versions"].map(key => attrs[key]).filter(Boolean).join(" | ")} | K = ${k} | opened from a file`,
        prepare: async () => {},
        map(v) {
          const all = maps[own(variant(v.reading))], several = v.place >= 0 ? [all[v.place]] : all;
          return several[0].map((_, pair) => several.reduce((sum, map) => sum + map[pair], 0) / several.length);
        },
        // K alone decides it, but for the other readings the spectrum does as well, and the file has no draws.
        chance: v => v.reading === readings[0][0] && settings.chance[k - 1] !== undefined ? new Array(n).fill(settings.chance[k - 1]) : null,
        hasMatrices: v => kept.includes(v.shown),
        matrix: (_, l, m) => Array.from({length: k * k}, (_, e) =>
          Math.abs(A.flat[((l * n + m) * A.size("row") + Math.floor(e / k)) * wide + (e % k)])),
        singular: (_, l) => S.flat.slice(l * S.size("rank"), l * S.size("rank") + k),
      }];
    }));
  };

  // The element by which a file is opened: by its button, or dropped anywhere on the explorer. `opened` is given the parts.
  cx.opener = (el, settings, opened) => {
    const status = make("p.note", {role: "status"});
    async function take(file) {
      if (!file) return;
      try {
        if (file.size > MOST_BYTES) throw new Error(`it takes ${Math.round(file.size / 1e6)} MB; expected at most ${MOST_BYTES / 1e6}, as with ks=(10,)`);
        opened(cx.own(await file.text(), settings));
        status.textContent = `${file.name} is shown. It stays on this machine.`;
        status.classList.remove("cx-refused");
      } catch (error) {
        status.textContent = `${file.name} was not opened: ${error.message}. What to do: ${WRITE}.`;
        status.classList.add("cx-refused");
      }
    }
    const input = make("input", {type: "file", accept: ".json,application/json", id: "cx-file",
      onchange() { take(input.files[0]); input.value = ""; }});
    const over = on => event => {
      if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
      event.preventDefault();
      el.classList.toggle("cx-over", on);
      if (event.type === "drop") take(event.dataTransfer.files[0]);
    };
    for (const [name, on] of [["dragover", true], ["dragleave", false], ["drop", false]]) el.addEventListener(name, over(on));
    return make("div.own-file", {role: "region", "aria-label": "A measurement of your own"},
      make("label", {htmlFor: input.id}, "Open a measurement of your own (.json), or drop it here"), input, status);
  };
})();
