/* What is chosen, as far as a model has it. What it has not is replaced, and named in one line; nothing is changed in
   silence. */
(() => {
  "use strict";
  const cx = (window.couplingExplorer ??= {});
  const named = (list, name) => list.findIndex(one => one.name === name);

  /* `get` gives the keys of the address as text. `v` holds numbers into `data`; `address` the keys as they are shown,
     with a pair only if the reader chose it; `line` what was asked for and is not there; `paired` whether the pair is.
     `before` is what was shown until now. */
  cx.chosen = (get, data, before, alone = "") => {
    const lacks = [], instead = [], n = data.blocks, {opens} = data, end = data.states.length - 1;
    const lack = (what, shown, value) => { lacks.push(what); instead.push(shown); return value; };
    const asked = key => String(get(key) ?? "");

    const known = {"": opens, untrained: 0, trained: end};
    let state = named(data.states, asked("state"));
    if (state < 0) state = known[asked("state")] ?? lack(`“${asked("state")}”`, data.states[opens].label, opens);
    let prompt = named(data.prompts, asked("prompt"));
    if (prompt < 0 && !["", "mean"].includes(asked("prompt"))) lack(`prompt “${asked("prompt")}”`, "the mean over prompts");
    const {tokens, pieces} = data.prompts[Math.max(0, prompt)], wanted = asked("token"), piece = asked("piece");
    let token = wanted === "" ? -1 : tokens.indexOf(+wanted);
    // Models cut a prompt differently: the same position need not be the same word.
    if (token >= 0 && piece && pieces?.[wanted] !== piece) token = -1;
    if (prompt < 0) token = -1;
    else if (token < 0 && wanted !== "") lack(`token ${piece ? `“${piece.trim()}” at position ` : ""}${wanted} of this prompt`, "its last token");
    const exact = token < 0 ? "" : wanted;
    if (token < 0) token = tokens.length - 1;
    let reading = asked("reading");
    const [usualReading] = Object.keys(data.readings);
    if (!data.readings[reading]) reading = reading ? lack(`reading “${reading}”`, data.readings[usualReading].label, usualReading) : usualReading;

    const pair = ["l", "m"].map(asked), bad = pair.filter(x => x !== "" && !(/^\d+$/.test(x) && +x >= 1 && +x <= n));
    const paired = bad.length === 0, same = before && before.data.name === data.name;
    const shown = data.first[Math.max(0, prompt)] + token;
    const v = {state, prompt, token, reading, shown, place: prompt < 0 ? -1 : shown};
    // A number that is no block's leaves the pair as it was.
    const kept = paired ? pair.every(Boolean) && pair.map(Number) : same && [before.v.l + 1, before.v.m + 1];
    const [l, m] = kept || cx.strongest(data.map(v), n);
    if (!paired) lack(`block ${[...new Set(bad)].join(" or ")} (it has ${n})`, alone || `blocks ${l} and ${m}`);

    return {
      data, paired,
      v: {...v, l: l - 1, m: m - 1},
      address: {
        state: asked("state") && data.states[state].name, prompt: prompt < 0 ? "mean" : data.prompts[prompt].name,
        token: exact, reading: asked("reading") && reading, l: kept ? l : "", m: kept ? m : "", piece: "",
      },
      line: lacks.length ? `${data.label} has no ${lacks.join(", no ")}. Shown instead: ${instead.join(", ")}.` : "",
    };
  };
})();
