"""Block Golub-Kahan against LAPACK, on matrices and on operators, and operators across libraries."""

import numpy as np
import pytest
import torch
from matrices import decaying, with_spectrum
from refusals import refused
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import aslinearoperator

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.svd import krylov
from coupling_lib.svd.krylov import golub_kahan, top_eigenvectors
from coupling_lib.svd.operators import as_torch_operator, fewer_products
from coupling_lib.svd.triplets import IllDefinedSubspaceWarning, top_triplets


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("S", [decaying(200), decaying(200, 0.0), plateau(200, 40)], ids=["decay", "flat", "plateau"])
@pytest.mark.parametrize("k", [1, 10, 50])
def test_krylov_triplets_equal_lapack(dtype, S, k):
    J = with_spectrum(S).to(dtype)
    found = golub_kahan(J, k)
    tight = 3e-6 if dtype == torch.float32 else 1e-5
    torch.testing.assert_close(found.S, torch.linalg.svdvals(J.double())[:k].to(dtype), rtol=3e-6, atol=0)
    torch.testing.assert_close(J @ found.Vh.T, found.U * found.S, rtol=0, atol=tight)
    torch.testing.assert_close(J.T @ found.U, found.Vh.T * found.S, rtol=0, atol=tight)
    for basis in (found.U.T, found.Vh):
        torch.testing.assert_close(basis @ basis.T, torch.eye(k, dtype=dtype), rtol=0, atol=5e-6)
    assert found.columns <= 200


def test_krylov_basis_finds_gaussian_and_repeated_values():
    J = torch.randn(400, 400, generator=torch.Generator().manual_seed(1))
    found = golub_kahan(J, 5)
    torch.testing.assert_close(found.S, torch.linalg.svdvals(J)[:5], rtol=1e-5, atol=0)
    assert found.columns < 300
    J = with_spectrum(plateau(240, 40))
    torch.testing.assert_close(golub_kahan(J, 45, block=16).S[:40], torch.ones(40, dtype=torch.float64))
    assert golub_kahan(J, 16, block=16).next_value == pytest.approx(1)
    for n in [40, 400, 600]:
        G = torch.diag_embed(torch.arange(1, n + 1, dtype=torch.float64).expand(2, n))
        torch.testing.assert_close(top_eigenvectors(G, 3).abs(), torch.eye(n).flip(1)[:, :3].double().expand(2, n, 3))


@pytest.mark.parametrize("ratio", [7, 354, 7000])
def test_float64_krylov_resolves_values_below_an_outlier(ratio):
    S = decaying(300, ratio=ratio)
    J = with_spectrum(S)
    found = golub_kahan(J, 50, tolerance=1e-6)
    torch.testing.assert_close(found.S, S[:50], rtol=1e-8, atol=0)
    assert float((J.T @ found.U - found.Vh.T * found.S).norm(dim=0).max()) <= 2e-6 * float(S[49])


@pytest.mark.parametrize("shape", [(150, 90), (90, 150), (101, 101)])
def test_krylov_triplets_are_exact_for_any_shape(shape):
    J = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = golub_kahan(J, 60)
    torch.testing.assert_close(found.S, torch.linalg.svdvals(J)[:60], rtol=1e-8, atol=0)
    torch.testing.assert_close((found.U * found.S).T @ (J @ found.Vh.T), found.S.square().diag(), rtol=1e-7, atol=1e-4)
    assert found.U.shape == (shape[0], 60) and found.Vh.shape == (60, shape[1])


