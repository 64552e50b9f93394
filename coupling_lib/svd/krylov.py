r"""Block Golub-Kahan bidiagonalisation: the top singular triplets from products $J V$ and $J^\top U$ alone.

Two orthonormal bases grow together, $b$ columns at a time, so that $J V = U B$ with a small upper triangular $B$, whose
singular triplets, mapped back by the bases, converge to the largest ones of $J$. Because $J$ itself is projected, and
not $J^\top J$, an outlying $\sigma_1$ does not hide the others.

For several matrices one step is a handful of batched products (`golub_kahan_stacked`), and new columns are
orthonormalised by two Cholesky factorisations: a block that loses rank, a singular value that occurs more often than a
block is wide, or a basis that fills without convergence, is reported, and the caller uses another method for it.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coupling_lib.errors import UntrustworthyResultError, check_whole
from coupling_lib.svd.operators import lapack_eigh, lapack_svd, last_eigenvectors

BLOCK = 16
# Maximum columns of a basis beside twenty for each triplet.
MORE_COLUMNS = 512
# Passes of orthogonalisation after the first; one suffices unless a column lies in the basis.
_PASSES = 5
# Smallest residuals that the recurrence reaches because of rounding, relative to s_1.
FLOOR = {torch.float32: 3e-7, torch.float64: 1e-14}
# Up to this width torch's complete eigensolver is faster; above it scipy's for a few eigenvectors.
_PARTIAL_WIDTH = 512
# A basis that has not converged within this share of the width costs more than a complete decomposition.
_LARGEST_SHARE = 0.75
# Factor by which the first matrix of a stack has to be below the bound before all are checked.
_MARGIN = 8.0


class KrylovTriplets(NamedTuple):
    """Top singular triplets from Krylov bases, before certification."""

    U: Tensor
    S: Tensor
    Vh: Tensor
    next_value: float | Tensor
    columns: int
    images: tuple[Tensor, Tensor] | None = None  # J V and J^T U, combinations of an operator's recorded products


def golub_kahan(operator: Any, k: int, tolerance: float = 1e-5, block: int = BLOCK) -> KrylovTriplets:
    """Compute the K largest singular triplets of an operator by block Golub-Kahan bidiagonalisation."""
    if operator.shape[0] < operator.shape[1]:
        # The right basis can then fill its space, which ends the recurrence exactly.
        found = golub_kahan(operator.T, k, tolerance, block)
        return found._replace(U=found.Vh.T, Vh=found.U.T, images=found.images[::-1])
    d = operator.shape[1]
    check_whole("k", k, 1, d, f"a {tuple(operator.shape)} operator has {d} singular values")
    limit = min(d, max(k + block, 20 * k + MORE_COLUMNS))
    bases = _Bases(operator, min(block, limit), limit)
    next_check, earlier = min(2 * k + 3 * bases.width, limit), None
    while True:
        bases.grow()
        if bases.columns < next_check and not bases.full:
            continue
        P, image, residual = bases.ritz(k)
        S = image.norm(dim=0)
        bound = max(tolerance * S[k - 1], FLOOR[bases.dtype] * S[0])
        excess = float(residual[:k].max() / bound)
        if excess <= 1:
            found = bases.triplets(k, P, image)
            if block <= k and bool((found.S[: 1 - block] - found.S[block - 1 :] <= 10 * bound).any()):
                return golub_kahan(operator, k, tolerance, 2 * block)
            return found
        if not math.isfinite(excess) or bases.full:
            raise UntrustworthyResultError(
                f"after {bases.columns} columns the largest residual of {k} singular triplets is "
                f"{float(residual[:k].max() / S[0]):.1e} of s_1; {float(bound / S[0]):.1e} is accepted. "
                "Ask for fewer triplets, or decompose the dense matrix"
            )
        next_check = bases.columns + columns_to_go(earlier, (bases.columns, excess), 4, 0.7)
        earlier = (bases.columns, excess)


def columns_to_go(earlier: tuple[int, float] | None, now: tuple[int, float], part: int, haste: float) -> int:
    """Estimate the number of missing columns from the decrease of the residual between two checks."""
    # Convergence accelerates, so fewer columns are added than a straight line on the logarithm predicts (by the
    # factor `haste`), and never more than one `part`-th of the basis.
    columns, excess = now
    most = max(BLOCK, columns // part)
    if earlier is None or excess >= earlier[1]:
        return most
    rate = math.log(earlier[1] / excess) / (columns - earlier[0])
    return min(most, int(haste * math.log(excess) / rate))


def top_eigenvectors(G: Tensor, k: int) -> Tensor:
    """Return orthonormal eigenvectors of the k largest eigenvalues of a symmetric matrix, largest first."""
    n = G.shape[-1]
    if n <= _PARTIAL_WIDTH or 4 * k > n or G.device.type != "cpu":
        return lapack_eigh(G)[1][..., n - k :].flip(-1)
    if G.ndim > 2:
        return torch.stack([top_eigenvectors(one, k) for one in G])
    return last_eigenvectors(G, k).flip(-1)


class _Bases:
    """Orthonormal bases of both sides, stored as rows, and the triangular B with J V = U B."""

    def __init__(self, operator: Any, width: int, limit: int):
        rows, d = operator.shape
        start = torch.randn(d, width, generator=torch.Generator().manual_seed(0))
        like = operator if isinstance(getattr(operator, "dtype", None), torch.dtype) else operator @ start[:, :1]
        start = start.to(getattr(like, "device", None), like.dtype)
        self.operator, self.limit, self.dtype = operator, limit, start.dtype
        self.columns, self.width = 0, width
        self._U, self._V = start.new_empty(limit, rows), start.new_empty(min(d, limit + self.width), d)
        self._JV, self._JTU = torch.empty_like(self._U), start.new_empty(limit, d)
        self._B = start.new_zeros(limit, limit)
        self._V[: self.width] = torch.linalg.qr(start)[0].T

    @property
    def full(self) -> bool:
        return self.width == 0 or self.columns + self.width > self.limit

    def grow(self) -> None:
        """Add one block to U, and from it the next block of V."""
        m, end = self.columns, self.columns + self.width
        product = _finite(self.operator @ self._V[m:end].T)
        self._JV[m:end] = product.T
        Q, R, C = _extend(self._U[:m], product, self.width)
        if not m and not R.any():
            raise UntrustworthyResultError("the operator gives zero for every vector; it has no singular directions")
        self._U[m:end], self._B[:m, m:end], self._B[m:end, m:end] = Q.T, C, R
        room = min(self.width, self._V.shape[1] - end)
        product = _finite(self.operator.T @ Q)
        self._JTU[m:end] = product.T
        Q, self._last, _ = _extend(self._V[:end], product, room)
        self._V[end : end + room] = Q.T
        self.columns, self.width = end, room

    def ritz(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k + 1 strongest left singular vectors p of B, or all it has, B^T p, and |J^T u - s v| of each."""
        B = self._B[: self.columns, : self.columns].double()
        P = top_eigenvectors(B @ B.T, min(k + 1, self.columns))
        last = self._last.double() @ P[self.columns - self._last.shape[1] :]
        return P, B.T @ P, last.norm(dim=0)

    def triplets(self, k: int, P: Tensor, image: Tensor) -> KrylovTriplets:
        """Map the singular triplets of B back by the bases."""
        m, S = self.columns, image.norm(dim=0)
        # The eigenvectors of B B^T err by rounding times (s_1 / s_i)^2; all of B where that matters.
        if float(S[k - 1]) > 1e-3 * float(S[0]):
            Y, R = torch.linalg.qr(image)
            X, S, Zh = lapack_svd(R)
            P, Qh = P @ Zh.T, (Y @ X).T
        else:
            P, S, Qh = lapack_svd(self._B[:m, :m].double())
        left, right = P[:, :k].T.to(self.dtype), Qh[:k].to(self.dtype)
        parts = ((left @ self._U[:m]).T, S[:k].to(self.dtype), right @ self._V[:m])
        images = ((right @ self._JV[:m]).T, (left @ self._JTU[:m]).T)
        return KrylovTriplets(*parts, float(S[k]) if k < m else 0.0, m, images)


