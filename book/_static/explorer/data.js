/* What the explorer knows of a model, once its arrays are unpacked. All files of the explorer are classic scripts that
   share one global, since browsers refuse modules and `fetch` to pages that were opened from the disk. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});

  const numbers = async packed =>
    Float64Array.from(new Uint16Array(await cx.bytes(packed.numbers)), x => packed.low + packed.step * x);

  /* Arrays have the order state, place (a token of a prompt), block of the Jacobian, block of the vectors, row, column.
     `load(name)` gives matrices of a network, which are read when they are shown: those at the last tokens of prompts
     under its name, those at earlier ones apart. */
  cx.unpacked = async (raw, load) => {
    const n = raw.blocks, size = n * n, entries = raw.k * raw.k;
    // The last token of a prompt is its last place.
    let places = 0;
    const first = raw.prompts.map(prompt => (places += prompt.tokens.length) - prompt.tokens.length);
    const last = raw.prompts.map((prompt, p) => first[p] + prompt.tokens.length - 1);
    const maps = {}, chances = {};
    for (const [name, {pairs, chance}] of Object.entries(raw.readings)) {
      maps[name] = await numbers(pairs);
      chances[name] = new Float32Array(await cx.bytes(chance));
    }
    const values = await numbers(raw.singularValues);
    const levels = async packed => ({scale: await numbers(packed.scale), entries: new Uint8Array(await cx.bytes(packed.entries))});
    const one = (packed, at) =>
      Array.from(packed.entries.subarray(at * entries, (at + 1) * entries), x => x * packed.scale[at]);
    // Of some models the matrices of the middle blocks alone were kept: others have this level.
    const ABSENT = 255, held = {}, isLast = place => last.includes(place);
    const file = v => `${raw.states[v.state].name}${isLast(v.shown) ? "" : "-earlier"}`;
    const at = (v, l) => raw.kept.filter(place => isLast(place) === isLast(v.shown)).indexOf(v.shown) * n + l;
    const map = (v, place) => maps[v.reading].subarray((v.state * places + place) * size, (v.state * places + place + 1) * size);

    return {
      ...raw,
      first,
      async prepare(v) {
        if (!raw.kept.includes(v.shown) || held[file(v)]) return;
        const {matrices, nulls} = await load(file(v));
        held[file(v)] = {matrices: await levels(matrices), nulls: await levels(nulls)};
      },
      // One number per pair, of one place or of the mean over prompts.
      map(v) {
        if (v.place >= 0) return map(v, v.place);
        const mean = new Float64Array(size);
        for (const place of last) map(v, place).forEach((x, pair) => { mean[pair] += x / last.length; });
        return mean;
      },
      // The same by chance, one number per block. All prompts together come before the places.
      chance(v) {
        const from = (v.state * (places + 1) + v.place + 1) * n;
        return chances[v.reading].subarray(from, from + n);
      },
      hasMatrices(v) {
        if (!raw.kept.includes(v.shown)) return false;
        const first = (l, m) => held[file(v)].matrices.entries[(at(v, l) * n + m) * entries];
        return first(v.l, v.m) !== ABSENT && first(v.m, v.l) !== ABSENT;
      },
      matrix: (v, l, m) => one(held[file(v)].matrices, at(v, l) * n + m),
      nothing: (v, l) => one(held[file(v)].nulls, at(v, l)),
      singular(v, l) {
        const from = ((v.state * places + v.shown) * n + l) * raw.k;
        return Array.from(values.subarray(from, from + raw.k));
      },
    };
  };
})();
