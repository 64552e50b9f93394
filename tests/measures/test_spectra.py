"""Spectra against LAPACK on the dense Jacobians."""

from __future__ import annotations

import numpy as np
import torch

import coupling_lib as cl
from coupling_lib.prompts import PARIS


def test_spectra_are_those_of_the_dense_jacobians():
    model = cl.load_model("nano-neox")
    ds = cl.measure_spectra(model, [PARIS], k=15)
    trace = cl.trace(model, PARIS)
    for block in (0, 11):
        J = trace.jacobian(block).dense().double()
        U, S, Vh = torch.linalg.svd(J)
        np.testing.assert_allclose(ds.singular_values[0, block], S[:15], rtol=1e-4)
        np.testing.assert_allclose(ds.stable_rank[0, block], (S**2).sum() / S[0] ** 2, rtol=1e-4)
        alignment = (U[:, :15] * Vh[:15].T).sum(0).abs().mean()
        np.testing.assert_allclose(ds.left_right_alignment[0, block], alignment, rtol=1e-2)
