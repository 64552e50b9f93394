"""Top-K singular triplets of a matrix, each with a certificate.

A singular triplet (u, s, v) of J satisfies J v = s u and J^T u = s v. How far a computed one is from
that, relative to the largest singular value, is its residual; a triplet without a small residual is not
returned. The pair (u, v) has a joint sign: (-u, -v) is the same triplet. It is fixed here by making the
largest entry of v positive, so that results print the same everywhere; nothing may depend on it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from coupling_lib.errors import ParameterError, UntrustworthyResultError

# Above this width float64 LAPACK costs more than the Jacobian itself; the residual still certifies float32.
_FLOAT64_WIDTH = 2048


class SingularTriplets(NamedTuple):
    """The K largest singular values of a matrix with their vectors, in descending order.

    Args:
        U: left singular vectors (output space), shape `(d, k)`, orthonormal columns.
        S: singular values, shape `(k,)`, descending, in the units of the matrix.
        Vh: right singular vectors (input space), shape `(k, d)`, orthonormal rows.
        residual: `max(|J v - s u|, |J^T u - s v|) / s_1` of each triplet, shape `(k,)`.
    """

    U: torch.Tensor
    S: torch.Tensor
    Vh: torch.Tensor
    residual: torch.Tensor


def top_triplets(matrix: torch.Tensor, k: int, tolerance: float = 1e-4) -> SingularTriplets:
    """Compute the K largest singular triplets of a matrix and certify each.

    J = U S V^T (paper, section 2). Rows of `matrix` are outputs, so U lives in the output space of the
    block and V in its input space.

    Args:
        matrix: J, shape `(d_out, d_in)`, float32 or float64.
        k: number of triplets, from 1 to `min(d_out, d_in)`.
        tolerance: largest residual that is accepted.

    Returns:
        the triplets, in the dtype of `matrix`.

    Raises:
        ParameterError: if `k` is out of range.
        UntrustworthyResultError: if the matrix is zero or not finite, or a residual exceeds `tolerance`.

    Example:
        >>> triplets = top_triplets(torch.diag(torch.tensor([3.0, 2.0, 1.0])), k=2)
        >>> triplets.S.tolist()
        [3.0, 2.0]
    """
    largest = min(matrix.shape)
    if not 1 <= k <= largest:
        raise ParameterError(f"k is {k!r}; a {tuple(matrix.shape)} Jacobian has from 1 to {largest} singular values")
    if not torch.isfinite(matrix).all():
        raise UntrustworthyResultError("the matrix holds NaN or infinite entries; its singular values mean nothing")
    wide = matrix.double() if largest <= _FLOAT64_WIDTH else matrix
    U, S, Vh = torch.linalg.svd(wide, full_matrices=False)
    U, S, Vh = U[:, :k], S[:k], Vh[:k]
    if S[0] == 0:
        raise UntrustworthyResultError("the matrix is zero; it has no singular directions")
    sign = torch.sign(Vh.gather(1, Vh.abs().argmax(dim=1, keepdim=True)))
    U, Vh = U * sign.T, Vh * sign
    left = (wide @ Vh.T - U * S).norm(dim=0)
    right = (wide.T @ U - Vh.T * S).norm(dim=0)
    residual = torch.maximum(left, right) / S[0]
    if not bool((residual <= tolerance).all()):
        raise UntrustworthyResultError(
            f"a singular triplet has residual {float(residual.max()):.1e}; at most {tolerance:.1e} is accepted"
        )
    return SingularTriplets(*(part.to(matrix.dtype) for part in (U, S, Vh, residual)))
