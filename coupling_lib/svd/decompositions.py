"""LAPACK's decompositions, by its other driver where the first does not converge.

Divide and conquer, which is the faster one, fails on few matrices, and differently from one build of LAPACK to the
next. QR iteration, in float64, nearly always converges.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from coupling_lib.errors import UntrustworthyResultError

_FAILED = (torch.linalg.LinAlgError, np.linalg.LinAlgError, ValueError)


def svd(A: Tensor, *, full_matrices: bool = True) -> tuple[Tensor, ...]:
    """Decompose a matrix, or a stack, into U, S, Vh."""
    try:
        return tuple(torch.linalg.svd(A, full_matrices=full_matrices))
    except torch.linalg.LinAlgError:
        return _one_by_one(A, lambda one: scipy.linalg.svd(one, full_matrices=full_matrices, lapack_driver="gesvd"))


def eigh(G: Tensor) -> tuple[Tensor, ...]:
    """Compute eigenvalues, smallest first, and eigenvectors of a symmetric matrix, or of a stack."""
    try:
        return tuple(torch.linalg.eigh(G))
    except torch.linalg.LinAlgError:
        return _one_by_one(G, lambda one: scipy.linalg.eigh(one, driver="ev"))


def last_eigenvectors(G: Tensor, k: int) -> Tensor:
    """Compute eigenvectors of the k largest eigenvalues of a symmetric matrix, smallest first."""
    n = len(G)
    try:
        some = scipy.linalg.eigh(G.numpy(), subset_by_index=(n - k, n - 1), driver="evr", check_finite=False)
    except _FAILED:
        return eigh(G)[1][:, n - k :]
    return torch.from_numpy(some[1])


def _one_by_one(A: Tensor, decompose: Callable[[np.ndarray], Sequence[Any]]) -> tuple[Tensor, ...]:
    stack = A.detach().cpu().double().numpy().reshape(-1, *A.shape[-2:])
    try:
        found = [decompose(one) for one in stack]
    except _FAILED as error:
        raise UntrustworthyResultError(
            f"the decomposition of {A.shape[-2]} x {A.shape[-1]} entries up to {float(abs(stack).max()):.1e} does not "
            "converge by either driver of LAPACK; look for weights that are that large"
        ) from error
    parts = (torch.from_numpy(np.stack(each)).to(A) for each in zip(*found, strict=True))
    return tuple(part.reshape(*A.shape[:-2], *part.shape[1:]) for part in parts)
