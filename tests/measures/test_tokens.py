"""Self-coupling across tokens against pairwise coupling matrices."""

from __future__ import annotations

import numpy as np
import pytest

import coupling_lib as cl
from coupling_lib.prompts import PARIS


def test_every_pair_of_tokens_equals_its_own_coupling_matrix():
    model = cl.load_model("nano-neox")
    ds = cl.measure_tokens(model, PARIS, block=6, k=10)
    trace = cl.trace(model, PARIS)
    assert dict(ds.normalized_miscoupling.sizes) == {"token_1": trace.n_tokens, "token_2": trace.n_tokens}
    assert "".join(ds.text.values) == PARIS
    J, other = trace.jacobian(6, token_in=2), trace.jacobian(6, token_in=5)
    A = cl.coupling_matrix(J, other.svd(10), 10)
    wanted = float(cl.mismatch(A, J.svd(10).S))
    assert float(ds.mismatch.sel(token_1=2, token_2=5)) == pytest.approx(wanted, rel=1e-4)
    assert np.abs(np.diag(ds.normalized_miscoupling)).max() < 1e-4
