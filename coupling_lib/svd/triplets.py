r"""Top-K singular triplets of a matrix or an operator, each with a certificate.

A singular triplet $(u, \sigma, v)$ of $J$ satisfies $J v = \sigma u$ and $J^\top u = \sigma v$. A computed one's
deviation from that, relative to $\sigma_1$, is its residual; triplets without a small residual are not returned. The
joint sign of $(u, v)$ is fixed by making the largest entry of $v$ positive; nothing may depend on it.

Small matrices are decomposed by the eigenvectors of $J^\top J$, formed in float64, wide ones by
`krylov.golub_kahan_stacked`, several at once, and operators whose matrix is not formed by `krylov.golub_kahan`.
Matrices that these cannot certify are decomposed by LAPACK in float64.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError, UntrustworthyResultError, check_whole
from coupling_lib.memory import budget, give_back
from coupling_lib.modes import refuse_autocast
from coupling_lib.svd.krylov import golub_kahan, golub_kahan_stacked, top_eigenvectors
from coupling_lib.svd.operators import as_torch_operator, lapack_svd

# From this width Krylov bases are faster than the eigenvectors of J^T J, if K is small against it; from the second
# width also in float64, for spectra with an outlier that float32 cannot resolve.
_KRYLOV_WIDTH, _COLUMNS_PER_TRIPLET, _FLOAT64_KRYLOV_WIDTH = 512, 12, 2048
# s_1 / s_K above which the residual in float32 arithmetic does not determine the K-th triplet.
_OUTLIER = 100
# Residual relative to s_i, and departure from orthonormality, up to which the J^T J method is accepted.
_ACCURACY = {torch.float32: 1e-6, torch.float64: 1e-11}
# Bytes of matrices that are decomposed together (of their float64 squares with J^T J), half beside large results.
_STACK_BYTES = {"cpu": 2**25, "cuda": 2**31}


class IllDefinedSubspaceWarning(UserWarning):
    """The K-th singular value and the next one coincide, so the top-K subspace is not a property of J."""

    # J's own rounding then determines which directions count as the top K. Each triplet still satisfies J v = s u and
    # J^T u = s v, but functions of all of them, such as a coupling metric, may change with J's last digit.


class SingularTriplets(NamedTuple):
    """The K largest singular values of a matrix with their vectors, in descending order."""

    U: Tensor  #: Left singular vectors (output space) as orthonormal columns (d, k).
    S: Tensor  #: Singular values (k,), descending, in the units of the matrix.
    Vh: Tensor  #: Right singular vectors (input space) as orthonormal rows (k, d).
    residual: Tensor  #: `max(|J v - s u|, |J^T u - s v|) / s_1` of each triplet (k,).


def top_triplets(matrix: Any, k: int, tolerance: float = 1e-4) -> SingularTriplets:
    r"""Compute the K largest singular triplets of a matrix or an operator and certify each.

    $J = U S V^\top$ (paper, section 2). Rows of `matrix` are outputs, so U lives in the output space of the
    block and V in its input space. An operator is only multiplied with, never formed; one that computes in
    float32 determines singular values down to about 1e-6 s_1 and no further. Where s_K and s_{K+1} cannot be told
    apart, an `IllDefinedSubspaceWarning` is issued.

    Args:
        matrix: J, shape `(d_out, d_in)`, float32 or float64; or an operator with `shape`, `@` and `.T @`,
            such as a `BlockJacobian` or a scipy `LinearOperator`.
        k: number of triplets, from 1 to `min(d_out, d_in)`.
        tolerance: largest residual that is accepted.

    Returns:
        the triplets, in the dtype of `matrix`.

    Raises:
        ParameterError: if `k` is out of range, or the matrix is neither float32 nor float64.
        UntrustworthyResultError: if the matrix is zero or not finite, or a residual exceeds `tolerance`.

    Example:
        >>> triplets = top_triplets(torch.diag(torch.tensor([3.0, 2.0, 1.0])), k=2)
        >>> triplets.S.tolist()
        [3.0, 2.0]
    """
    if len(getattr(matrix, "shape", (0, 0))) != 2:
        raise ParameterError(f"the matrix has shape {tuple(matrix.shape)}; (d_out, d_in) is expected")
    refuse_autocast()
    matrix = as_torch_operator(matrix)
    _check_k(k, tuple(matrix.shape))
    if isinstance(matrix, Tensor):
        return SingularTriplets(*(part[0] for part in top_triplets_stacked(matrix.unsqueeze(0), k, tolerance)))
    basis = golub_kahan(matrix, k)
    found, gap = _measured(*basis.images, *basis[:4])
    _certify(found, gap, tolerance, found.U.dtype)
    return found


def top_triplets_stacked(J: Tensor, k: int, tolerance: float = 1e-4) -> SingularTriplets:
    """Compute the K largest singular triplets of several matrices of one shape."""
    if not isinstance(J, Tensor):
        raise ParameterError(f"J is a {type(J).__name__}; a tensor that stacks matrices, (L, d, d), is expected")
    if J.ndim != 3 or not len(J):
        raise ParameterError(f"J has shape {tuple(J.shape)}; a stack of matrices, (L, d, d), is expected")
    _check_k(k, tuple(J.shape[1:]))
    refuse_autocast()
    J = J.detach()
    _check_entries(J)
    wide = min(J.shape[1:]) >= max(_KRYLOV_WIDTH, _COLUMNS_PER_TRIPLET * k)
    bytes_each = J[0].numel() * (J.element_size() if wide else 16)
    together = max(1, budget(_STACK_BYTES, J.device.type, J.nbytes) // bytes_each)
    decompose = _by_krylov if wide else _by_squares
    n, d_out, d_in = J.shape
    found = SingularTriplets(*(J.new_empty(shape) for shape in ((n, d_out, k), (n, k), (n, k, d_in), (n, k))))
    gap = J.new_empty(n, dtype=torch.float64)
    for some in torch.arange(n).tensor_split(-(-n // together)):
        part = slice(int(some[0]), int(some[-1]) + 1)
        _replace(found, gap, part, *decompose(J[part], k))
        give_back(J.nbytes)
    _certify(found, gap, tolerance, J.dtype)
    return found


def _by_krylov(J: Tensor, k: int) -> tuple[SingularTriplets, Tensor]:
    """Decompose a stack of wide matrices by Krylov bases; those that do not converge by the method of small ones."""
    narrow = J.dtype == torch.float32
    found, gap, sound = _krylov_measured(J, k, 1e-5 if narrow else 1e-10)
    if narrow:
        sound &= found.S[:, 0] <= _OUTLIER * found.S[:, -1]
    found, rest = SingularTriplets(*(part.to(torch.float64) for part in found)), (~sound).nonzero().flatten()
    if narrow and len(rest) and min(J.shape[1:]) >= _FLOAT64_KRYLOV_WIDTH:
        better, its_gap, sound = _krylov_measured(J[rest].double(), k, 1e-6)
        _replace(found, gap, rest[sound], SingularTriplets(*(part[sound] for part in better)), its_gap[sound])
        rest = rest[~sound]
    for index in rest[:, None]:
        _replace(found, gap, index, *_by_squares(J[index], k))
    return found, gap


def _krylov_measured(J: Tensor, k: int, accuracy: float) -> tuple[SingularTriplets, Tensor, Tensor]:
    """Decompose a stack by Krylov bases; return triplets, gaps, and which matrices have converged."""
    basis, converged = golub_kahan_stacked(J, k, accuracy)
    found, gap = _multiplied(J, *basis[:4])
    return found, gap.double(), converged & (found.residual.amax(dim=1) <= 10 * accuracy)


def _replace(
    found: SingularTriplets, gap: Tensor, where: Tensor | slice, better: SingularTriplets, better_gap: Tensor
) -> None:
    """Replace the results of some matrices in a stack by those of another method."""
    for part, replacement in zip((*found, gap), (*better, better_gap), strict=True):
        part[where] = replacement.to(part)


def _by_squares(J: Tensor, k: int) -> tuple[SingularTriplets, Tensor]:
    """Decompose a stack by the eigenvectors of J^T J, in float64; by LAPACK where that is not accurate."""
    wide, accuracy = J.double(), _ACCURACY[J.dtype]
    try:
        found, gap = _multiplied(wide, *_from_squares(wide, k))
    except UntrustworthyResultError:  # overflow in the squares
        return _by_lapack(wide, k)
    U, S = found.U, found.S
    good = (found.residual * S[:, :1] <= accuracy * S + 1e-13 * S[:, :1]).all(dim=1)
    overlap = (U.mT @ U - torch.eye(k, dtype=U.dtype, device=U.device)).abs().amax(dim=(1, 2))
    for index in (~(good & (overlap <= accuracy))).nonzero():
        _replace(found, gap, index, *_by_lapack(wide[index], k))
    return found, gap


def _by_lapack(wide: Tensor, k: int) -> tuple[SingularTriplets, Tensor]:
    """Decompose a stack by LAPACK."""
    return _multiplied(wide, *_split(*lapack_svd(wide, full_matrices=False), k))


def _from_squares(wide: Tensor, k: int) -> tuple[Tensor, ...]:
    """Return U, S, Vh and s_{K+1} from the eigenvectors v of J^T J, with s u = J v."""
    if wide.shape[1] < wide.shape[2]:
        U, S, Vh, following = _from_squares(wide.mT, k)
        return Vh.mT, S, U.mT, following
    V = top_eigenvectors(wide.mT @ wide, min(k + 1, wide.shape[2]))
    U = wide @ V
    S, order = U.norm(dim=1).sort(dim=1, descending=True, stable=True)
    U, V = (part.gather(2, order[:, None].expand_as(part)) for part in (U, V))
    # A zero divisor leaves a zero vector, which is not orthonormal and so not accepted.
    return _split(U / S[:, None].clamp_min(torch.finfo(S.dtype).tiny), S, V.mT, k)


def _split(U: Tensor, S: Tensor, Vh: Tensor, k: int) -> tuple[Tensor, ...]:
    """Cut a stack of triplets after the K-th; s_{K+1} is NaN if there are only K."""
    following = S[:, k] if S.shape[1] > k else S.new_full((len(S),), torch.nan)
    return U[:, :, :k], S[:, :k], Vh[:, :k], following


def _multiplied(J: Tensor, U: Tensor, S: Tensor, Vh: Tensor, following: Tensor) -> tuple[SingularTriplets, Tensor]:
    """Return the triplets of a stack of matrices with their residuals."""
    # For a matrix in rows, (U^T J)^T takes half the time of J^T U.
    return _measured(J @ Vh.mT, (U.mT @ J).mT, U, S, Vh, following)


def _measured(
    pushed: Tensor, pulled: Tensor, U: Tensor, S: Tensor, Vh: Tensor, following: Tensor | float
) -> tuple[SingularTriplets, Tensor]:
    """Compute the residuals from J V and J^T U, fix the joint signs, and return (s_K - s_{K+1}) / s_1 with them."""
    left = (pushed - U * S.unsqueeze(-2)).norm(dim=-2)
    right = (pulled - Vh.mT * S.unsqueeze(-2)).norm(dim=-2)
    sign = torch.sign(Vh.gather(-1, Vh.abs().argmax(dim=-1, keepdim=True)))
    U, Vh = U * sign.mT, Vh * sign
    return SingularTriplets(U, S, Vh, torch.maximum(left, right) / S[..., :1]), (S[..., -1] - following) / S[..., 0]


def _certify(found: SingularTriplets, gap: Tensor, tolerance: float, dtype: torch.dtype) -> None:
    """Raise for a zero matrix or a large residual; warn if the top-K subspace is ill defined."""
    S, residual = found.S, found.residual
    if bool((S[..., 0] == 0).any()):
        raise UntrustworthyResultError("the matrix is zero; it has no singular directions")
    if not bool((residual <= tolerance).all()):
        raise UntrustworthyResultError(
            f"a singular triplet has residual {float(residual.max()):.1e}; at most {tolerance:.1e} is accepted"
        )
    k, smallest = S.shape[-1], S[..., -1] / S[..., 0]
    # In float32, 100 roundings are the 1e-5 to which a Jacobian's own entries are accurate.
    rounding = torch.finfo(dtype).eps
    known = torch.maximum(100 * rounding * smallest, 10 * residual[..., -1])
    ill = (gap <= known) | ((smallest <= 10 * rounding) & ~gap.isnan())
    if bool(ill.any()):
        many = f" in {int(ill.sum())} of {ill.numel()} matrices" if ill.numel() > 1 else ""
        warnings.warn(
            f"k={k}: the relative gap (s_{k} - s_{k + 1}) / s_1 is {float(gap[ill].min()):.1e}{many}, too small to "
            f"tell the two apart; the top-{k} subspace is ill defined, choose a k at which the spectrum falls",
            IllDefinedSubspaceWarning,
            stacklevel=3,
        )


def _check_k(k: int, shape: tuple[int, ...]) -> None:
    check_whole("k", k, 1, min(shape), f"a {shape} Jacobian has {min(shape)} singular values")


def _check_entries(J: Tensor) -> None:
    if J.dtype not in _ACCURACY:
        raise ParameterError(f"the matrix is {J.dtype}; convert it to torch.float32 or torch.float64")
    # One pass over each matrix, on all cores; NaN and infinity show in its extreme entries.
    least, largest = torch.stack([torch.stack(matrix.aminmax()) for matrix in J]).T
    if not (torch.isfinite(least) & torch.isfinite(largest)).all():
        raise UntrustworthyResultError("the matrix holds NaN or infinite entries; its singular values mean nothing")
    if ((least == 0) & (largest == 0)).any():
        raise UntrustworthyResultError("the matrix is zero; it has no singular directions")
