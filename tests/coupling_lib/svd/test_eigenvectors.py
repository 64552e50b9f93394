"""The largest eigenvalues' vectors against LAPACK in float64, complete, partial and refined from float32."""

from __future__ import annotations

import pytest
import torch

from coupling_lib.svd.eigenvectors import refined_eigenvectors, top_eigenvectors


def symmetric(values: torch.Tensor, count: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices of given eigenvalues, ascending, and their eigenvectors."""
    generator = torch.Generator().manual_seed(0)
    n = len(values)
    Q = torch.linalg.qr(torch.randn(count, n, n, generator=generator, dtype=torch.float64))[0]
    G = (Q * values) @ Q.mT
    return (G + G.mT) / 2, Q


@pytest.mark.parametrize("n", [40, 400, 600])
def test_top_eigenvectors_are_the_last_of_the_complete_decomposition(n):
    G = torch.diag_embed(torch.arange(1, n + 1, dtype=torch.float64).expand(2, n))
    torch.testing.assert_close(top_eigenvectors(G, 3).abs(), torch.eye(n).flip(1)[:, :3].double().expand(2, n, 3))


@pytest.mark.parametrize("n", [5, 60, 200])
def test_refined_ones_are_those_of_float64_where_the_spectrum_is_flat(n):
    G, Q = symmetric(torch.linspace(1, 2, n, dtype=torch.float64))
    vectors, error = refined_eigenvectors(G, 5)
    overlap = (Q.flip(-1)[..., :5].mT @ vectors).abs()
    torch.testing.assert_close(overlap, torch.eye(5).double().expand(2, 5, 5), rtol=0, atol=1e-9)
    orthonormal = torch.eye(5).double().expand(2, 5, 5)
    torch.testing.assert_close(vectors.mT @ vectors, orthonormal, rtol=0, atol=1e-13)
    # Float32 alone leaves 1e-7.
    assert float(error.max()) < 1e-9


@pytest.mark.parametrize("power", [1, 4, 8])
def test_the_error_given_is_the_one_made(power):
    G, _ = symmetric(torch.arange(100, 0, -1, dtype=torch.float64) ** -power)
    vectors, error = refined_eigenvectors(G, 20)
    t = (vectors * (G @ vectors)).sum(dim=-2, keepdim=True)
    torch.testing.assert_close((G @ vectors - vectors * t).norm(dim=-2), error, rtol=1e-3, atol=1e-14)
    assert (float(error.max()) < 1e-12) == (power == 1)


def test_equal_eigenvalues_and_a_zero_matrix_give_finite_orthonormal_vectors():
    G = torch.diag(torch.tensor([1.0, 2.0, 2.0, 2.0, 0.5])).double()
    for matrix in (G, torch.zeros(5, 5, dtype=torch.float64)):
        vectors, error = refined_eigenvectors(matrix, 2)
        torch.testing.assert_close(vectors.mT @ vectors, torch.eye(2).double(), rtol=0, atol=1e-13)
        assert float(error.max()) < 1e-13
