"""Singular triplets against LAPACK in float64, their certificate, and what they give the coupling metric."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from matrices import decaying, orthogonal, with_spectrum
from refusals import refused
from scipy.sparse import csr_array
from scipy.sparse.linalg import aslinearoperator
from triplets import check_triplets

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.svd import triplets as svd
from coupling_lib.svd.krylov import golub_kahan_stacked
from coupling_lib.svd.triplets import IllDefinedSubspaceWarning, top_triplets, top_triplets_stacked


def coupled_pair(d: int, ratio: float) -> list[torch.Tensor]:
    """Two float32 matrices whose singular vectors differ by a small rotation."""
    J = with_spectrum(decaying(d, ratio=ratio))
    rotations = (torch.eye(d).double() + 0.1 * (orthogonal(d, seed) - orthogonal(d, seed).T) for seed in (7, 8))
    return [(torch.linalg.qr(rotation)[0] @ J).float() for rotation in rotations]


def mismatch(J1: torch.Tensor, svd1, svd2, k: int) -> float:
    A = svd2.U[:, :k].double().T @ J1.double() @ svd2.Vh[:k].double().T
    S = svd1.S[:k].double()
    return float((A - S.diag()).norm() / S.norm())


@pytest.fixture
def wide_from_100(monkeypatch):
    """Send matrices of width 100 along the route of wide ones."""
    monkeypatch.setattr(svd, "_KRYLOV_WIDTH", 100)
    monkeypatch.setattr(svd, "_COLUMNS_PER_TRIPLET", 1)
    monkeypatch.setattr(svd, "_FLOAT64_KRYLOV_WIDTH", 100)


QUIET = partial(warnings.catch_warnings, action="error")
WARNED = partial(pytest.warns, IllDefinedSubspaceWarning)
SPECTRA = {f"outlier {ratio}": (partial(decaying, ratio=ratio), 50, QUIET) for ratio in (7, 354, 7000)} | {
    "rank 8": (lambda d: torch.arange(8, 8 - d, -1.0).relu(), 20, partial(WARNED, match="k=20: the relative gap")),
    "flat": (
        lambda d: torch.tensor([3.0, 2.0] + [1.0] * (d - 2)),
        *(5, partial(WARNED, match=r"k=5: the relative gap \(s_5 - s_6\) / s_1 is -?\d")),
    ),
}
PRECISIONS = [(60, torch.float64, 1e-12), (150, torch.float64, 1e-9), (60, torch.float32, 3e-6)]


@pytest.mark.parametrize(("d", "dtype", "atol"), [*PRECISIONS, (150, torch.float32, 3e-6)])
@pytest.mark.parametrize(("spectrum", "k", "expected"), SPECTRA.values(), ids=SPECTRA)
def test_triplets_satisfy_their_definition_or_warn_once(wide_from_100, spectrum, k, expected, d, dtype, atol):
    J = with_spectrum(spectrum(d)).to(dtype)
    with expected() as caught:
        found = top_triplets(J, k)
    assert caught is None or len(caught) == 1
    check_triplets(J, found, rtol=3e-6 if dtype == torch.float32 else 1e-10, atol=atol, of_values=atol)
    assert float(found.residual.max()) <= atol


@pytest.mark.parametrize("ratio", [7, 354, 7000])
@pytest.mark.parametrize(("d", "way"), [(96, "by squares"), (400, "by squares"), (300, "as wide ones")])
def test_coupling_mismatch_is_that_of_a_float64_decomposition(request, d, way, ratio):
    if way == "as wide ones":
        request.getfixturevalue("wide_from_100")
    J = coupled_pair(d, ratio)
    full, ours = [torch.linalg.svd(matrix.double()) for matrix in J], [top_triplets(matrix, 50) for matrix in J]
    for k in (10, 30, 50):
        wanted = mismatch(J[0], *full, k)
        assert 0.01 < wanted < 1
        assert mismatch(J[0], *ours, k) == pytest.approx(wanted, rel=1e-4)
        torch.testing.assert_close(ours[0].S[:k].double(), full[0].S[:k], rtol=1e-6, atol=0)


def test_only_wide_matrices_take_the_krylov_route(monkeypatch):
    widths = []

    def recorded(matrix, *arguments):
        widths.append(matrix.shape[1])
        return golub_kahan_stacked(matrix, *arguments)

    monkeypatch.setattr(svd, "golub_kahan_stacked", recorded)
    generator = torch.Generator().manual_seed(0)
    for d in (256, 1024):
        J = torch.randn(d, 60, generator=generator) @ torch.randn(60, d, generator=generator)
        found = top_triplets(J, 5)
        torch.testing.assert_close(found.S, torch.linalg.svdvals(J)[:5], rtol=1e-5, atol=0)
    assert widths == [1024]


def test_any_shape_dtype_and_layout_is_decomposed():
    for shape in [(40, 25), (25, 40)]:
        J = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        U, S, Vh, _ = top_triplets(J, 25)
        torch.testing.assert_close((U * S) @ Vh, J, rtol=0, atol=1e-12)
    for change in [lambda J: J[::-1], lambda J: J.astype(">f8"), lambda J: J.astype(np.longdouble)]:
        J = change(with_spectrum(torch.linspace(3, 1, 12)).numpy())
        np.testing.assert_allclose(top_triplets(J, 3).S, torch.linspace(3, 1, 12)[:3], rtol=1e-6)
    triplets = top_triplets(with_spectrum(torch.linspace(3, 1, 40)).float(), 10)
    assert all(part.dtype == torch.float32 for part in triplets)
    assert float(triplets.residual.max()) < 1e-6
    J = with_spectrum(torch.linspace(3, 1, 12))
    Vh = top_triplets(J, 6).Vh
    assert (Vh.gather(1, Vh.abs().argmax(1, keepdim=True)) > 0).all()


def low_rank_and_repeated(d: int) -> torch.Tensor:
    """A stack that Krylov bases of 16 columns a step cannot do: too low a rank, and a value that occurs 20 times."""
    S = decaying(d, ratio=7)
    repeated = torch.cat([torch.full((20,), 3.0), S[20:]])
    return torch.stack([with_spectrum(S * (torch.arange(d) < 10)), with_spectrum(repeated), with_spectrum(S)])


def test_unconverged_wide_matrices_are_decomposed_by_lapack(wide_from_100):
    J = low_rank_and_repeated(240).float()
    assert golub_kahan_stacked(J, 9)[1].tolist() == [False, True, True]
    assert golub_kahan_stacked(J, 18)[1].tolist() == [False, False, True]
    with pytest.warns(IllDefinedSubspaceWarning):
        found = top_triplets_stacked(J, 18)
    check_triplets(J, found, rtol=1e-6, atol=1e-5, of_values=1e-6)


def test_stacked_triplets_equal_those_of_each_matrix(wide_from_100):
    J = torch.stack([with_spectrum(decaying(60, ratio=ratio), seed) for seed, ratio in enumerate((2, 7, 7000))])
    for dtype in (torch.float32, torch.float64):
        stacked = top_triplets_stacked(J.to(dtype), 6)
        for index in range(3):
            alone = top_triplets(J[index].to(dtype), 6)
            torch.testing.assert_close([part[index] for part in stacked], [*alone], rtol=1e-5, atol=1e-6)
    J = torch.stack([with_spectrum(decaying(120, ratio=7), seed) for seed in (1, 2)])
    found = top_triplets_stacked(J, 6)
    check_triplets(J, found, rtol=1e-9, atol=1e-9)
    assert found.residual.shape == (2, 6)
    for d in [50, 120]:
        J = with_spectrum(decaying(d, ratio=7)).float()
        torch.testing.assert_close(top_triplets(J.clone(), 8), top_triplets(J, 8), rtol=0, atol=0)


def test_flat_spectra_of_a_stack_warn_once(wide_from_100):
    J = torch.stack([torch.eye(12), torch.diag(torch.linspace(3, 1, 12)), torch.eye(12)])
    with pytest.warns(IllDefinedSubspaceWarning, match="in 2 of 3 matrices") as caught:
        top_triplets_stacked(J, 5)
    assert len(caught) == 1
    generator = torch.Generator().manual_seed(5)
    spectra = [with_spectrum(decaying(d, ratio=ratio)).float() for d in (80, 150) for ratio in (7, 354, 7000)]
    gaussian = [torch.randn(d, d, generator=generator) for d in (96, 96, 96, 200)]
    with warnings.catch_warnings(action="error"):
        for J in spectra + gaussian:
            for k in (1, 10, 50):
                top_triplets(J, k)
        top_triplets(torch.eye(9), 9)


def test_invalid_matrices_and_ks_are_refused(wide_from_100):
    for shape in ((4, 4), (0, 4, 4)):
        refused(ParameterError, "a stack of matrices", top_triplets_stacked, torch.ones(shape), 1)
    imaginary, narrow = np.eye(4) * 1j, torch.eye(4, dtype=torch.bfloat16)
    complex_one = "the operator has dtype complex128; real numbers are expected"
    for J, k, message in (
        *((torch.eye(12), k, f"k is {k}; a \\(12, 12\\) Jacobian has 12 singular values") for k in (0, 13, -1)),
        (narrow, 2, "the matrix is torch.bfloat16; convert it to torch.float32"),
        (torch.ones(2, 3, 4), 1, "shape \\(2, 3, 4\\)"),
        *((wrap(imaginary), 2, complex_one) for wrap in (csr_array, aslinearoperator)),
    ):
        refused(ParameterError, message, top_triplets, J, k)
    for d in [4, 150]:
        for J, message in (
            (torch.zeros(d, d), "zero"),
            (torch.full((d, d), torch.nan), "NaN"),
            (torch.eye(d) / 0, "infinite"),
        ):
            refused(UntrustworthyResultError, message, top_triplets, J, 1)
        J = with_spectrum(torch.linspace(3, 1, d))
        refused(UntrustworthyResultError, "residual", top_triplets, J, 3, tolerance=1e-30)
