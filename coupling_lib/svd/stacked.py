"""Block Golub-Kahan for several matrices at once: the recurrence of `krylov`, with everything batched.

A step of the recurrence on one matrix of width 768 takes longer to start than to compute: for K = 50, 62 ms a matrix
on one core instead of 36 ms here, and the whole prompt is then under the benchmark's goal. Here one step of all
matrices is a handful of batched products, and the new columns are orthonormalised by two Cholesky
factorisations instead of Householder reflections. That is less robust: a block that loses rank, a singular
value that occurs more often than a block is wide or a basis that fills without convergence is not mended
here but reported, matrix by matrix, and the caller takes another route for it.
"""

import torch
from torch import Tensor

from coupling_lib.svd.krylov import BLOCK, FLOOR, KrylovTriplets, columns_to_go, top_eigenvectors
from coupling_lib.svd.operators import lapack_eigh

# A basis that has not converged within this share of the width is worth less than a complete decomposition.
_LARGEST_SHARE = 0.75
# How far below the bound the first matrix of a stack has to be before all are looked at.
_MARGIN = 8.0


def golub_kahan_stacked(J: Tensor, k: int, tolerance: float = 1e-5) -> tuple[KrylovTriplets, Tensor]:
    """Find the K largest singular triplets of several dense matrices, and say of which they have converged."""
    # The same bases, the same stopping rule as `krylov.golub_kahan`: |J^T u - s v| <= max(tolerance s_K, floor s_1).
    if J.shape[1] < J.shape[2]:
        found, converged = golub_kahan_stacked(J.mT, k, tolerance)
        return found._replace(U=found.Vh.mT, Vh=found.U.mT), converged
    limit = max(k + 1, int(_LARGEST_SHARE * J.shape[2])) // BLOCK * BLOCK
    bases = _Bases(J, limit)
    next_check, earlier = 3 * k + 3 * BLOCK, None
    while True:
        bases.grow()
        if bases.columns < min(next_check, limit):
            continue
        # Matrices of one stack converge alike: the first stands for the others until it has arrived with a margin.
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
            # A basis sees no more than BLOCK copies of a value, and there may be more. With K < BLOCK none is compared.
            apart = S[:, : max(0, k + 1 - BLOCK)] - S[:, BLOCK - 1 : k] > 10 * bound[:, None]
            converged = apart.all(dim=1) & (worst <= 1)
            return bases.triplets(S[:, -1], Q[..., :-1], converged), converged
        next_check = bases.columns + columns_to_go(earlier, (bases.columns, excess), 3, 0.65)
        earlier = (bases.columns, excess)


class _Bases:
    """The orthonormal bases of all matrices, stored as rows, and the block bidiagonal B with J V = U B."""

    # Of U only the last block is kept, and a new block is made orthogonal to that one alone. The others it is
    # orthogonal to as far as V is, which holds its new blocks against all earlier columns (Simon and Zha, 2000).

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
        """Carry right singular vectors of B back by the basis V, and take the triplets of J on their span."""
        each = [self._triplets(index, *given) for index, given in enumerate(zip(Q, usable, strict=True))]
        U, S, Vh = map(torch.stack, zip(*each, strict=True))
        return KrylovTriplets(U.mT, S, Vh, following.to(self.J), self.columns)

    def _triplets(self, index: int, Q: Tensor, usable: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the left singular vectors of one matrix as rows, its singular values, and the right ones as rows."""
        J = self.J[index]
        Vh = (Q.mT.to(J) @ self._V[index, : self.columns]).where(usable, 0.0)
        # From V alone, so that rounding which the recurrence left in U and B goes no further.
        image = (Vh @ J.mT).double()
        # The squares' eigenvectors err by rounding times (s_1 / s_i)^2; the caller has other routes for outliers.
        squares, Y = lapack_eigh(image @ image.mT)
        S, Y = squares.clamp_min(0).sqrt().flip(-1), Y.flip(-1)
        U = (Y.mT @ image / S[:, None].clamp_min(torch.finfo(S.dtype).tiny)).to(J)
        return U, S.to(J), Y.mT.to(J) @ Vh

    def _orthonormalised(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Orthonormalise rows, W = R^T Q; a matrix with rows that depend on each other is no longer sound."""
        first, failed = torch.linalg.cholesky_ex(W @ W.mT)
        Q = torch.linalg.solve_triangular(first, W, upper=False)
        # A second factorisation mends what the first left. It is of nearly the identity, and so has a good inverse.
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
