"""Operators of other libraries, and decompositions where LAPACK's first driver, or every driver, does not converge."""

import numpy as np
import pytest
import scipy.linalg
import torch
from refusals import refused
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import aslinearoperator
from triplets import check_triplets

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.svd.operators import as_torch_operator, fewer_products, lapack_eigh, lapack_svd, last_eigenvectors
from coupling_lib.svd.triplets import top_triplets


def matrices(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)


@pytest.fixture
def fails(monkeypatch):
    """Divide and conquer fails, in torch and in scipy."""
    whole = scipy.linalg.eigh

    def no(*_, **__):
        raise torch.linalg.LinAlgError("The algorithm failed to converge")

    def eigh(*args, driver, **options):
        if driver == "evr":
            raise np.linalg.LinAlgError("Internal Error.")
        return whole(*args, driver=driver, **options)

    monkeypatch.setattr(torch.linalg, "svd", no)
    monkeypatch.setattr(torch.linalg, "eigh", no)
    monkeypatch.setattr(scipy.linalg, "eigh", eigh)


def test_another_driver_gives_the_same_decomposition(fails):
    A = matrices(3, 12)[:, :, :9]
    check_triplets(A, lapack_svd(A, full_matrices=False), rtol=1e-12, atol=1e-12)
    G = A.mT @ A
    values, vectors = lapack_eigh(G)
    torch.testing.assert_close(vectors * values[:, None] @ vectors.mT, G)
    few = last_eigenvectors(G[0], 2)
    torch.testing.assert_close((few.mT @ G[0] @ few).diagonal(), values[0, -2:])


# The narrow ones by all eigenvectors, the wide one by few, and by a Krylov space.
@pytest.mark.parametrize("d", [24, 96, 600])
def test_triplets_do_not_depend_on_the_first_driver(fails, d):
    J = matrices(1, d)[0]
    check_triplets(J, top_triplets(J, 4), rtol=1e-8, atol=1e-9)


def test_matrices_without_a_decomposition_are_refused():
    error = UntrustworthyResultError
    refused(error, "a singular triplet has residual inf", top_triplets, matrices(1, 24)[0] * 1e200, 3)
    message = "4 x 4 entries up to inf does not converge by either driver"
    refused(error, message, lapack_svd, torch.full((4, 4), torch.inf))


@pytest.mark.parametrize("wrap", [csr_matrix, np.asarray, aslinearoperator])
def test_operators_of_other_libraries_are_decomposed(wrap):
    J = matrices(1, 60)[0]
    found = top_triplets(wrap(J.numpy()), 4)
    check_triplets(J, found, rtol=1e-8, atol=1e-5)
    assert found.U.dtype == torch.float64


@pytest.mark.parametrize("wrap", [csr_matrix, aslinearoperator], ids=["sparse", "scipy"])
def test_operators_of_other_libraries_multiply_arrays(wrap):
    A = np.arange(6.0).reshape(2, 3)
    operator = as_torch_operator(wrap(A))
    for V in (np.ones((3, 2)), np.ones(3, dtype="float32"), torch.ones(3, 1)):
        torch.testing.assert_close(operator @ V, torch.from_numpy(A @ np.asarray(V)))
    nan = np.full(3, np.nan)
    for factor, wanted in [([1.0], "is \\[1.0\\] \\(list\\)"), (nan, "3 of 3"), (np.ones(2), "shape \\(2,\\)")]:
        refused(ParameterError, f"^the factor .*{wanted}", operator.__matmul__, factor)
    refused(ParameterError, "the operator is a str", as_torch_operator, "J")


BY_PRODUCTS = {(768, 10, 12): False, (1024, 10, 24): False, (2048, 10, 16): False, (2560, 10, 32): True}
BY_PRODUCTS |= {(4096, 10, 32): True, (4096, 30, 32): True, (4096, 50, 32): False}


def test_products_are_preferred_for_wide_models():
    assert {(d, k, n): fewer_products(d=d, k=k, n_blocks=n) for d, k, n in BY_PRODUCTS} == BY_PRODUCTS
