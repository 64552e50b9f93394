r"""Block Golub-Kahan bidiagonalisation: the top singular triplets from products $J V$ and $J^\top U$ alone.

Two orthonormal bases grow together, $b$ columns at a time: $V$ from products with $J^\top$, $U$ from products with $J$,
so that $J V = U B$ with a small upper triangular $B$. The singular triplets of $B$, carried back by the bases, converge
to the largest ones of $J$ from the outside inwards. Because $J$ itself is projected, and not $J^\top J$, a singular
value $\sigma_i$ is found to the accuracy of $J$'s own arithmetic times $\sigma_1$ instead of that times
$\sigma_1^2 / \sigma_i$: an outlying $\sigma_1$ does not drown the others.

Any operator will do that has a `shape` and the products `operator @ (d, m)` and `operator.T @ (d, m)`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coupling_lib.errors import UntrustworthyResultError, check_whole
from coupling_lib.svd.operators import lapack_eigh, lapack_svd, last_eigenvectors

BLOCK = 16
# A basis may have so many columns beside twenty for each triplet.
MORE_COLUMNS = 512
# Passes of orthogonalisation after the first; one does unless a column lies in the basis.
_PASSES = 5
# Residuals that rounding lets the recurrence reach, relative to s_1.
FLOOR = {torch.float32: 3e-7, torch.float64: 1e-14}
# Up to this width the complete eigensolver of torch is the faster one; above it scipy's for a few eigenvectors.
_PARTIAL_WIDTH = 512


class KrylovTriplets(NamedTuple):
    """Top singular triplets from Krylov bases, before they are certified."""

    # The images are J V and J^T U, sums of products that a search with one operator has made.

    U: Tensor
    S: Tensor
    Vh: Tensor
    next_value: float | Tensor
    columns: int
    images: tuple[Tensor, Tensor] | None = None


def golub_kahan(operator: Any, k: int, tolerance: float = 1e-5, block: int = BLOCK) -> KrylovTriplets:
    """Find the K largest singular triplets of an operator by block Golub-Kahan bidiagonalisation."""
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
        S, residual = bases.ritz(min(k + 1, bases.columns))
        bound = max(tolerance * S[k - 1], FLOOR[bases.dtype] * S[0])
        excess = float(residual[:k].max() / bound)
        if excess <= 1:
            found = bases.triplets(k)
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
    """Guess how many columns are missing from how fast the residual fell between two checks."""
    # A check costs as much as a few blocks. Convergence gets faster as it proceeds, so less is added than a straight
    # line on the logarithm asks for (by the factor `haste`), and never more than one `part`-th of the basis.
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
    """The two orthonormal bases, stored as rows, and the triangular B with J V = U B."""

    def __init__(self, operator: Any, width: int, limit: int):
        rows, d = operator.shape
        start = torch.randn(d, width, generator=torch.Generator().manual_seed(0))
        like = operator if isinstance(getattr(operator, "dtype", None), torch.dtype) else operator @ start[:, :1]
        start = start.to(getattr(like, "device", None), like.dtype)
        self.operator, self.limit, self.dtype = operator, limit, start.dtype
        # For a matrix in rows, (U^T J)^T takes half the time of J^T U.
        dense = isinstance(operator, Tensor)
        self._pull = (lambda U: (U.T @ operator).T) if dense else (lambda U: operator.T @ U)
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
        product = _finite(self._pull(Q))
        self._JTU[m:end] = product.T
        Q, self._last, _ = _extend(self._V[:end], product, room)
        self._V[end : end + room] = Q.T
        self.columns, self.width = end, room

    def ritz(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest singular values of B and |J^T u - s v| of each."""
        B = self._B[: self.columns, : self.columns].double()
        P = top_eigenvectors(B @ B.T, k)
        last = self._last.double() @ P[self.columns - self._last.shape[1] :]
        return (B.T @ P).norm(dim=0), last.norm(dim=0)

    def triplets(self, k: int) -> KrylovTriplets:
        """Carry the singular triplets of B back by the bases."""
        m = self.columns
        B = self._B[:m, :m].double()
        P = top_eigenvectors(B @ B.T, min(k + 1, m))
        # The eigenvectors of B B^T err by rounding times (s_1 / s_i)^2; all of B where that matters.
        S = (B.T @ P).norm(dim=0)
        if float(S[k - 1]) > 1e-3 * float(S[0]):
            Y, R = torch.linalg.qr(B.T @ P)
            X, S, Zh = lapack_svd(R)
            P, Qh = P @ Zh.T, (Y @ X).T
        else:
            P, S, Qh = lapack_svd(B)
        left, right = P[:, :k].T.to(self.dtype), Qh[:k].to(self.dtype)
        following = float(S[k]) if k < m else 0.0
        images = ((right @ self._JV[:m]).T, (left @ self._JTU[:m]).T)
        parts = ((left @ self._U[:m]).T, S[:k].to(self.dtype), right @ self._V[:m])
        return KrylovTriplets(*parts, following, m, images=images)


def _extend(basis: Tensor, W: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split W = basis^T C + Q R with Q orthonormal, and orthogonal to the rows of the basis."""
    # The second pass repairs what rounding left of the first. Columns that lie in the basis altogether leave
    # noise, and get arbitrary new directions with a zero in R; these take another pass or two. Where the space
    # has `room` for fewer columns than W has, the remainder has no larger rank, and that many span it.
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
