"""Block Golub-Kahan for several matrices at once: the recurrence of `krylov`, with everything batched.

A step of the recurrence on one matrix of width 768 takes longer to start than to compute. Here one step of
all matrices is a handful of batched products, and the new columns are orthonormalised by two Cholesky
factorisations instead of Householder reflections. That is less robust: a block that loses rank, a singular
value that occurs more often than a block is wide or a basis that fills without convergence is not mended
here but reported, matrix by matrix, and the caller takes another route for it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from coupling_lib.krylov import BLOCK, FLOOR, top_eigenvectors

# A basis that has not converged within this share of the width is worth less than a complete decomposition.
_LARGEST_SHARE = 0.75


class StackedTriplets(NamedTuple):
    """Top singular triplets of several matrices from Krylov bases, before they are certified.

    Args:
        U: left singular vectors, shape `(L, d_out, k)`.
        S: singular values, shape `(L, k)`, descending.
        Vh: right singular vectors, shape `(L, k, d_in)`.
        next_value: the following singular value as the basis sees it, shape `(L,)`.
        converged: whether the triplets of a matrix met the tolerance, shape `(L,)`; those of others are not
            to be used.
        columns: m, the columns of each basis.
    """

    U: Tensor
    S: Tensor
    Vh: Tensor
    next_value: Tensor
    converged: Tensor
    columns: int


def golub_kahan_stacked(J: Tensor, k: int, tolerance: float = 1e-5, block: int = BLOCK) -> StackedTriplets:
    """Find the K largest singular triplets of several dense matrices by block Golub-Kahan bidiagonalisation.

    The same bases, the same stopping rule as `krylov.golub_kahan`: |J^T u - s v| <= max(tolerance s_K, floor s_1).

    Args:
        J: shape `(L, d_out, d_in)`, float32 or float64.
        k: number of triplets.
        tolerance: residual to reach, in units of s_K.
        block: b, columns added per step.

    Returns:
        the triplets, and which matrices they can be used for.

    Example:
        >>> found = golub_kahan_stacked(torch.diag(1 / torch.arange(1.0, 301))[None], k=3)
        >>> [round(1 / s, 4) for s in found.S[0].tolist()], found.converged.tolist()
        ([1.0, 2.0, 3.0], [True])
    """
    if J.shape[1] < J.shape[2]:
        found = golub_kahan_stacked(J.mT, k, tolerance, block)
        return found._replace(U=found.Vh.mT, Vh=found.U.mT)
    limit = max(k + 1, int(_LARGEST_SHARE * J.shape[2])) // block * block
    bases = _Bases(J, limit, block)
    next_check = 3 * k + 3 * block
    earlier: tuple[int, float] | None = None
    while True:
        bases.grow()
        if bases.columns < min(next_check, limit):
            continue
        # Matrices of one stack converge alike: the first stands for the others until it has arrived.
        full = bases.columns + block > limit
        for which in (slice(0, 1), slice(None)):
            S, P, residual = bases.ritz(which, k + 1)
            bound = torch.maximum(tolerance * S[:, k - 1], FLOOR[J.dtype] * S[:, 0])
            worst = residual[:, :k].amax(dim=1) / bound
            # A matrix whose block lost rank has no residual, and is not waited for.
            excess = float(worst.nan_to_num(0.0).max())
            if excess > 1 and not full:
                break
        else:
            return bases.triplets(S, P, _all_found(S, k, 10 * bound) & (worst <= 1))
        next_check = bases.columns + _columns_to_go(earlier, (bases.columns, excess), block)
        earlier = (bases.columns, excess)


def _all_found(S: Tensor, k: int, distance: Tensor, block: int = BLOCK) -> Tensor:
    """Say where no `block` of the values coincide: a basis sees no more copies of one, and there may be more."""
    if block > k:
        return torch.ones(len(S), dtype=torch.bool, device=S.device)
    return (S[:, : k + 1 - block] - S[:, block - 1 : k] > distance[:, None]).all(dim=1)


def _columns_to_go(earlier: tuple[int, float] | None, now: tuple[int, float], block: int) -> int:
    """Guess how many columns are missing from how fast the residual fell between two checks."""
    columns, excess = now
    if earlier is None or excess >= earlier[1]:
        return max(block, columns // 3)
    rate = math.log(earlier[1] / excess) / (columns - earlier[0])
    return max(block, min(columns // 3, int(0.8 * math.log(excess) / rate)))


class _Bases:
    """The orthonormal bases of all matrices, stored as rows, and the triangular B with J V = U B."""

    def __init__(self, J: Tensor, limit: int, block: int):
        n, rows, d = J.shape
        self.J, self.block, self.columns = J, block, 0
        self._U, self._V = J.new_empty(n, limit, rows), J.new_empty(n, limit + block, d)
        self._B = J.new_zeros(n, limit, limit)
        start = torch.randn(d, block, generator=torch.Generator().manual_seed(0))
        self._V[:, :block] = torch.linalg.qr(start.to(J))[0].T
        self._last = start

    def grow(self) -> None:
        """Add one block to U, and from it the next block of V."""
        m, end = self.columns, self.columns + self.block
        Q, R, C = _extend(self._U[:, :m], self._V[:, m:end] @ self.J.mT)
        self._U[:, m:end], self._B[:, :m, m:end], self._B[:, m:end, m:end] = Q, C.mT, R
        Q, self._last, _ = _extend(self._V[:, :end], Q @ self.J)
        self._V[:, end : end + self.block] = Q
        self.columns = end

    def ritz(self, which: slice, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give the largest singular values of B, its left singular vectors, and |J^T u - s v|; NaN without rank."""
        B = self._B[which, : self.columns, : self.columns].double()
        sound = torch.isfinite(B[:, -1, -1])
        P = top_eigenvectors((B @ B.mT).where(sound[:, None, None], B.new_zeros(())), count)
        last = self._last[which].double() @ P[:, self.columns - self.block :]
        return (B.mT @ P).norm(dim=1).where(sound[:, None], torch.nan), P, last.norm(dim=1)

    def triplets(self, S: Tensor, P: Tensor, converged: Tensor) -> StackedTriplets:
        """Carry the singular triplets of B back by the bases; the last of the values has no vectors."""
        m, following, usable = self.columns, S[:, -1], converged[:, None, None]
        P = P[..., :-1]
        Y, R = torch.linalg.qr(self._B[:, :m, :m].double().where(usable, P.new_zeros(())).mT @ P)
        # The eigenvectors of B B^T err by rounding times (s_1 / s_i)^2; the caller has other routes for outliers.
        X, S, Zh = torch.linalg.svd(R)
        left, right = (P @ Zh.mT).mT.to(self.J), (Y @ X).mT.to(self.J)
        nothing = self.J.new_zeros(())
        U = (left @ self._U[:, :m]).where(usable, nothing).mT
        Vh = (right @ self._V[:, :m]).where(usable, nothing)
        return StackedTriplets(U, S.to(self.J), Vh, following.to(self.J), converged, m)


def _extend(basis: Tensor, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split W = C basis + R^T Q, all in rows, with Q orthonormal and orthogonal to the basis."""
    C = W @ basis.mT
    W = W - C @ basis
    # The second pass repairs what rounding left of the first, and so does the second factorisation.
    again = W @ basis.mT
    W = W - again @ basis
    Q, first = _orthonormalised(W)
    Q, second = _orthonormalised(Q)
    return Q, second @ first, C + again


def _orthonormalised(W: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormalise rows by Cholesky: W = R^T Q; where that fails, R is NaN."""
    L, failed = torch.linalg.cholesky_ex(W @ W.mT)
    L = L.where(failed[:, None, None] == 0, torch.nan)
    return torch.linalg.solve_triangular(L, W, upper=False), L.mT
