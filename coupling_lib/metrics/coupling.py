r"""The coupling matrix of two block Jacobians, and its distance from perfect coupling.

Two residual Jacobians $J_1 = U_1 S_1 V_1^\top$ and $J_2 = U_2 S_2 V_2^\top$ are *coupled* when the singular
vectors of one also diagonalise the other: the **coupling matrix** of the paper (equation 10),

$$A = U_{2,K}^\top J_1 V_{2,K} \in \mathbb{R}^{K \times K},$$

is then diagonal and holds the singular values of $J_1$. `miscoupling` measures its off-diagonal part (paper,
equations 13 and 14), `mismatch` compares it with those singular values (project page and released code).

Singular vectors have a joint sign: $(u_i, v_i)$ and $(-u_i, -v_i)$ are the same triplet. It changes $a_{ij}$ into
$\pm a_{ij}$ but keeps the diagonal, so nothing here depends on it. All functions take leading batch dimensions,
are differentiable, and compute in float32 or wider.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError, UntrustworthyResultError, check_whole, shown
from coupling_lib.modes import refuse_autocast


def coupling_matrix(J1: Any, svd2: Any, k: int) -> Tensor:
    r"""Compute the coupling matrix $A = U_{2,K}^\top J_1 V_{2,K}$ of a pair of Jacobians (paper, equation 10).

    The full $J_1$ enters, not its rank-$K$ part: the paper's second form $U_2^\top U_1 S_1 V_1^\top V_2$
    (equation 11) is the same only if all singular vectors of $J_1$ are kept.

    Args:
        J1: Jacobian of the first block (d, d), or an operator that supports `J1 @ V`; rows are output coordinates.
        svd2: Singular triplets of the second, `.U` (d, at least k) and `.Vh` (at least k, d), strongest first.
        k: Number of singular triplets, $K$.

    Returns:
        $A$ (k, k); row $i$ belongs to the left vector $u_i$, column $j$ to the right vector $v_j$.

    Raises:
        ParameterError: If `k` is not between 1 and the number of triplets given, the widths differ, or the triplets
            are not strongest first.

    Example:
        >>> J = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> coupling_matrix(J, torch.linalg.svd(J), k=2)
        tensor([[3., 0.],
                [0., 2.]])
    """
    U, S, Vh = (getattr(svd2, name, None) for name in ("U", "S", "Vh"))
    check_real("U of svd2", U, 2)
    check_real("Vh of svd2", Vh, 2)
    if hasattr(J1, "__array__") or not hasattr(J1, "__matmul__"):
        check_real("J1", J1, 2)
    available = min(U.shape[-1], Vh.shape[-2])
    k = check_whole("k", k, 1, available, f"{available} singular triplets are given")
    if isinstance(S, Tensor) and bool((S.diff(dim=-1) > 1e-4 * S.amax(dim=-1, keepdim=True)).any()):
        raise ParameterError("the singular values of svd2 grow; expected its triplets strongest first, so flip them")
    J1, U, V = widened(J1, U[..., :, :k], Vh[..., :k, :].mT)
    shape = getattr(J1, "shape", None)
    if shape is not None and tuple(shape[-2:]) != (U.shape[-2], V.shape[-2]):
        raise ParameterError(
            f"J1 has shape {tuple(shape)} and svd2 has U of shape {tuple(svd2.U.shape)} and Vh of shape "
            f"{tuple(svd2.Vh.shape)}; expected J1 ({U.shape[-2]}, {V.shape[-2]}): take both from blocks of one width"
        )
    broadcast_shape(J1=() if shape is None else shape[:-2], U=U.shape[:-2], Vh=V.shape[:-2])
    U, product = widened(U, J1 @ V)  # an operator has a dtype of its own
    return trustworthy(U.mT @ product, "coupling matrix")


def coupling_matrices(J: Tensor | Sequence[Any], U: Tensor, Vh: Tensor) -> Tensor:
    r"""Compute the coupling matrices of all pairs of blocks, $A_{l l'} = U_{l'}^\top J_l V_{l'}$ (equation 10)."""
    check_real("U", U, 3, 3)
    check_real("Vh", Vh, 3, 3)
    if not len(U) or U.mT.shape != Vh.shape:
        raise ParameterError(f"U, Vh have shapes {tuple(U.shape)}, {tuple(Vh.shape)}; expected (L, d, K), (L, K, d)")
    check_jacobians(J, width=U.shape[1])
    J, U, Vh = widened(J, U, Vh)
    return trustworthy(project_all_pairs(J, left=U, right=Vh.mT), "coupling matrices")


def project_all_pairs(J: Tensor | Sequence[Any], left: Tensor, right: Tensor) -> Tensor:
    r"""Compute all products $X_{l'}^\top J_l Y_{l'}$, with each Jacobian applied once."""
    n_blocks, d, k = right.shape
    Y = _side_by_side(right)
    # One Jacobian at a time: the products of all of them take many times the memory of the result, which is allocated
    # first, or else small results would lie between large intermediate tensors and keep their space from reuse.
    products = right.new_empty(len(J), n_blocks, k, k)
    for j, place in zip(J, products, strict=True):
        place.copy_(left.mT @ (j @ Y).to(left).reshape(d, n_blocks, k).transpose(0, 1))
    return products


def overlap_all_pairs(left: Tensor, right: Tensor) -> Tensor:
    r"""Compute all products $X_{l'}^\top Y_l$ of two sets of bases, as one matrix product."""
    k = left.shape[-1]
    overlaps = _side_by_side(left).T @ _side_by_side(right)
    return overlaps.reshape(len(left), k, len(right), k).permute(2, 0, 1, 3)


def _side_by_side(bases: Tensor) -> Tensor:
    """Return bases (L, d, K) as the columns of one matrix (d, L K), block after block."""
    return bases.permute(1, 0, 2).reshape(bases.shape[1], -1)


def miscoupling(A: Tensor, normalized: bool = False) -> Tensor:
    r"""Compute the off-diagonal part of a coupling matrix (paper, equations 13 and 14).

    $$m(A) = \lVert A - \mathrm{Diag}\,A \rVert_F, \qquad \tilde m(A) = m(A) / \lVert A \rVert_F.$$

    Both are 0 where the vectors of the second Jacobian diagonalise the first. That does not imply that the two have the
    same strongest directions: diag(1, ..., 40) and diag(40, ..., 1) have disjoint ones, and m = 0. $m$ has the units of
    a singular value; $\tilde m$ lies between 0 and 1, does not change when $J_1$ is scaled, and is about
    $\sqrt{1 - 1/K}$ with no coupling at all.

    Args:
        A: Coupling matrices (..., K, K).
        normalized: Whether to divide by $\lVert A \rVert_F$: $\tilde m$ instead of $m$.

    Returns:
        One value per matrix (...).

    Example:
        >>> miscoupling(torch.tensor([[3.0, 0.0], [4.0, 0.0]]), normalized=True)
        tensor(0.8000)
    """
    check_square("A", A)
    (A,) = widened(A)
    off_diagonal = A.clone()
    off_diagonal.diagonal(dim1=-2, dim2=-1).zero_()
    value = torch.linalg.matrix_norm(off_diagonal)
    if normalized:
        value = divided(value, torch.linalg.matrix_norm(A), "norm of the coupling matrix")
    return trustworthy(value, "mis-coupling")


def mismatch(A: Tensor, s1: Tensor, absolute: bool = False, norm: float | str = 2) -> Tensor:
    r"""Compute a coupling matrix's distance from the singular values in it (project page, released code).

    $$m_K = \frac{\lVert A - S_{1,K} \rVert_F}{\lVert s_{1,K} \rVert_p}, \qquad s_{1,K} = (\sigma_1, \dots, \sigma_K),
      \quad S_{1,K} = \mathrm{diag}(s_{1,K}).$$

    It is 0 when the top $K$ singular vectors agree, and about 1 or more ($p = 2$) with no coupling. The project page
    uses $A$ itself; the released code uses $|A|$ entry by entry, which is lower when there is no coupling.

    Args:
        A: Coupling matrices (..., K, K).
        s1: Top $K$ singular values of the Jacobian in $A$ (..., K); for all pairs `A` (L1, L2, K, K) `s1[:, None, :]`.
        absolute: Whether to take $|A|$, as the released code does.
        norm: $p$ of the normaliser: a positive number (2: Frobenius norm of $S_{1,K}$), or "trace" for $p = 1$.

    Returns:
        One value per matrix (...).

    Raises:
        ParameterError: If `norm` is neither a positive number nor "trace".

    Example:
        >>> A, s1 = torch.tensor([[-3.0, 0.0], [0.0, 4.0]]), torch.tensor([3.0, 4.0])
        >>> mismatch(A, s1), mismatch(A, s1, absolute=True)
        (tensor(1.2000), tensor(0.))
    """
    p = 1 if norm == "trace" else norm
    if isinstance(p, bool) or not isinstance(p, int | float) or not p > 0:
        raise ParameterError(f'norm is {norm!r}; expected 2, another positive number, or "trace"')
    check_square("A", A)
    check_real("s1", s1, 1)
    if s1.shape[-1] != A.shape[-1]:
        raise ParameterError(f"s1 has shape {tuple(s1.shape)} and A {tuple(A.shape)}; expected as many values as rows")
    # For s1 (L, K) and A (L, L, K, K) the values would be those of the vectors' block, not of the Jacobian's.
    if 1 < s1.ndim < A.ndim - 1:
        raise ParameterError(
            f"s1 has shape {tuple(s1.shape)} and A {tuple(A.shape)}; expected a dimension of s1 for each leading one "
            "of A: for all pairs of blocks s1[:, None, :]"
        )
    A, s1 = widened(A, s1)
    A = A.expand(*broadcast_shape(A=A.shape[:-1], s1=s1.shape), -1)
    difference = A.abs() if absolute else A.clone()
    difference.diagonal(dim1=-2, dim2=-1).sub_(s1)
    distance = torch.linalg.matrix_norm(difference)
    return divided(distance, torch.linalg.vector_norm(s1, ord=p, dim=-1), "norm of the singular values")


def check_real(name: str, x: Any, least: int, most: int | None = None) -> None:
    """Refuse anything but a tensor of real numbers whose number of dimensions is within bounds."""
    # Floating point of 8 bits has no promotion rules.
    dense = isinstance(x, Tensor) and x.layout == torch.strided and not x.is_meta
    if not dense or x.is_complex() or (x.is_floating_point() and x.itemsize == 1):
        raise ParameterError(f"{name} is {shown(x, 60)}; expected a dense tensor of real numbers")
    if x.ndim < least or (most is not None and x.ndim > most):
        wanted = f"{least} or more" if most is None else f"{least} to {most}" if most > least else str(least)
        raise ParameterError(f"{name} has shape {tuple(x.shape)}; expected {wanted} dimensions")


def check_square(name: str, A: Any) -> None:
    """Refuse anything but a square matrix, or a stack of such."""
    check_real(name, A, 2)
    if A.shape[-1] != A.shape[-2] or not A.shape[-1]:
        raise ParameterError(f"{name} has shape {tuple(A.shape)}; expected square matrices (..., K, K) with K from 1")


def check_jacobians(J: Any, width: int) -> None:
    """Refuse anything but a stack of Jacobians or a sequence of operators, as wide as the vectors."""
    if isinstance(J, Tensor):
        check_real("J", J, 3, 3)
    elif not isinstance(J, Sequence) or not all(hasattr(j, "__matmul__") for j in J):
        raise ParameterError(f"J is {shown(J, 60)}; expected Jacobians (L, d, d), or a sequence of operators")
    if not len(J):
        raise ParameterError("there is no Jacobian; expected (L, d, d) with L from 1")
    if wrong := [tuple(j.shape) for j in J if getattr(j, "shape", (width, width)) != (width, width)]:
        raise ParameterError(f"a Jacobian has shape {wrong[0]}, and the vectors width {width}; take all of one width")


def broadcast_shape(**shapes: tuple[int, ...]) -> torch.Size:
    """Return the shape to which several shapes broadcast, and refuse those that do not."""
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        seen = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ParameterError(f"the leading dimensions {seen} do not fit together") from None


def widened(*arguments: Any) -> tuple[Any, ...]:
    """Return tensors in their common dtype, float32 at least; anything else unchanged."""
    refuse_autocast()
    dtype = reduce(torch.promote_types, (a.dtype for a in arguments if isinstance(a, Tensor)), torch.float32)
    return tuple(a.to(dtype) if isinstance(a, Tensor) else a for a in arguments)


def trustworthy(value: Tensor, what: str) -> Tensor:
    """Return a value, or raise an error if it is not finite everywhere."""
    if wrong := int((~torch.isfinite(value)).sum()):
        raise UntrustworthyResultError(
            f"the {what} has {wrong} NaN or infinite of {value.numel()} entries; "
            "look for NaN, or overflow in half precision, in the Jacobians or states it was computed from"
        )
    return value


def divided(numerator: Tensor, denominator: Tensor, what: str) -> Tensor:
    """Return a quotient, or raise an error where the denominator or its square vanishes."""
    if zeros := int((denominator == 0).sum()):
        raise UntrustworthyResultError(
            f"the {what} is 0 in {zeros} of {denominator.numel()} cases, so the quotient has no meaning; "
            "an all-zero Jacobian or a trajectory that stands still cannot be measured"
        )
    size = denominator.detach().abs()
    if tiny := int((size < torch.finfo(size.dtype).tiny ** 0.5).sum()):
        raise UntrustworthyResultError(
            f"the {what} is {float(size.min()):.0e} at least, too small in {tiny} of {size.numel()} cases for squares "
            f"in {size.dtype}; multiply what it was computed from by a number, or pass float64"
        )
    return trustworthy(numerator / denominator, f"quotient by the {what}")
