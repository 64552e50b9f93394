"""Block Golub-Kahan against LAPACK, on matrices, operators and stacks, and what it refuses to answer for."""

import pytest
import torch
from matrices import decaying, with_spectrum
from refusals import refused
from triplets import check_triplets

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.svd import krylov
from coupling_lib.svd.krylov import golub_kahan, golub_kahan_stacked, top_eigenvectors
from coupling_lib.svd.triplets import IllDefinedSubspaceWarning, top_triplets

close = torch.testing.assert_close


def drawn(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plateau(d: int, copies: int) -> torch.Tensor:
    """`copies` singular values of 1, then a decay from 1/2."""
    return torch.cat([torch.ones(copies, dtype=torch.float64), decaying(d - copies) / 2])


class Counted:
    """A matrix that only multiplies, and counts the columns it was given."""

    def __init__(self, matrix: torch.Tensor, counts: list[int] | None = None):
        self.matrix, self.shape = matrix, matrix.shape
        self.counts = [] if counts is None else counts

    @property
    def T(self) -> "Counted":  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
        return Counted(self.matrix.T, self.counts)

    def __matmul__(self, V: torch.Tensor) -> torch.Tensor:
        self.counts.append(V.shape[1])
        return self.matrix @ V.to(self.matrix.dtype)


MATRICES = {"decay": with_spectrum(decaying(200)), "flat": with_spectrum(decaying(200, 0.0))}
MATRICES |= {"plateau": with_spectrum(plateau(200, 40)), "tall": drawn(150, 90), "wide": drawn(90, 150)}
MATRICES |= {"odd": drawn(101, 101)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("J", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("k", [1, 10, 60])
def test_krylov_triplets_and_their_images_equal_lapack(dtype, J, k):
    J = J.to(dtype)
    found = golub_kahan(J, k)
    check_triplets(J, found, rtol=3e-6 if dtype == torch.float32 else 1e-8, atol=1e-5)
    tight = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-12}
    close(found.images, (J @ found.Vh.T, J.T @ found.U), **tight)
    assert found.columns <= min(J.shape)


def test_krylov_basis_finds_gaussian_and_repeated_values():
    J = drawn(400, 400, seed=1).float()
    found = golub_kahan(J, 5)
    close(found.S, torch.linalg.svdvals(J)[:5], rtol=1e-5, atol=0)
    assert found.columns < 300
    J = with_spectrum(plateau(240, 40))
    close(golub_kahan(J, 45, block=16).S[:40], torch.ones(40, dtype=torch.float64))
    assert golub_kahan(J, 16, block=16).next_value == pytest.approx(1)
    for n in [40, 400, 600]:
        G = torch.diag_embed(torch.arange(1, n + 1, dtype=torch.float64).expand(2, n))
        close(top_eigenvectors(G, 3).abs(), torch.eye(n).flip(1)[:, :3].double().expand(2, n, 3))


@pytest.mark.parametrize("ratio", [7, 354, 7000])
def test_float64_krylov_resolves_values_below_an_outlier(ratio):
    J = with_spectrum(decaying(300, ratio=ratio))
    check_triplets(J, golub_kahan(J, 50, tolerance=1e-6), rtol=1e-8, atol=2e-6 / ratio)


def test_triplets_beyond_the_rank_are_orthonormal():
    J = with_spectrum(torch.cat([decaying(20), torch.zeros(180, dtype=torch.float64)]))
    check_triplets(J, golub_kahan(J, 30), rtol=1e-10, atol=1e-12, of_values=1e-13)


def test_unconverged_wrong_and_zero_operators_are_refused(monkeypatch):
    class Wrong(Counted):
        """Its products with J^T are those of a matrix a hundredth off."""

        @property
        def T(self) -> "Counted":  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
            return Counted(self.matrix.T + 0.01 * torch.roll(self.matrix, 1, 0), self.counts)

    error, wrong = UntrustworthyResultError, Wrong(with_spectrum(decaying(200)))
    refused(error, "a singular triplet has residual|the largest residual", top_triplets, wrong, 5)
    refused(error, "zero", golub_kahan, Counted(torch.zeros(40, 40)), 3)
    refused(error, "NaN", golub_kahan, Counted(torch.full((40, 40), torch.nan)), 3)
    refused(ParameterError, r"k is 41; a \(40, 40\) operator has 40 singular values", golub_kahan, torch.eye(40), 41)
    with pytest.warns(IllDefinedSubspaceWarning, match="k=10"):
        top_triplets(Counted(torch.eye(64)), 10)
    monkeypatch.setattr(krylov, "MORE_COLUMNS", 64 - 20 * 20)
    J = with_spectrum(decaying(300, 0.1))
    refused(error, r"after 64 columns the largest residual of 20 .* \d\.\de-0\d", golub_kahan, J, 20)


def test_operators_are_only_multiplied():
    J = Counted(with_spectrum(decaying(256)))
    found, searched = golub_kahan(J, 8), J.counts.copy()
    assert found.U.dtype == torch.float64
    # One column more: the probe for the operator's dtype.
    assert sum(searched) == 2 * found.columns + 1 and max(searched) == 16
    top_triplets(J, 8)
    assert J.counts == 2 * searched  # triplets are certified by products that were made
    J = with_spectrum(decaying(150)).float()
    close(golub_kahan(J, 12)[:3], golub_kahan(J.clone(), 12)[:3], rtol=0, atol=0)


def stack(count: int = 3, rows: int = 400, columns: int = 400) -> torch.Tensor:
    """Matrices whose singular values are i^(-1/2), of different scales."""
    n = min(rows, columns)
    left, right = (torch.linalg.qr(drawn(count, d, n, seed=seed)).Q for seed, d in enumerate((rows, columns)))
    return (left * decaying(n) * torch.tensor([1.0, 50.0, 1e-3])[:count, None, None]) @ right.mT


@pytest.mark.parametrize(("dtype", "tolerance", "rtol"), [(torch.float32, 1e-5, 1e-6), (torch.float64, 1e-10, 1e-12)])
@pytest.mark.parametrize("shape", [(400, 400), (330, 420), (420, 330)])
def test_stacked_triplets_are_those_of_lapack(dtype, tolerance, rtol, shape):
    J = stack(3, *shape).to(dtype)
    found, converged = golub_kahan_stacked(J, 8, tolerance)
    assert converged.all()
    check_triplets(J, found, rtol=rtol, atol=0.7 * tolerance)
    close(found.next_value.double(), torch.linalg.svdvals(J.double())[:, 8], rtol=1e-2, atol=0)


def test_squares_are_those_of_the_bidiagonal_matrix():
    diagonal, above = drawn(2, 4, 3, 3, seed=0)
    B = torch.block_diag(*diagonal)
    B[:-3, 3:] += torch.block_diag(*above[:-1])  # nothing is to the right of the last block
    close(krylov._squares(diagonal, above), B.T @ B, rtol=1e-13, atol=1e-13)


def test_unconverged_bases_are_reported():
    flat = torch.eye(96) + 1e-3 * drawn(2, 96, 96, seed=0).float()
    found, converged = golub_kahan_stacked(flat, 20)
    assert not converged.any() and not found.U.any() and not found.Vh.any()
    J = stack(2).float()
    J[0, 4:] = 0
    found, converged = golub_kahan_stacked(J, 8)
    assert converged.tolist() == [False, True]
    close(found.S[1].double(), torch.linalg.svdvals(J[1].double())[:8], rtol=1e-6, atol=0)
