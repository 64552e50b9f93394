"""Batched Krylov bases against LAPACK in float64, and what they refuse to answer for."""

import pytest
import torch

from coupling_lib.svd.krylov import _squares, golub_kahan, golub_kahan_stacked


def stack(count: int = 3, rows: int = 400, columns: int = 400) -> torch.Tensor:
    """Matrices whose singular values are i^(-1/2), of different scales."""
    generator = torch.Generator().manual_seed(1)
    n = min(rows, columns)

    def frame(d: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(count, d, n, generator=generator, dtype=torch.float64))[0]

    S = torch.arange(1, n + 1, dtype=torch.float64) ** -0.5 * torch.tensor([1.0, 50.0, 1e-3])[:count, None]
    return (frame(rows) * S[:, None]) @ frame(columns).mT


@pytest.mark.parametrize(("dtype", "tolerance", "rtol"), [(torch.float32, 1e-5, 1e-6), (torch.float64, 1e-10, 1e-12)])
@pytest.mark.parametrize("shape", [(400, 400), (330, 420), (420, 330)])
def test_triplets_are_those_of_lapack(dtype, tolerance, rtol, shape):
    J = stack(3, *shape)
    found, converged = golub_kahan_stacked(J.to(dtype), 8, tolerance)
    assert converged.all()
    S = torch.linalg.svdvals(J)
    torch.testing.assert_close(found.S.double(), S[:, :8], rtol=rtol, atol=0)
    torch.testing.assert_close(found.next_value.double(), S[:, 8], rtol=1e-2, atol=0)
    left = (found.Vh.double() @ J.mT - found.S.double()[..., None] * found.U.mT.double()).norm(dim=2)
    right = (found.U.mT.double() @ J - found.S.double()[..., None] * found.Vh.double()).norm(dim=2)
    assert float((torch.maximum(left, right) / S[:, 7:8]).max()) < 2 * tolerance


def test_stacked_bases_equal_those_of_one_matrix():
    J = stack(1).float()
    one, many = golub_kahan(J[0], 8), golub_kahan_stacked(J, 8)[0]
    torch.testing.assert_close(many.S[0], one.S, rtol=1e-6, atol=0)
    torch.testing.assert_close((many.Vh[0] @ one.Vh.T).abs(), torch.eye(8), rtol=0, atol=1e-3)
    diagonal, above = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    B = torch.block_diag(*diagonal)
    B[:-3, 3:] += torch.block_diag(*above[:-1])  # nothing is to the right of the last block
    torch.testing.assert_close(_squares(diagonal, above), B.T @ B, rtol=1e-13, atol=1e-13)


def test_unconverged_bases_are_reported():
    flat = torch.eye(96) + 1e-3 * torch.randn(2, 96, 96, generator=torch.Generator().manual_seed(0))
    found, converged = golub_kahan_stacked(flat, 20)
    assert not converged.any() and not found.U.any() and not found.Vh.any()
    J = stack(2).float()
    J[0, 4:] = 0
    found, converged = golub_kahan_stacked(J, 8)
    assert converged.tolist() == [False, True]
    torch.testing.assert_close(found.S[1].double(), torch.linalg.svdvals(J[1].double())[:8], rtol=1e-6, atol=0)
