/* What the explorer knows of a model, once its arrays are unpacked. All files of the explorer are classic scripts that
   share one global, since browsers refuse modules and `fetch` to pages that were opened from the disk. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});

  // Arrays have the order state, place (a token of a prompt), block of the Jacobian, block of the vectors, row, column.
  cx.unpacked = async raw => {
    const n = raw.blocks, size = n * n, entries = raw.k * raw.k;
    // The last token of a prompt is its last place.
    let places = 0;
    const first = raw.prompts.map(prompt => (places += prompt.tokens.length) - prompt.tokens.length);
    const last = raw.prompts.map((prompt, p) => first[p] + prompt.tokens.length - 1);
    const maps = {}, chances = {}, ends = {};
    for (const [name, {pairs, chance, between}] of Object.entries(raw.readings)) {
      maps[name] = Float64Array.from(new Uint16Array(await cx.bytes(pairs.numbers)), x => pairs.low + pairs.step * x);
      chances[name] = new Float32Array(await cx.bytes(chance));
      ends[name] = new Float32Array(await cx.bytes(between));
    }
    const rounded = async packed =>
      ({scale: new Float32Array(await cx.bytes(packed.scale)), entries: new Uint8Array(await cx.bytes(packed.entries))});
    const matrices = await rounded(raw.matrices), nulls = await rounded(raw.nulls);
    const values = new Float32Array(await cx.bytes(raw.singularValues));
    const one = (packed, at) =>
      Array.from(packed.entries.subarray(at * entries, (at + 1) * entries), x => x * packed.scale[at]);
    const at = (v, l) => (v.state * raw.kept.length + raw.kept.indexOf(v.shown)) * n + l;
    const map = (v, place) => maps[v.reading].subarray((v.state * places + place) * size, (v.state * places + place + 1) * size);

    const data = {
      ...raw,
      // One number per pair, of one place or of the mean over prompts.
      map(v) {
        if (v.place >= 0) return map(v, v.place);
        const mean = new Float64Array(size);
        for (const place of last) map(v, place).forEach((x, pair) => { mean[pair] += x / last.length; });
        return mean;
      },
      // The same for random directions, one number per block. All prompts together come before the places.
      chance(v) {
        const from = (v.state * (places + 1) + v.place + 1) * n;
        return chances[v.reading].subarray(from, from + n);
      },
      // The ends of the map's colours: all networks of a model and both parts share them, so that they can be compared.
      ends: v => ends[v.reading].subarray(2 * (v.place + 1), 2 * (v.place + 2)),
      hasMatrices: v => raw.kept.includes(v.shown),
      matrix: (v, l, m) => one(matrices, at(v, l) * n + m),
      nothing: (v, l) => one(nulls, at(v, l)),
      singular(v, l) {
        const from = ((v.state * places + v.shown) * n + l) * raw.k;
        return Array.from(values.subarray(from, from + raw.k));
      },
      // What is chosen, as numbers into the data; what makes no sense becomes what is shown at first.
      view(get) {
        const named = (list, name) => list.findIndex(one => one.name === name);
        const state = named(raw.states, get("state")), prompt = named(raw.prompts, get("prompt"));
        const block = key => Math.min(n, Math.max(1, Math.round(+get(key)) || 1)) - 1;
        const tokens = raw.prompts[Math.max(0, prompt)].tokens, position = get("token");
        const found = prompt < 0 || position === "" ? -1 : tokens.indexOf(+position);
        const token = found < 0 ? tokens.length - 1 : found, shown = first[Math.max(0, prompt)] + token;
        return {
          state: state < 0 ? raw.states.length - 1 : state,
          reading: raw.readings[get("reading")] ? get("reading") : Object.keys(raw.readings)[0],
          prompt, token, shown, place: prompt < 0 ? -1 : shown, l: block("l"), m: block("m"),
        };
      },
    };
    return data;
  };
})();
