"""Spectra are the metrics, tested against LAPACK, of dense Jacobians in float64; nulls are those of random ones."""

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
from coupling_lib.metrics import spectrum

PROMPTS = [PARIS, "It was the best of times"]


@pytest.fixture(scope="module")
def ds(model):
    return cl.measure_spectra(model, PROMPTS, k=15, whole=(0, 11))


def test_spectra_are_those_of_the_dense_jacobians(model, ds):
    trace = cl.trace(model, PARIS)
    J = torch.stack([trace.jacobian(block).dense() for block in (0, 11)]).double()
    U, S, Vh = torch.linalg.svd(J)
    of_blocks, of_whole = ds.isel(prompt=0, block=[0, 11]), ds.isel(prompt=0)
    for found, wanted, rtol in (
        (of_blocks.singular_values, S[:, :15], 1e-4),
        (of_blocks.frobenius_norm, torch.linalg.matrix_norm(J), 1e-4),
        (of_blocks.stable_rank, (S**2).sum(1) / S[:, 0] ** 2, 1e-4),
        (of_blocks.left_right_alignment, spectrum.left_right_alignment(U[..., :15], Vh[:, :15]), 1e-2),
        (of_blocks.exchanged_miscoupling, spectrum.exchanged_miscoupling(J, U[..., :15], Vh[:, :15]), 1e-3),
        (of_whole.spectrum, S, 1e-4),
        (of_whole.decay_exponent, -np.polyfit(np.log(np.arange(1, 49)), S[:, :48].log().T, 1)[0], 1e-4),
    ):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-6, err_msg=found.name)
    assert ds.whole.values.tolist() == [0, 11] and ds.prompt.values.tolist() == PROMPTS
    assert "spectrum" not in cl.measure_spectra(model, PROMPTS[:1], k=2)
    alone = cl.measure_spectra(model, PROMPTS[:1], k=1)
    assert np.isnan(alone.exchanged_miscoupling).all() and np.isfinite(alone.left_right_alignment).all()
    refused(ParameterError, "k is 1; random bases of width 96 need k from 2 to 48", spectra_null, alone)


def test_fits_of_spectra_are_least_squares_lines(ds, model):
    for asked, first in ((None, 3), (6, 6)):
        fits = spectra_fits(ds, asked)
        assert fits.attrs["first_block"] == first
        depth, inverse = np.arange(first + 1, 13), 1 / ds.singular_values.values[:, first:, 0].astype(float)
        lines = np.polyfit(depth, inverse.T, 1)
        np.testing.assert_allclose([fits.slope, fits.intercept], lines, rtol=1e-6)
        residual = inverse - np.stack([np.polyval(line, depth) for line in lines.T])
        np.testing.assert_allclose(fits.r_squared, 1 - residual.var(axis=1) / inverse.var(axis=1), rtol=1e-6)
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
    coupling = 1 - float(null.exchanged_miscoupling.mean())
    assert float(1 - fresh.exchanged_miscoupling.mean()) == pytest.approx(coupling, abs=0.02)
    assert float(1 - ds.exchanged_miscoupling.mean()) > 1.5 * coupling
