import math
from functools import partial

import pytest
import torch
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.nulls import mean_absolute_coordinate
from coupling_lib.metrics.spectrum import (
    decay_exponent,
    exchanged_miscoupling,
    exchanged_null,
    first_block_of_fit,
    frobenius_estimate,
    inverse_sigma_fit,
    left_right_alignment,
    probes,
)
from coupling_lib.metrics.subspaces import random_frame


def test_the_frobenius_norm_is_estimated_without_bias():
    J = torch.randn(40, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    S, Vh = torch.linalg.svd(J)[1:]
    few = probes(Vh[:5])
    assert few.shape == (60, 16) and float((Vh[:5] @ few).abs().max()) < 1e-12
    estimates = torch.stack([frobenius_estimate(S[:5], J @ probes(Vh[:5], count)) for count in (16, 20000)])
    exact = torch.linalg.matrix_norm(J)
    assert abs(float(estimates[0] / exact) - 1) < 0.05 and abs(float(estimates[1] / exact) - 1) < 2e-3
    assert float(frobenius_estimate(S, J @ probes(Vh))) == pytest.approx(float(exact), rel=1e-12)


def test_fits_recover_power_laws():
    for exponent in [0.0, 0.5, 1.7]:
        rank = torch.arange(1, 41, dtype=torch.float64)
        S = torch.stack([rank**-exponent, 30 * rank**-exponent])
        assert decay_exponent(S).tolist() == pytest.approx([exponent] * 2, abs=1e-12)
    depth = torch.arange(1.0, 33.0, dtype=torch.float64)
    sigma1 = 1 / (0.25 * depth + 2)
    sigma1[:9] = 50.0
    fit = inverse_sigma_fit(sigma1)
    assert (fit.slope, fit.intercept, fit.r_squared) == pytest.approx((0.25, 2, 1), rel=1e-12)
    assert inverse_sigma_fit(sigma1, first_block=0).r_squared < 1
    assert [first_block_of_fit(n) for n in (3, 8, 12, 19, 20, 80)] == [0, 2, 3, 4, 9, 9]


@pytest.mark.parametrize(
    ("error", "message", "fit", "values"),
    [
        (UntrustworthyResultError, "no logarithm", decay_exponent, [1.0, 0.0]),
        (ParameterError, "at least two", decay_exponent, [1.0]),
        (ParameterError, "needs three blocks, and the model has 2", inverse_sigma_fit, [1.0] * 2),
        (ParameterError, "first_block is 9", inverse_sigma_fit, [1.0] * 11),
        (UntrustworthyResultError, "no inverse", partial(inverse_sigma_fit, first_block=0), [1.0, 0.0, 2.0]),
    ],
)
def test_spectra_without_a_fit_are_refused(error, message, fit, values):
    refused(error, message, fit, torch.tensor(values))


def test_alignment_is_the_mean_absolute_cosine():
    U, _, Vh = torch.linalg.svd(torch.randn(2, 9, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    alignment = left_right_alignment(U[..., :4], Vh[..., :4, :])
    for batch in range(2):
        cosines = [abs(U[batch, :, i] @ Vh[batch, i]).item() for i in range(4)]
        assert alignment[batch].item() == pytest.approx(sum(cosines) / 4, abs=1e-14)
    J = torch.randn(400, 64, 64, generator=torch.Generator().manual_seed(3))
    U, _, Vh = torch.linalg.svd(J)
    alignment = left_right_alignment(U, Vh)
    four_errors = 4 * alignment.std().item() / math.sqrt(400)
    assert alignment.mean().item() == pytest.approx(mean_absolute_coordinate(64), abs=four_errors)


def test_exchanged_miscoupling_and_its_null_match_loops():
    M = torch.randn(5, 20, 20, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for J, bound in ((M + M.mT, (0, 1e-7)), (M, (0.5, 1))):
        U, _, Vh = torch.linalg.svd(J)
        values = exchanged_miscoupling(J, U[..., :6], Vh[..., :6, :])
        B = (Vh[..., :6, :] @ J @ U[..., :6]).numpy()
        off = [math.sqrt(sum(b[i, j] ** 2 for i in range(6) for j in range(6) if i != j) / (b**2).sum()) for b in B]
        assert values.tolist() == pytest.approx(off, abs=1e-7)
        assert bound[0] <= values.min().item() and values.max().item() <= bound[1]
    d, k = 12, 3
    S = torch.linspace(3, 0.1, d, dtype=torch.float64)[None]
    quick = exchanged_null(S, k, 3000, torch.Generator().manual_seed(5))[:, 0]
    generator, slow = torch.Generator().manual_seed(6), []
    for _ in range(3000):
        U, V = (random_frame(d, d, generator, torch.float64) for _ in range(2))
        slow.append(exchanged_miscoupling(U @ torch.diag(S[0]) @ V.mT, U[:, :k], V.mT[:k]))
    slow = torch.stack(slow)
    error = math.sqrt(float(quick.var() + slow.var()) / 3000)
    assert abs(float(quick.mean() - slow.mean())) < 4 * error
    assert float(quick.std() / slow.std()) == pytest.approx(1, abs=0.1)
    refused(ParameterError, "k is 7", exchanged_null, S, 7)