def _extend(basis: Tensor, W: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split W = basis^T C + Q R with Q orthonormal, and orthogonal to the rows of the basis."""
    # The second pass corrects rounding errors of the first. Columns that lie in the basis altogether get arbitrary
    # new directions with a zero in R, which need another pass or two. If there is `room` for fewer columns than W
    # has, that many span the remainder.
    C = basis @ W
    W = W - (C.T @ basis).T
    if room < W.shape[1]:
        Q, S, Rh = lapack_svd(W, full_matrices=False)
        Q, R = Q[:, :room], S[:room, None] * Rh[:room]
    else:
        Q, R = torch.linalg.qr(W)
    for _ in range(_PASSES):
        again = basis @ Q
        C = C + again @ R
        Q, change = torch.linalg.qr(Q - (again.T @ basis).T)
        R = change @ R
        if not Q.shape[1] or float(change.diagonal().abs().min()) > 0.5:
            break
    return Q, R, C


def _finite(product: Tensor) -> Tensor:
    if not torch.isfinite(product).all():
        raise UntrustworthyResultError("a product with the operator holds NaN or infinite entries")
    return product


def golub_kahan_stacked(J: Tensor, k: int, tolerance: float = 1e-5) -> tuple[KrylovTriplets, Tensor]:
    """Compute the K largest singular triplets of several dense matrices, and which of them have converged."""
    # The stopping rule is that of `golub_kahan`: |J^T u - s v| <= max(tolerance s_K, floor s_1).
    if J.shape[1] < J.shape[2]:
        found, converged = golub_kahan_stacked(J.mT, k, tolerance)
        return found._replace(U=found.Vh.mT, Vh=found.U.mT), converged
    limit = max(k + 1, int(_LARGEST_SHARE * J.shape[2])) // BLOCK * BLOCK
    bases = _StackedBases(J, limit)
    next_check, earlier = 3 * k + 3 * BLOCK, None
    while True:
        bases.grow()
        if bases.columns < min(next_check, limit):
            continue
        # Matrices of one stack converge alike: the first represents the others until it has converged with a margin.
        full = bases.columns + BLOCK > limit
        ritz: list[tuple[Tensor, Tensor, Tensor]] = []
        for some, margin in ((range(1), _MARGIN), (range(1, len(J)), 1.0)):
            ritz += [bases.ritz(index, k + 1) for index in some]
            S, Q, residual = map(torch.stack, zip(*ritz, strict=True))
            bound = torch.maximum(tolerance * S[:, k - 1], FLOOR[J.dtype] * S[:, 0])
            worst = residual[:, :k].amax(dim=1) / bound
            # A matrix whose block lost rank has no residual, and is not waited for.
            excess = float(worst.nan_to_num(0.0).max()) * margin
            if excess > 1 and not full:
                break
        else:
            # A basis holds at most BLOCK copies of a value, and there may be more. With K < BLOCK none is compared.
            apart = S[:, : max(0, k + 1 - BLOCK)] - S[:, BLOCK - 1 : k] > 10 * bound[:, None]
            converged = apart.all(dim=1) & (worst <= 1)
            return bases.triplets(S[:, -1], Q[..., :-1], converged), converged
        next_check = bases.columns + columns_to_go(earlier, (bases.columns, excess), 3, 0.65)
        earlier = (bases.columns, excess)


class _StackedBases:
    """Orthonormal bases of all matrices, stored as rows, and the block bidiagonal B with J V = U B."""

    # Only the last block of U is kept. A new one is orthogonal to the others as far as V is, whose new blocks are
    # orthogonalised against all earlier columns (Simon and Zha, 2000).

    def __init__(self, J: Tensor, limit: int):
        n, _, d = J.shape
        self.J, self.columns = J, 0
        self._V = J.new_empty(n, limit + BLOCK, d)
        # The blocks of B, by step: on its diagonal, and to their right.
        self._diagonal, self._above = (J.new_empty(n, limit // BLOCK, BLOCK, BLOCK) for _ in range(2))
        start = torch.randn(d, BLOCK, generator=torch.Generator().manual_seed(0))
        self._V[:, :BLOCK] = torch.linalg.qr(start.to(J))[0].T
        self._U = J.new_empty(n, BLOCK, J.shape[1])
        self._sound = torch.ones(n, dtype=torch.bool, device=J.device)

    def grow(self) -> None:
        """Add one block to U, and from it the next block of V."""
        m, end, step = self.columns, self.columns + BLOCK, self.columns // BLOCK
        V = self._V[:, m:end]
        W = V @ self.J.mT
        if m:
            W.baddbmm_(self._above[:, step - 1].mT, self._U, alpha=-1)
        self._U[:], self._diagonal[:, step] = self._orthonormalised(W)
        W = (self._U @ self.J).baddbmm_(self._diagonal[:, step], V, alpha=-1)
        basis = self._V[:, :end]
        self._V[:, end : end + BLOCK], L = self._orthonormalised(W.baddbmm_(W @ basis.mT, basis, alpha=-1))
        self._above[:, step] = L.mT
        self.columns = end

    def ritz(self, index: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the largest singular values of one B, its right singular vectors, |J^T u - s v|; NaN without rank."""
        n = self.columns // BLOCK
        # In float64, and for one matrix at a time: the eigenproblem takes many times the memory of the blocks of B.
        diagonal, above = (blocks[index, :n].double() for blocks in (self._diagonal, self._above))
        if not self._sound[index]:
            nothing = diagonal.new_full((count,), torch.nan)
            return nothing, diagonal.new_zeros(self.columns, count), nothing
        Q = top_eigenvectors(_squares(diagonal, above), count)
        of_blocks = Q.unflatten(0, (n, BLOCK))
        image = diagonal @ of_blocks
        image[:-1] += above[:-1] @ of_blocks[1:]
        S = image.flatten(0, 1).norm(dim=0)
        return S, Q, (above[-1].mT @ image[-1]).norm(dim=0) / S

    def triplets(self, following: Tensor, Q: Tensor, usable: Tensor) -> KrylovTriplets:
        """Map right singular vectors of B back by the basis V, and compute the triplets of J on their span."""
        each = []
        for J, V, vectors, sound in zip(self.J, self._V, Q, usable, strict=True):
            Vh = (vectors.mT.to(J) @ V[: self.columns]).where(sound, 0.0)
            # From V alone, so that rounding errors of the recurrence in U and B do not propagate.
            image = (Vh @ J.mT).double()
            # The squares' eigenvectors err by rounding times (s_1 / s_i)^2; the caller has other methods for outliers.
            squares, Y = lapack_eigh(image @ image.mT)
            S, Y = squares.clamp_min(0).sqrt().flip(-1), Y.flip(-1)
            U = (Y.mT @ image / S[:, None].clamp_min(torch.finfo(S.dtype).tiny)).to(J)
            each.append((U, S.to(J), Y.mT.to(J) @ Vh))
        U, S, Vh = map(torch.stack, zip(*each, strict=True))
        return KrylovTriplets(U.mT, S, Vh, following.to(self.J), self.columns)

    def _orthonormalised(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Orthonormalise rows, W = R^T Q; matrices with linearly dependent rows are marked as not sound."""
        first, failed = torch.linalg.cholesky_ex(W @ W.mT)
        Q = torch.linalg.solve_triangular(first, W, upper=False)
        # A second factorisation corrects the first. Its matrix is nearly the identity, and so has an accurate inverse.
        second, failed_again = torch.linalg.cholesky_ex(Q @ Q.mT)
        self._sound &= (failed == 0) & (failed_again == 0)
        unit = torch.eye(BLOCK, dtype=W.dtype, device=W.device)
        return torch.linalg.solve_triangular(second, unit, upper=False) @ Q, second.mT @ first.mT


def _squares(diagonal: Tensor, above: Tensor) -> Tensor:
    """Form B^T B from the blocks of B, by step: on its diagonal, and to their right."""
    n, b = diagonal.shape[:2]
    own = diagonal.mT @ diagonal
    own[1:] += above[:-1].mT @ above[:-1]
    beside = diagonal[:-1].mT @ above[:-1]
    squares = diagonal.new_zeros(n, b, n, b)
    squares.diagonal(dim1=0, dim2=2).copy_(own.permute(1, 2, 0))
    squares.diagonal(1, dim1=0, dim2=2).copy_(beside.permute(1, 2, 0))
    squares.diagonal(-1, dim1=0, dim2=2).copy_(beside.permute(2, 1, 0))
    return squares.view(n * b, n * b)
