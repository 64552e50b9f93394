/* A GPT-NeoX model in plain arrays: its forward pass, and the exact Jacobian of a block at one token.

   A block adds f(x) = Attention(LN1 x) + MLP(LN2 x) to the stream. Its residual Jacobian at token t is d f(x)_t / d x_t,
   with the tokens before t held fixed. Everything is in double precision; a matrix lies row after row. */
(() => {
  "use strict";

  const {dot, timesTransposed, transposed} = window.ownPrompt, {bytes} = window.couplingExplorer;

  // Weights by name. A matrix is stored in 8 bits: an entry is its byte times the scale of its row.
  async function unpacked(tensors, raw) {
    const entries = new Int8Array(await bytes(raw.entries)), scales = new Float32Array(await bytes(raw.scales));
    const vectors = new Float32Array(await bytes(raw.vectors)), found = {};
    let entry = 0, scale = 0, number = 0;
    for (const [name, rows, columns] of tensors) {
      if (!columns) {
        found[name] = Float64Array.from(vectors.subarray(number, (number += rows)));
        continue;
      }
      const W = (found[name] = new Float64Array(rows * columns));
      for (let i = 0, at = 0; i < rows; i++) {
        const factor = scales[scale++];
        for (let j = 0; j < columns; j++) W[at++] = entries[entry++] * factor;
      }
    }
    return found;
  }

  function normalised(X, n, d, {weight, bias}, epsilon) {
    const out = new Float64Array(n * d), centred = new Float64Array(n * d), spread = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      let mean = 0, square = 0;
      for (let k = 0; k < d; k++) mean += X[i * d + k] / d;
      for (let k = 0; k < d; k++) square += (X[i * d + k] - mean) ** 2 / d;
      spread[i] = Math.sqrt(square + epsilon);
      for (let k = 0; k < d; k++) {
        centred[i * d + k] = (X[i * d + k] - mean) / spread[i];
        out[i * d + k] = weight[k] * centred[i * d + k] + bias[k];
      }
    }
    return {out, centred, spread};
  }

  // Adds R D to `sum`, where D is the derivative of a norm at row t: D = (1 - 1 1^T / d - c c^T / d) diag(weight) / spread.
  function addThroughNorm(sum, R, d, {centred, spread}, t, weight) {
    const c = centred.subarray(t * d, (t + 1) * d);
    for (let i = 0; i < d; i++) {
      let mean = 0, along = 0;
      for (let k = 0; k < d; k++) {
        const w = R[i * d + k] * weight[k];
        mean += w / d;
        along += (w * c[k]) / d;
      }
      for (let k = 0; k < d; k++) sum[i * d + k] += (R[i * d + k] * weight[k] - mean - c[k] * along) / spread[t];
    }
  }

  // The normal distribution: its density, and its integral as Marsaglia's series, exact to rounding.
  const density = x => Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);
  function integral(x) {
    if (Math.abs(x) > 8.5) return x > 0 ? 1 : 0;
    let term = x, sum = 0;
    for (let i = 1; sum + term !== sum; i += 2) {
      sum += term;
      term *= (x * x) / (i + 2);
    }
    return 0.5 + sum * density(x);
  }
  const gelu = x => x * integral(x), slope = x => integral(x) + x * density(x);

  function linear(X, {weight, bias}, n, rows, columns) {
    const out = timesTransposed(X, weight, n, rows, columns);
    for (let i = 0; i < n; i++) for (let j = 0; j < rows; j++) out[i * rows + j] += bias[j];
    return out;
  }

  async function makeModel(config, raw) {
    const weights = await unpacked(config.tensors, raw), {width: d, heads, rotary, epsilon, vocabularySize} = config;
    const size = d / heads, half = rotary / 2, middle = config.middle;
    const named = name => ({weight: weights[`gpt_neox.${name}.weight`], bias: weights[`gpt_neox.${name}.bias`]});
    const part = (l, name) => named(`layers.${l}.${name}`);

    // Turns the first `rotary` coordinates from `at` on by the angles of position t; backwards with sign -1.
    function turn(x, at, t, sign = 1) {
      for (let k = 0; k < half; k++) {
        const angle = t * config.base ** (-k / half), c = Math.cos(angle), s = sign * Math.sin(angle);
        const a = x[at + k], b = x[at + half + k];
        x[at + k] = c * a - s * b;
        x[at + half + k] = c * b + s * a;
      }
    }

    const embedded = ids => {
      const X = new Float64Array(ids.length * d), table = named("embed_in").weight;
      ids.forEach((id, i) => X.set(table.subarray(id * d, (id + 1) * d), i * d));
      return X;
    };

    // What token t of a head attends to: the shares of tokens 0 to t, and the mean of their values.
    function attended(qkv, h, t) {
      const row = 3 * d, q = t * row + 3 * size * h, shares = new Float64Array(t + 1), mean = new Float64Array(size);
      let most = -Infinity, total = 0;
      for (let s = 0; s <= t; s++) {
        shares[s] = dot(qkv, q, qkv, s * row + 3 * size * h + size, size) / Math.sqrt(size);
        most = Math.max(most, shares[s]);
      }
      for (let s = 0; s <= t; s++) total += shares[s] = Math.exp(shares[s] - most);
      for (let s = 0; s <= t; s++) {
        shares[s] /= total;
        const v = s * row + 3 * size * h + 2 * size;
        for (let k = 0; k < size; k++) mean[k] += shares[s] * qkv[v + k];
      }
      return {shares, mean};
    }

    // Runs block l on the states X (n, d) of all tokens; keeps what its Jacobian is made of.
    function run(l, X, n) {
      const first = normalised(X, n, d, part(l, "input_layernorm"), epsilon);
      const second = normalised(X, n, d, part(l, "post_attention_layernorm"), epsilon);
      // A row holds query, key and value of head 0, then of head 1, and so on.
      const qkv = linear(first.out, part(l, "attention.query_key_value"), n, 3 * d, d);
      const mixed = new Float64Array(n * d);
      for (let h = 0; h < heads; h++) {
        for (let t = 0; t < n; t++) for (const at of [0, size]) turn(qkv, t * 3 * d + 3 * size * h + at, t);
        for (let t = 0; t < n; t++) mixed.set(attended(qkv, h, t).mean, t * d + h * size);
      }
      const before = linear(second.out, part(l, "mlp.dense_h_to_4h"), n, middle, d);
      const attention = linear(mixed, part(l, "attention.dense"), n, d, d);
      const mlp = linear(before.map(gelu), part(l, "mlp.dense_4h_to_h"), n, d, middle);
      return {first, second, qkv, before, out: X.map((x, at) => x + attention[at] + mlp[at])};
    }

    /* The attention's part of the Jacobian, with respect to the normed state y of token t. The output of a head is
       o = sum_s a_s v_s. The query of t moves all scores, its key only the score of t with itself, its value only v_t:
         d o = sum_s a_s (v_s - o) (d q . k_s) / sqrt(size) + a_t (v_t - o) (q_t . d k) / sqrt(size) + a_t d v. */
    function throughAttention(l, qkv, t) {
      const W = part(l, "attention.query_key_value").weight, rows = new Float64Array(d * d), row = 3 * d;
      for (let h = 0; h < heads; h++) {
        const base = 3 * size * h, {shares, mean} = attended(qkv, h, t);
        const byQuery = new Float64Array(size * size), byKey = new Float64Array(size * size);
        for (let i = 0; i < size; i++) {
          for (let s = 0; s <= t; s++) {
            const weight = (shares[s] * (qkv[s * row + base + 2 * size + i] - mean[i])) / Math.sqrt(size);
            for (let k = 0; k < size; k++) byQuery[i * size + k] += weight * qkv[s * row + base + size + k];
            if (s === t) for (let k = 0; k < size; k++) byKey[i * size + k] = weight * qkv[t * row + base + k];
          }
          // Query and key were turned after W: to go back through W, turn the other way.
          turn(byQuery, i * size, t, -1);
          turn(byKey, i * size, t, -1);
          const out = (h * size + i) * d;
          for (let k = 0; k < size; k++) {
            const q = byQuery[i * size + k], key = byKey[i * size + k];
            for (let j = 0; j < d; j++) rows[out + j] += q * W[(base + k) * d + j] + key * W[(base + size + k) * d + j];
          }
          for (let j = 0; j < d; j++) rows[out + j] += shares[t] * W[(base + 2 * size + i) * d + j];
        }
      }
      return times(part(l, "attention.dense").weight, rows, d, d, d);
    }

    const times = (A, B, n, k, m) => timesTransposed(A, transposed(B, k, m), n, m, k);

    // The residual Jacobian of block l at token t, (d, d): rows are outputs. `call` is what `run` gave.
    function jacobian(l, call, t) {
      const slopes = call.before.subarray(t * middle, (t + 1) * middle).map(slope);
      const scaled = part(l, "mlp.dense_4h_to_h").weight.slice();
      for (let i = 0, at = 0; i < d; i++) for (let j = 0; j < middle; j++) scaled[at++] *= slopes[j];
      const J = new Float64Array(d * d);
      addThroughNorm(J, throughAttention(l, call.qkv, t), d, call.first, t, part(l, "input_layernorm").weight);
      const mlp = times(scaled, part(l, "mlp.dense_h_to_4h").weight, d, middle, d);
      addThroughNorm(J, mlp, d, call.second, t, part(l, "post_attention_layernorm").weight);
      return J;
    }

    // How likely each token is to come after one whose last state is x (d).
    function next(x) {
      const {out} = normalised(x, 1, d, named("final_layer_norm"), epsilon);
      const logits = timesTransposed(out, named("embed_in").weight, 1, vocabularySize, d);
      const most = logits.reduce((a, b) => Math.max(a, b)), shares = logits.map(x => Math.exp(x - most));
      const total = shares.reduce((a, b) => a + b);
      return {logits, shares: shares.map(x => x / total)};
    }

    return {embedded, run, jacobian, next};
  }

  Object.assign(window.ownPrompt, {makeModel});
})();
