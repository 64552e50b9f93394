// What the page computes, by the same functions, for one prompt.
async ([step, text, token]) => {
  const config = Object.values(ownPrompt.models)[0];
  await new Promise(done => ownPrompt.weights?.[step] ? done() : Object.assign(document.head.appendChild(
    document.createElement("script")), {src: `../_static/own-prompt-data/${step}.js`, onload: done}));
  const ids = ownPrompt.tokenizer(config.tokenizer).encode(text), t = token < 0 ? ids.length + token : token;
  const model = await ownPrompt.makeModel(config, ownPrompt.weights[step]), calls = [];
  let X = model.embedded(ids);
  for (let l = 0; l < config.blocks; l++) { calls.push(model.run(l, X, ids.length)); X = calls[l].out; }
  const jacobians = calls.map((call, l) => model.jacobian(l, call, t));
  const found = jacobians.map(J => ownPrompt.topTriplets(J, config.width, config.k));
  const pairs = jacobians.map(J => ownPrompt.coupled(J, found, config.width, config.k));
  const {logits} = model.next(X.subarray(t * config.width, (t + 1) * config.width));
  return {
    ids, logits: [...logits], jacobian: [...jacobians[3]], singular: found.map(one => [...one.S]),
    residual: Math.max(...found.map(one => one.residual)), coupling: pairs.map(row => row.values),
    matrix: [...pairs[3].matrices[5]],
  };
}
