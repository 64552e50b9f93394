"""Decompositions where LAPACK's first driver does not converge, and where no driver does."""

import numpy as np
import pytest
import scipy.linalg
import torch

from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.svd import operators, triplets


def matrices(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)


@pytest.fixture
def fails(monkeypatch):
    """Divide and conquer fails, in torch and in scipy."""

    def no(*_, **__):
        raise torch.linalg.LinAlgError("The algorithm failed to converge")

    whole = scipy.linalg.eigh

    def eigh(*args, driver, **options):
        if driver == "evr":
            raise np.linalg.LinAlgError("Internal Error.")
        return whole(*args, driver=driver, **options)

    monkeypatch.setattr(torch.linalg, "svd", no)
    monkeypatch.setattr(torch.linalg, "eigh", no)
    monkeypatch.setattr(scipy.linalg, "eigh", eigh)


def test_another_driver_gives_the_same_decomposition(fails):
    A = matrices(3, 12)[:, :, :9]
    U, S, Vh = operators.lapack_svd(A, full_matrices=False)
    np.testing.assert_allclose(S, np.linalg.svd(A.numpy(), compute_uv=False), rtol=1e-12)
    torch.testing.assert_close(U * S[:, None] @ Vh, A)
    G = A.mT @ A
    values, vectors = operators.lapack_eigh(G)
    torch.testing.assert_close(vectors * values[:, None] @ vectors.mT, G)
    few = operators.last_eigenvectors(G[0], 2)
    torch.testing.assert_close((few.mT @ G[0] @ few).diagonal(), values[0, -2:])


# The narrow ones by all eigenvectors, the wide one by few, and by a Krylov space.
@pytest.mark.parametrize("d", [24, 96, 600])
def test_triplets_do_not_depend_on_the_first_driver(fails, d):
    J = matrices(1, d)[0]
    found = triplets.top_triplets(J, 4)
    np.testing.assert_allclose(found.S, np.linalg.svd(J.numpy(), compute_uv=False)[:4], rtol=1e-8)
    torch.testing.assert_close(found.U * found.S, J @ found.Vh.mT)


def test_matrices_without_a_decomposition_are_refused():
    with pytest.raises(UntrustworthyResultError, match="a singular triplet has residual inf"):
        triplets.top_triplets(matrices(1, 24)[0] * 1e200, 3)
    A = torch.full((4, 4), torch.inf)
    with pytest.raises(UntrustworthyResultError, match="4 x 4 entries up to inf does not converge by either driver"):
        operators.lapack_svd(A)
