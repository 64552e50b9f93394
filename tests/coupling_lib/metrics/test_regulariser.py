"""The regulariser's arithmetic, against dense matrices in float64."""

import pytest
import torch
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.regulariser import asymmetry, asymmetry_terms

D = 7


def normal(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthogonal(seed):
    return torch.linalg.qr(normal(D, D, seed=seed))[0]


def loops(A, B, Z):
    """Numerator and denominator of c(A B^T), one pair of probes after the other."""
    N = A @ B.T
    pairs = [(i, j) for i in range(len(Z)) for j in range(len(Z)) if i != j]
    numerator = sum(float(Z[i] @ (N - N.T) @ Z[j]) ** 2 for i, j in pairs) / len(pairs) / 4
    return numerator, sum(float(Z[i] @ N @ Z[j]) ** 2 for i, j in pairs) / len(pairs)


def test_asymmetry_terms_are_unbiased_for_dense_product():
    A, B, Z = normal(D, D, seed=0), normal(D, D, seed=1), normal(5, D, seed=2)
    numerator, denominator = asymmetry_terms(Z @ A, Z @ B)  # rows A^T z
    assert (float(numerator), float(denominator)) == pytest.approx(loops(A, B, Z), rel=1e-12)
    A, B, Z = normal(D, D, seed=3), normal(D, D, seed=4), normal(40_000, 3, D, seed=5)
    N = A @ B.T
    numerator, denominator = asymmetry_terms(Z @ A, Z @ B)
    for estimate, exact in ((numerator, (N - N.T).square().sum() / 4), (denominator, N.square().sum())):
        error = estimate.std() / len(Z) ** 0.5
        assert abs(float(estimate.mean() - exact)) < 4 * float(error) < 0.1 * float(exact)


def test_asymmetry_vanishes_for_shared_singular_vectors():
    U, V = orthogonal(6), orthogonal(7)
    A = U @ torch.diag(normal(D, seed=8)) @ V.T
    B = U @ torch.diag(normal(D, seed=9)) @ V.T
    Z = normal(2, 4, D, seed=10)
    assert float(asymmetry(Z @ A, Z @ B)) < 1e-28
    assert float(asymmetry(Z @ A.T, Z @ B.T)) < 1e-28
    A, B, Z = normal(D, D, seed=16), normal(D, D, seed=17), normal(2, 4, D, seed=18)
    assert float(asymmetry(Z @ A, Z @ B)) == pytest.approx(float(asymmetry(Z @ (5 * A), Z @ (B / 9))), rel=1e-12)
    for side in ["left", "right"]:
        U, V, other = orthogonal(11), orthogonal(12), orthogonal(13)
        A = U @ torch.diag(torch.arange(1.0, D + 1, dtype=torch.float64)) @ V.T
        S = torch.diag(torch.arange(D, 0, -1, dtype=torch.float64))
        B = U @ S @ other.T if side == "left" else other @ S @ V.T
        assert float(asymmetry(Z @ A, Z @ B) + asymmetry(Z @ A.T, Z @ B.T)) > 0.4
    A, B, Z = normal(20, 60, 60, seed=19), normal(20, 60, 60, seed=20), normal(100, 60, seed=21)
    assert float(asymmetry(Z @ A, Z @ B)) == pytest.approx(0.5, abs=0.02)
    A = normal(D, D, seed=14)
    Z = normal(3, 4, D, seed=15)
    assert float(asymmetry(Z @ (A - A.T), Z)) == pytest.approx(1.0)


def test_one_probe_different_shapes_and_zeros_are_refused():
    refused(ParameterError, "p at least 2", asymmetry, torch.ones(3, 1, D), torch.ones(3, 1, D))
    refused(ParameterError, "expected the same", asymmetry_terms, torch.ones(2, D), torch.ones(3, D))
    with pytest.raises(UntrustworthyResultError, match="mean square of the products is 0"):
        asymmetry(torch.zeros(1, 2, D), torch.zeros(1, 2, D))
