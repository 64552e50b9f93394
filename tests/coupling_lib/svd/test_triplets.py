"""Singular triplets against LAPACK in float64, their certificate, and what they give the coupling metric."""

import re
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


# By name: the spectrum of a width, K, and the warning if K cuts through equal values.
SPECTRA = {
    **{f"outlier {ratio}": (partial(decaying, ratio=ratio), 50, None) for ratio in (7, 354, 7000)},
    "rank 8": (lambda d: torch.arange(8, 8 - d, -1.0).relu(), 20, "k=20: the relative gap"),
    "flat": (
        lambda d: torch.tensor([3.0, 2.0] + [1.0] * (d - 2)), 5, r"k=5: the relative gap \(s_5 - s_6\) / s_1 is -?\d"
    ),
}  # fmt: skip
PRECISIONS = [(60, torch.float64, 1e-12), (150, torch.float64, 1e-9), *((d, torch.float32, 3e-6) for d in (60, 150))]


@pytest.mark.parametrize(("d", "dtype", "atol"), PRECISIONS)
@pytest.mark.parametrize(("spectrum", "k", "message"), SPECTRA.values(), ids=SPECTRA)
def test_triplets_satisfy_their_definition_or_warn_once(wide_from_100, spectrum, k, message, d, dtype, atol):
    J = with_spectrum(spectrum(d)).to(dtype)
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = top_triplets(J, k)
    assert [each.category for each in caught] == [IllDefinedSubspaceWarning] * (message is not None)
    assert all(re.search(message, str(each.message)) for each in caught)
    check_triplets(J, found, rtol=3e-6 if dtype == torch.float32 else 1e-10, atol=atol, of_values=atol)
    assert found.residual.dtype == dtype and float(found.residual.max()) <= min(atol, 1e-6)
    assert (found.Vh.gather(1, found.Vh.abs().argmax(1, keepdim=True)) > 0).all()


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
        check_triplets(J, top_triplets(J, 5), rtol=1e-5, atol=1e-5)
    assert widths == [1024]


@pytest.mark.parametrize("change", [lambda J: J[::-1], lambda J: J.astype(">f8"), lambda J: J.astype(np.longdouble)])
def test_any_dtype_and_layout_is_decomposed(change):
    J = change(with_spectrum(torch.linspace(3, 1, 12)).numpy())
    np.testing.assert_allclose(top_triplets(J, 3).S, torch.linspace(3, 1, 12)[:3], rtol=1e-6)


def test_unconverged_wide_matrices_are_decomposed_by_lapack(wide_from_100):
    # Krylov bases of 16 columns a step cannot do a value that occurs 20 times, nor more triplets than the rank.
    S = decaying(240, ratio=7)
    spectra = (S * (torch.arange(240) < 10), torch.cat([torch.full((20,), 3.0), S[20:]]), S)
    J = torch.stack([with_spectrum(spectrum) for spectrum in spectra]).float()
    assert golub_kahan_stacked(J, 9)[1].tolist() == [False, True, True]
    assert golub_kahan_stacked(J, 18)[1].tolist() == [False, False, True]
    with pytest.warns(IllDefinedSubspaceWarning):
        found = top_triplets_stacked(J, 18)
    check_triplets(J, found, rtol=1e-6, atol=1e-5, of_values=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [60, 120])
def test_stacked_triplets_equal_those_of_each_matrix(wide_from_100, d, dtype):
    spectra = [decaying(d, ratio=ratio) for ratio in (2, 7, 7000)]
    J = torch.stack([with_spectrum(S, seed) for seed, S in enumerate(spectra)]).to(dtype)
    stacked = top_triplets_stacked(J, 6)
    tight = 3e-6 if dtype == torch.float32 else 1e-9
    check_triplets(J, stacked, rtol=tight, atol=tight)
    torch.testing.assert_close(top_triplets_stacked(J.clone(), 6), stacked, rtol=0, atol=0)
    for index in range(3):
        alone = top_triplets(J[index], 6)
        torch.testing.assert_close([part[index] for part in stacked], [*alone], rtol=1e-5, atol=1e-6)


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


COMPLEX = "the operator has dtype complex128; real numbers are expected"
INVALID = [
    *(
        (f"k is {k}; a \\(12, 12\\) Jacobian has 12 singular values", top_triplets, torch.eye(12), k)
        for k in (0, 13, -1)
    ),
    *(("a stack of matrices", top_triplets_stacked, torch.ones(shape), 1) for shape in ((4, 4), (0, 4, 4))),
    ("the matrix is torch.bfloat16; convert it to torch.float32", top_triplets, torch.eye(4, dtype=torch.bfloat16), 2),
    ("shape \\(2, 3, 4\\)", top_triplets, torch.ones(2, 3, 4), 1),
    *((COMPLEX, top_triplets, wrap(np.eye(4) * 1j), 2) for wrap in (csr_array, aslinearoperator)),
]


UNCERTIFIED = [
    *(("zero", top_triplets, torch.zeros(d, d), 1) for d in (4, 150)),
    *(("NaN", top_triplets, torch.full((d, d), torch.nan), 1) for d in (4, 150)),
    *(("infinite", top_triplets, torch.eye(d) / 0, 1) for d in (4, 150)),
    *(("residual", top_triplets, with_spectrum(torch.linspace(3, 1, d)), 3, 1e-30) for d in (4, 150)),
]
REFUSED = [(ParameterError, INVALID), (UntrustworthyResultError, UNCERTIFIED)]


@pytest.mark.parametrize("given", [(error, *row) for error, rows in REFUSED for row in rows])
def test_matrices_without_certified_triplets_are_refused(wide_from_100, given):
    refused(*given)
