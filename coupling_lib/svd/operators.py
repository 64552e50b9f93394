"""Operators in place of matrices, their factors, and LAPACK's decompositions.

LAPACK's faster driver, divide and conquer, fails on few matrices; QR iteration, in float64, replaces it there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from coupling_lib.errors import ParameterError, UntrustworthyResultError, shown

# Narrow products are memory-bound: one column costs as much as this many columns of a wide product.
NARROW_COST = 3

_FAILED = (torch.linalg.LinAlgError, np.linalg.LinAlgError, ValueError)


def as_torch_operator(operator: Any) -> Any:
    """Return any real linear operator in this library's form: `shape`, `@` and `.T @` over torch tensors."""
    of_scipy = isinstance(operator, LinearOperator) or type(operator).__module__.startswith("scipy.sparse")
    if of_scipy or isinstance(operator, np.ndarray):
        if np.dtype(operator.dtype).kind not in "fiub":
            raise ParameterError(f"the operator has dtype {operator.dtype}; real numbers are expected")
        own = operator.dtype.newbyteorder("=") if operator.dtype.itemsize <= 8 else np.float64
        return _FromNumpy(operator) if of_scipy else torch.from_numpy(np.ascontiguousarray(operator, own))
    if isinstance(operator, Tensor) and (operator.layout != torch.strided or operator.is_meta):
        raise ParameterError(f"the matrix is {shown(operator, 60)}; a dense tensor is expected")
    if len(getattr(operator, "shape", ())) != 2 or not hasattr(operator, "__matmul__") or not hasattr(operator, "T"):
        kind = type(operator).__name__
        raise ParameterError(f"the operator is a {kind}; a matrix or an object with `shape`, `@` and `.T` is expected")
    return operator


def form_square(name: str, J: Any) -> Tensor:
    """Form a square matrix, or an operator of one that has `dense()`, in float32 at least."""
    operator = as_torch_operator(J)
    if len(set(operator.shape)) != 1:
        shape = tuple(operator.shape)
        raise ParameterError(f"{name} has shape {shape}; a square matrix (d, d), or an operator of one, is expected")
    matrix = operator.dense() if hasattr(operator, "dense") else operator
    if not isinstance(matrix, Tensor):
        raise ParameterError(f"{name} is a {type(J).__name__} without `dense()`; all of it is needed, pass the matrix")
    if matrix.is_complex() or not bool(matrix.isfinite().all()):
        what = f"is {matrix.dtype}" if matrix.is_complex() else "holds NaN or infinite entries"
        raise ParameterError(f"{name} {what}; finite real numbers are expected")
    return matrix.to(torch.promote_types(matrix.dtype, torch.float32))


def real_factor(factor: Any, width: int) -> Tensor:
    """Check a factor of finite real numbers, `(width,)` or `(width, m)`, and return it as a tensor."""
    if isinstance(factor, np.ndarray) and factor.dtype.kind in "fiub":
        # A copy in native byte order: torch takes no array of another order, nor of wider floating point.
        factor = torch.from_numpy(np.array(factor, dtype="float32" if factor.dtype == np.float32 else "float64"))
    if not isinstance(factor, Tensor) or factor.is_complex() or factor.layout != torch.strided:
        kind = f"{type(factor).__name__}{f' of {factor.dtype}' if hasattr(factor, 'dtype') else ''}"
        raise ParameterError(
            f"the factor is {shown(factor, 60)} ({kind}); give a torch tensor or a numpy array of real numbers"
        )
    if factor.ndim not in (1, 2) or factor.shape[0] != width or not factor.numel():
        raise ParameterError(f"the factor has shape {tuple(factor.shape)}; ({width},) or ({width}, m) fits")
    if not bool((finite := factor.isfinite()).all()):
        raise ParameterError(
            f"the factor holds NaN or infinite values in {int((~finite).sum())} of {factor.numel()} entries; "
            "give finite ones"
        )
    return factor


def fewer_products(d: int, k: int, n_blocks: int = 0) -> bool:
    """Return whether K triplets, and coupling with those of L blocks, are faster by products than by forming J."""
    # A (d, d) Jacobian takes d products with its transpose, of which selected rows leave some three fifths.
    return product_columns(k, n_blocks, NARROW_COST / 0.6) < 0.9 * d


def product_columns(k: int, n_blocks: int = 0, as_long: float = 1) -> float:
    """Return the number of columns that an unformed Jacobian is multiplied with, narrow products weighted by cost."""
    # The K triplets of a trained decoder's block need a Krylov basis of some 150 + 3 K columns, two products each.
    return 2 * as_long * (150 + 3 * k) + n_blocks * k


class _FromNumpy:
    """A scipy operator that multiplies torch tensors."""

    device = torch.device("cpu")

    def __init__(self, operator: Any):
        self._operator, self.shape = operator, tuple(operator.shape)
        self.dtype = torch.float32 if operator.dtype == np.float32 else torch.float64

    @property
    def T(self) -> "_FromNumpy":  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
        return _FromNumpy(self._operator.T)

    def __matmul__(self, V: Tensor | np.ndarray) -> Tensor:
        columns = real_factor(V, self.shape[1]).detach().cpu().numpy()
        return torch.from_numpy(np.asarray(self._operator @ columns)).to(self.dtype)


def lapack_svd(A: Tensor, *, full_matrices: bool = True) -> tuple[Tensor, ...]:
    """Decompose a matrix, or a stack, into U, S, Vh."""
    try:
        return tuple(torch.linalg.svd(A, full_matrices=full_matrices))
    except torch.linalg.LinAlgError:
        return _one_by_one(A, lambda one: scipy.linalg.svd(one, full_matrices=full_matrices, lapack_driver="gesvd"))


def lapack_eigh(G: Tensor) -> tuple[Tensor, ...]:
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
        return lapack_eigh(G)[1][:, n - k :]
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
