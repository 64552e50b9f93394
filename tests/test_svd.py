"""Singular triplets against LAPACK, and their certificate."""

from __future__ import annotations

import pytest
import torch

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.svd import top_triplets


def matrix_with_spectrum(S: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    d = len(S)
    U, V = (torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0] for _ in range(2))
    return U @ torch.diag(S.double()) @ V.T


@pytest.mark.parametrize("outlier", [1.0, 350.0, 7000.0])
def test_triplets_satisfy_their_definition_even_with_an_outlier(outlier):
    S = torch.arange(1, 65, dtype=torch.float64) ** -0.5
    S[0] *= outlier
    J = matrix_with_spectrum(S)
    U, found, Vh, residual = top_triplets(J, 50)
    torch.testing.assert_close(found, S[:50], rtol=1e-10, atol=0)
    torch.testing.assert_close(J @ Vh.T, U * found, rtol=0, atol=1e-10 * outlier)
    torch.testing.assert_close(J.T @ U, Vh.T * found, rtol=0, atol=1e-10 * outlier)
    torch.testing.assert_close(U.T @ U, torch.eye(50, dtype=torch.float64), rtol=0, atol=1e-10)
    assert float(residual.max()) < 1e-12


def test_float32_matrix_gives_float32_triplets_with_a_small_residual():
    triplets = top_triplets(matrix_with_spectrum(torch.linspace(3, 1, 40)).float(), 10)
    assert all(part.dtype == torch.float32 for part in triplets)
    assert float(triplets.residual.max()) < 1e-6


def test_joint_sign_is_fixed_by_the_largest_entry_of_v():
    J = matrix_with_spectrum(torch.linspace(3, 1, 12))
    Vh = top_triplets(J, 6).Vh
    assert (Vh.gather(1, Vh.abs().argmax(1, keepdim=True)) > 0).all()
    torch.testing.assert_close(top_triplets(J.clone(), 6).U, top_triplets(J, 6).U, rtol=0, atol=0)


@pytest.mark.parametrize("k", [0, 13, -1])
def test_k_outside_the_matrix_is_refused(k):
    with pytest.raises(ParameterError, match=f"k is {k}; a \\(12, 12\\) Jacobian has from 1 to 12"):
        top_triplets(torch.eye(12), k)


def test_zero_nan_and_an_unmet_tolerance_raise():
    with pytest.raises(UntrustworthyResultError, match="zero"):
        top_triplets(torch.zeros(4, 4), 1)
    with pytest.raises(UntrustworthyResultError, match="NaN"):
        top_triplets(torch.full((4, 4), torch.nan), 1)
    with pytest.raises(UntrustworthyResultError, match="residual"):
        top_triplets(matrix_with_spectrum(torch.linspace(3, 1, 12)), 3, tolerance=1e-30)
