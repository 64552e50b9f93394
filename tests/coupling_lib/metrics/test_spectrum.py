import math

import pytest
import torch
from random_numbers import check_mean, normal, seeded
from reference import miscoupling
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics import spectrum
from coupling_lib.metrics.nulls import mean_absolute_coordinate
from coupling_lib.metrics.spectrum import exchanged_miscoupling, exchanged_null, frobenius_estimate, inverse_sigma_fit
from coupling_lib.metrics.subspaces import random_frame


def test_the_frobenius_norm_is_estimated_without_bias():
    J = normal(0, 40, 60)
    S, Vh = torch.linalg.svd(J)[1:]
    few = spectrum.probes(Vh[:5])
    assert few.shape == (60, 16) and float((Vh[:5] @ few).abs().max()) < 1e-12
    exact = float(torch.linalg.matrix_norm(J))
    for count, rel in ((16, 0.05), (20000, 2e-3)):
        estimate = frobenius_estimate(S[:5], J @ spectrum.probes(Vh[:5], count))
        assert float(estimate) == pytest.approx(exact, rel=rel)
    assert float(frobenius_estimate(S, J @ spectrum.probes(Vh))) == pytest.approx(exact, rel=1e-12)


def test_fits_recover_power_laws():
    rank = torch.arange(1, 41, dtype=torch.float64)
    for exponent in [0.0, 0.5, 1.7]:
        S = torch.stack([rank**-exponent, 30 * rank**-exponent])
        assert spectrum.decay_exponent(S).tolist() == pytest.approx([exponent] * 2, abs=1e-12)
    sigma1 = 1 / (0.25 * rank[:32] + 2)
    sigma1[:9] = 50.0
    fit = inverse_sigma_fit(sigma1)
    assert (fit.slope, fit.intercept, fit.r_squared) == pytest.approx((0.25, 2, 1), rel=1e-12)
    assert inverse_sigma_fit(sigma1, first_block=0).r_squared < 1
    assert [spectrum.first_block_of_fit(n) for n in (3, 8, 12, 19, 20, 80)] == [0, 2, 3, 4, 9, 9]


WITHOUT_FIT = [
    (UntrustworthyResultError, "no logarithm", spectrum.decay_exponent, torch.tensor([1.0, 0.0])),
    (ParameterError, "at least two", spectrum.decay_exponent, torch.ones(1)),
    (ParameterError, "needs three blocks, and the model has 2", inverse_sigma_fit, torch.ones(2)),
    (ParameterError, "first_block is 9", inverse_sigma_fit, torch.ones(11)),
    (UntrustworthyResultError, "no inverse", inverse_sigma_fit, torch.tensor([1.0, 0.0, 2.0]), 0),
]


@pytest.mark.parametrize("given", WITHOUT_FIT)
def test_spectra_without_a_fit_are_refused(given):
    refused(*given)


def test_alignment_is_the_mean_absolute_cosine():
    U, _, Vh = torch.linalg.svd(normal(2, 2, 9, 9))
    cosines = torch.einsum("bpi,bip->bi", U[..., :4], Vh[..., :4, :]).abs().mean(dim=1)
    torch.testing.assert_close(spectrum.left_right_alignment(U[..., :4], Vh[..., :4, :]), cosines, rtol=0, atol=1e-14)
    U, _, Vh = torch.linalg.svd(normal(3, 400, 64, 64))
    check_mean(spectrum.left_right_alignment(U, Vh), mean_absolute_coordinate(64))


def test_exchanged_miscoupling_and_its_null_match_loops():
    M = normal(4, 5, 20, 20)
    for J, low, high in ((M + M.mT, 0, 1e-7), (M, 0.5, 1)):
        U, _, Vh = torch.linalg.svd(J)
        values = exchanged_miscoupling(J, U[..., :6], Vh[..., :6, :])
        off = [miscoupling((v[:6] @ one @ u[:, :6]).numpy()) for u, one, v in zip(U, J, Vh, strict=True)]
        assert values.tolist() == pytest.approx(off, abs=1e-7)
        assert low <= values.min().item() and values.max().item() <= high
    d, k = 12, 3
    S = torch.linspace(3, 0.1, d, dtype=torch.float64)[None]
    quick = exchanged_null(S, k, 3000, seeded(5))[:, 0]
    generator, slow = seeded(6), []
    for _ in range(3000):
        U, V = (random_frame(d, d, generator, torch.float64) for _ in range(2))
        slow.append(exchanged_miscoupling((U * S) @ V.mT, U[:, :k], V.mT[:k]))
    slow = torch.stack(slow)
    check_mean(quick, slow.mean(), slow.std() / math.sqrt(3000))
    assert float(quick.std() / slow.std()) == pytest.approx(1, abs=0.1)
    refused(ParameterError, "k is 7", exchanged_null, S, 7)