@pytest.mark.parametrize("shape", [(150, 90), (90, 150)])
def test_images_of_triplets_cost_no_further_products(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    J = Counted(matrix)
    found = golub_kahan(J, 7)
    pushed, pulled = found.images
    torch.testing.assert_close(pushed, matrix @ found.Vh.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(pulled, matrix.T @ found.U, rtol=0, atol=1e-12)
    searched = J.counts.copy()
    top_triplets(J, 7)
    assert J.counts == 2 * searched


def test_operator_with_wrong_transpose_is_refused():
    class Wrong(Counted):
        """Its products with J^T are those of a matrix a hundredth off."""

        @property
        def T(self) -> "Counted":  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
            return Counted(self.matrix.T + 0.01 * torch.roll(self.matrix, 1, 0), self.counts)

    with pytest.raises(UntrustworthyResultError, match="a singular triplet has residual|the largest residual"):
        top_triplets(Wrong(with_spectrum(decaying(200))), 5)
    S = torch.cat([decaying(20), torch.zeros(180, dtype=torch.float64)])
    found = golub_kahan(with_spectrum(S), 30)
    torch.testing.assert_close(found.S, S[:30], rtol=1e-10, atol=1e-13)
    for basis in (found.U.T, found.Vh):
        torch.testing.assert_close(basis @ basis.T, torch.eye(30, dtype=torch.float64), rtol=0, atol=1e-12)


def test_zeros_and_unconverged_bases_raise_with_the_reason(monkeypatch):
    refused(UntrustworthyResultError, "zero", golub_kahan, Counted(torch.zeros(40, 40)), 3)
    refused(UntrustworthyResultError, "NaN", golub_kahan, Counted(torch.full((40, 40), torch.nan)), 3)
    refused(ParameterError, r"k is 41; a \(40, 40\) operator has 40 singular values", golub_kahan, torch.eye(40), 41)
    monkeypatch.setattr(krylov, "MORE_COLUMNS", 64 - 20 * 20)
    J = with_spectrum(decaying(300, 0.1))
    refused(UntrustworthyResultError, r"after 64 columns the largest residual of 20 .* \d\.\de-0\d", golub_kahan, J, 20)


def test_operators_and_block_jacobians_are_only_multiplied():
    J = Counted(with_spectrum(decaying(256)))
    found = golub_kahan(J, 8)
    assert found.U.dtype == torch.float64
    # One column more: the probe for the operator's dtype.
    assert sum(J.counts) == 2 * found.columns + 1 and max(J.counts) == 16
    J = with_spectrum(decaying(150)).float()
    first, second = golub_kahan(J, 12), golub_kahan(J.clone(), 12)
    assert all(torch.equal(a, b) for a, b in zip(first[:3], second[:3], strict=True))
    J = cl.trace(cl.load_model("nano-neox"), "She looked at the sea and").jacobian(block=8)
    found = top_triplets(J, 10)
    assert "_dense" not in J.__dict__
    wanted = top_triplets(J.dense(), 10)
    torch.testing.assert_close(found.S, wanted.S, rtol=1e-5, atol=0)
    torch.testing.assert_close((found.U.T @ wanted.U).abs(), torch.eye(10), rtol=0, atol=1e-3)
    assert float(found.residual.max()) < 1e-5


@pytest.mark.parametrize("wrap", [csr_matrix, np.asarray, aslinearoperator])
def test_operators_of_other_libraries_are_accepted(wrap):
    A = with_spectrum(decaying(60)).numpy()
    found = top_triplets(wrap(A), 4)
    torch.testing.assert_close(found.S, decaying(60)[:4], rtol=1e-8, atol=0)
    assert found.U.dtype == torch.float64


@pytest.mark.parametrize("wrap", [csr_matrix, aslinearoperator], ids=["sparse", "scipy"])
def test_operators_of_other_libraries_multiply_arrays(wrap):
    A = np.arange(6.0).reshape(2, 3)
    operator = as_torch_operator(wrap(A))
    for V in (np.ones((3, 2)), np.ones(3, dtype="float32"), torch.ones(3, 1)):
        found = operator @ V
        assert isinstance(found, torch.Tensor)
        np.testing.assert_allclose(found, A @ np.asarray(V))
    for factor, message in [
        ([1.0], "is \\[1.0\\] \\(list\\)"),
        (np.full(3, np.nan), "3 of 3"),
        (np.ones(2), "shape \\(2,\\)"),
    ]:
        with pytest.raises(ParameterError, match=f"^the factor .*{message}"):
            operator @ factor


def test_products_are_preferred_for_wide_models():
    assert not fewer_products(d=768, k=10, n_blocks=12)
    assert not fewer_products(d=1024, k=10, n_blocks=24)
    assert not fewer_products(d=2048, k=10, n_blocks=16) and fewer_products(d=2560, k=10, n_blocks=32)
    assert fewer_products(d=4096, k=10, n_blocks=32) and fewer_products(d=4096, k=30, n_blocks=32)
    assert not fewer_products(d=4096, k=50, n_blocks=32)
    refused(ParameterError, "the operator is a str", as_torch_operator, "J")
    with pytest.warns(IllDefinedSubspaceWarning, match="k=10"):
        top_triplets(Counted(torch.eye(64)), 10)
