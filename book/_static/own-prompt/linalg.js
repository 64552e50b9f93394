/* The linear algebra of the page, in double precision. A matrix is a Float64Array, row after row. */
(() => {
  "use strict";

  function dot(a, i, b, j, n) {
    // Four sums side by side: the processor need not wait for one to be added to.
    let s0 = 0, s1 = 0, s2 = 0, s3 = 0, k = 0;
    for (; k + 3 < n; k += 4) {
      s0 += a[i + k] * b[j + k];
      s1 += a[i + k + 1] * b[j + k + 1];
      s2 += a[i + k + 2] * b[j + k + 2];
      s3 += a[i + k + 3] * b[j + k + 3];
    }
    for (; k < n; k++) s0 += a[i + k] * b[j + k];
    return s0 + s1 + s2 + s3;
  }

  // A (n, k) times the transpose of B (m, k): every entry is a product of two rows, which lie in one piece.
  function timesTransposed(A, B, n, m, k) {
    const out = new Float64Array(n * m);
    let i = 0;
    // Four rows of A with two of B at a time: what is read once is used in several sums. An odd last row of B is below.
    for (; i + 3 < n; i += 4) {
      const a0 = i * k, a1 = a0 + k, a2 = a1 + k, a3 = a2 + k;
      for (let j = 0; j + 1 < m; j += 2) {
        let s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
        for (let r = 0, b0 = j * k, b1 = b0 + k; r < k; r++, b0++, b1++) {
          const x = B[b0], y = B[b1], p = A[a0 + r], q = A[a1 + r], u = A[a2 + r], v = A[a3 + r];
          s0 += p * x;
          s1 += q * x;
          s2 += u * x;
          s3 += v * x;
          t0 += p * y;
          t1 += q * y;
          t2 += u * y;
          t3 += v * y;
        }
        const at = i * m + j;
        out[at] = s0;
        out[at + m] = s1;
        out[at + 2 * m] = s2;
        out[at + 3 * m] = s3;
        out[at + 1] = t0;
        out[at + m + 1] = t1;
        out[at + 2 * m + 1] = t2;
        out[at + 3 * m + 1] = t3;
      }
      if (m % 2) for (let h = i; h < i + 4; h++) out[h * m + m - 1] = dot(A, h * k, B, (m - 1) * k, k);
    }
    for (; i < n; i++) for (let j = 0; j < m; j++) out[i * m + j] = dot(A, i * k, B, j * k, k);
    return out;
  }

  function transposed(A, n, m) {
    const out = new Float64Array(n * m);
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) out[j * n + i] = A[i * m + j];
    return out;
  }

  const SWEEPS = 40, ORTHOGONAL = 1e-12, TRUSTED = 1e-9;

  // Turns pairs of rows of C until all are orthogonal to each other: one-sided Jacobi. Returns whether they are.
  function orthogonalise(C, n) {
    const square = new Float64Array(n);
    for (let sweep = 0; sweep < SWEEPS; sweep++) {
      for (let i = 0; i < n; i++) square[i] = dot(C, i * n, C, i * n, n);
      let turned = 0;
      for (let p = 0; p < n - 1; p++) {
        // The longest row that is left comes first (de Rijk), which saves sweeps.
        let longest = p;
        for (let q = p + 1; q < n; q++) if (square[q] > square[longest]) longest = q;
        if (longest !== p) {
          for (let k = 0; k < n; k++) [C[p * n + k], C[longest * n + k]] = [C[longest * n + k], C[p * n + k]];
          [square[p], square[longest]] = [square[longest], square[p]];
        }
        for (let q = p + 1; q < n; q++) {
          const a = p * n, b = q * n, g = dot(C, a, C, b, n);
          if (Math.abs(g) <= ORTHOGONAL * Math.sqrt(square[p] * square[q])) continue;
          turned++;
          const zeta = (square[q] - square[p]) / (2 * g);
          const t = (zeta < 0 ? -1 : 1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta));
          const c = 1 / Math.sqrt(1 + t * t), s = c * t;
          for (let k = 0; k < n; k++) {
            const x = C[a + k], y = C[b + k];
            C[a + k] = c * x - s * y;
            C[b + k] = s * x + c * y;
          }
          square[p] -= t * g;
          square[q] += t * g;
        }
      }
      if (!turned) return true;
    }
    return false;
  }

  /* The strongest `count` singular triplets of J (n, n): U and V hold a vector per row, S the values, strongest
     first, and `spectrum` all of them.

     The columns of J are made orthogonal; their lengths are then the singular values and their directions the left
     vectors. The right ones follow from J v = s u. What is returned has been put back into that equation and into
     V V^T = 1; where it does not fit, an error is thrown rather than a result that looks like one. */
  function topTriplets(J, n, count) {
    const C = transposed(J, n, n);
    const settled = orthogonalise(C, n);
    const length = Array.from({length: n}, (_, i) => Math.sqrt(dot(C, i * n, C, i * n, n)));
    const all = length.map((_, i) => i).sort((i, j) => length[j] - length[i]), order = all.slice(0, count);
    const spectrum = Float64Array.from(all, i => length[i]), S = spectrum.slice(0, count);
    if (!settled || !(S[count - 1] > 0)) throw new Error("the singular vectors of a Jacobian were not found");
    const U = new Float64Array(count * n);
    order.forEach((i, row) => { for (let k = 0; k < n; k++) U[row * n + k] = C[i * n + k] / length[i]; });
    const V = timesTransposed(U, transposed(J, n, n), count, n, n).map((x, at) => x / S[Math.floor(at / n)]);
    const mapped = timesTransposed(V, J, count, n, n);
    let residual = 0;
    const off = (found, wanted) => { residual = Math.max(residual, Math.abs(found - wanted)); };
    for (let i = 0; i < count; i++) {
      for (let k = 0; k < n; k++) off(mapped[i * n + k] / S[0], (S[i] / S[0]) * U[i * n + k]);
      for (let j = 0; j <= i; j++) off(dot(V, i * n, V, j * n, n), i === j ? 1 : 0);
    }
    if (!(residual < TRUSTED))
      throw new Error(`the singular vectors of a Jacobian miss their equation by ${residual.toExponential(1)}`);
    return {U, S, V, spectrum, residual};
  }

  /* Coupling matrices of block l's Jacobian with the vectors of every block: U' J V'^T, one (K, K) after the other,
     and the coupling of each: 1 less its norm off the diagonal over its whole norm (paper, equations 10 and 14). */
  function coupled(J, triplets, n, count) {
    const matrices = triplets.map(({U, V}) =>
      timesTransposed(U, timesTransposed(V, J, count, n, n), count, count, n));
    const values = matrices.map(A => {
      let all = 0, off = 0;
      A.forEach((a, at) => { all += a * a; if (at % (count + 1)) off += a * a; });
      return 1 - Math.sqrt(off / all);
    });
    return {matrices, values};
  }

  Object.assign((window.ownPrompt ??= {}), {dot, timesTransposed, transposed, topTriplets, coupled});
})();
