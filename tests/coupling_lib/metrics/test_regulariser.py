"""The regulariser's arithmetic, against dense matrices in float64."""

import itertools

import pytest
import torch
from matrices import orthogonal
from random_numbers import check_mean, normal
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.regulariser import asymmetry, asymmetry_terms

D = 7
A, B = normal(0, D, D), normal(1, D, D)
N = A @ B.T


def test_asymmetry_terms_are_unbiased_for_dense_product():
    Z = normal(2, 5, D)  # one pair of probes after the other
    both = [((z @ (N - N.T) @ y) ** 2 / 4, (z @ N @ y) ** 2) for z, y in itertools.permutations(Z, 2)]
    wanted = torch.tensor(both, dtype=torch.float64).mean(dim=0)
    torch.testing.assert_close(torch.stack(asymmetry_terms(Z @ A, Z @ B)), wanted, rtol=1e-12, atol=0)  # rows A^T z
    Z = normal(5, 40_000, 3, D)
    terms, exact = asymmetry_terms(Z @ A, Z @ B), ((N - N.T).square().sum() / 4, N.square().sum())
    for estimate, value in zip(terms, exact, strict=True):
        check_mean(estimate, value)
        assert 4 * float(estimate.std()) / len(Z) ** 0.5 < 0.1 * float(value)


def test_asymmetry_vanishes_for_shared_singular_vectors():
    U, V, other, Z = orthogonal(D, 6), orthogonal(D, 7), orthogonal(D, 13), normal(10, 2, 4, D)
    first, second = ((U * normal(seed, D)) @ V.T for seed in (8, 9))
    assert float(asymmetry(Z @ first, Z @ second)) < 1e-28
    assert float(asymmetry(Z @ first.T, Z @ second.T)) < 1e-28
    scaled = asymmetry(Z @ (5 * A), Z @ (B / 9))
    assert float(asymmetry(Z @ A, Z @ B)) == pytest.approx(float(scaled), rel=1e-12)
    S = torch.arange(1.0, D + 1, dtype=torch.float64)
    first = (U * S) @ V.T
    for second in ((U * S.flip(0)) @ other.T, (other * S.flip(0)) @ V.T):
        assert float(asymmetry(Z @ first, Z @ second) + asymmetry(Z @ first.T, Z @ second.T)) > 0.4
    (one, two), Z = normal(19, 2, 20, 60, 60), normal(21, 100, 60)
    assert float(asymmetry(Z @ one, Z @ two)) == pytest.approx(0.5, abs=0.02)
    Z = normal(15, 3, 4, D)
    assert float(asymmetry(Z @ (A - A.T), Z)) == pytest.approx(1.0)


def test_one_probe_different_shapes_and_zeros_are_refused():
    refused(ParameterError, "p at least 2", asymmetry, torch.ones(3, 1, D), torch.ones(3, 1, D))
    refused(ParameterError, "expected the same", asymmetry_terms, torch.ones(2, D), torch.ones(3, D))
    zeros = torch.zeros(1, 2, D)
    refused(UntrustworthyResultError, "mean square of the products is 0", asymmetry, zeros, zeros)
