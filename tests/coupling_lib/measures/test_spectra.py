"""Spectra against LAPACK on the dense Jacobians, and the null against explicit random bases."""

import numpy as np
import pytest
import torch
import xarray as xr
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures.random_bases import spectra_null
from coupling_lib.measures.spectra import spectra_fits

PROMPTS = [PARIS, "It was the best of times"]


@pytest.fixture(scope="module")
def ds(model):
    return cl.measure_spectra(model, PROMPTS, k=15, whole=(0, 11))


def test_spectra_are_those_of_the_dense_jacobians(model, ds):
    trace = cl.trace(model, PARIS)
    for place, block in enumerate((0, 11)):
        J = trace.jacobian(block).dense().double()
        U, S, Vh = torch.linalg.svd(J)
        np.testing.assert_allclose(ds.singular_values[0, block], S[:15], rtol=1e-4)
        np.testing.assert_allclose(ds.stable_rank[0, block], (S**2).sum() / S[0] ** 2, rtol=1e-4)
        np.testing.assert_allclose(ds.frobenius_norm[0, block], (S**2).sum().sqrt(), rtol=1e-4)
        alignment = (U[:, :15] * Vh[:15].T).sum(0).abs().mean()
        np.testing.assert_allclose(ds.left_right_alignment[0, block], alignment, rtol=1e-2)
        B = (Vh[:15] @ J @ U[:, :15]).numpy()
        exchanged = np.linalg.norm(B - np.diag(np.diag(B))) / np.linalg.norm(B)
        np.testing.assert_allclose(ds.exchanged_miscoupling[0, block], exchanged, rtol=1e-3)
        np.testing.assert_allclose(ds.spectrum[0, place], S, rtol=1e-4, atol=1e-6)
        slope = np.polyfit(np.log(np.arange(1, 49)), np.log(S[:48].numpy()), 1)[0]
        np.testing.assert_allclose(ds.decay_exponent[0, place], -slope, rtol=1e-4)
    assert dict(ds.singular_values.sizes) == {"prompt": 2, "block": 12, "rank": 15}
    assert dict(ds.spectrum.sizes) == {"prompt": 2, "whole": 2, "index": 96}
    assert ds.whole.values.tolist() == [0, 11] and ds.block.values.tolist() == list(range(12))
    assert ds.attrs["measure"] == "spectra" and ds.prompt.values.tolist() == PROMPTS
    assert "spectrum" not in cl.measure_spectra(model, PROMPTS[:1], k=2)
    alone = cl.measure_spectra(model, PROMPTS[:1], k=1)
    assert np.isnan(alone.exchanged_miscoupling).all() and np.isfinite(alone.left_right_alignment).all()
    refused(ParameterError, "k is 1; random bases of width 96 need k from 2 to 48", spectra_null, alone)


def test_fits_of_spectra_are_least_squares_lines(ds, model):
    for asked, first in ((None, 3), (6, 6)):
        fits = spectra_fits(ds, asked)
        assert fits.attrs["first_block"] == first
        depth = np.arange(first + 1, 13)
        for prompt in range(2):
            y = 1 / ds.singular_values.values[prompt, first:, 0].astype(float)
            slope, intercept = np.polyfit(depth, y, 1)
            residual = y - slope * depth - intercept
            wanted = 1 - (residual**2).sum() / ((y - y.mean()) ** 2).sum()
            assert float(fits.slope[prompt]) == pytest.approx(slope, rel=1e-6)
            assert float(fits.intercept[prompt]) == pytest.approx(intercept, rel=1e-6)
            assert float(fits.r_squared[prompt]) == pytest.approx(wanted, rel=1e-6)
    refused(ParameterError, "a block of whole is 12; nano-neox has 12", cl.measure_spectra, model, PROMPTS, whole=12)
    refused(ParameterError, "k is 97", cl.measure_spectra, model, PROMPTS, k=97)
    message = "start at block 11 of 12; it needs three blocks, so start at block 1 to 10"
    refused(ParameterError, message, spectra_fits, ds, 10)


def test_trained_blocks_align_left_with_right_vectors(ds):
    null = spectra_null(ds, n_samples=30, seed=1)
    xr.testing.assert_equal(null, spectra_null(ds, n_samples=30, seed=1))
    fresh = cl.measure_spectra(cl.load_model("nano-neox", untrained=True), PROMPTS, k=15)
    chance = float(null.left_right_alignment)
    assert float(fresh.left_right_alignment.mean()) == pytest.approx(chance, rel=0.15)
    assert float(ds.left_right_alignment.mean()) > 1.5 * chance
    coupling = 1 - null.exchanged_miscoupling.mean()
    assert float(1 - fresh.exchanged_miscoupling.mean()) == pytest.approx(float(coupling), abs=0.02)
    assert float(1 - ds.exchanged_miscoupling.mean()) > 1.5 * float(coupling)
