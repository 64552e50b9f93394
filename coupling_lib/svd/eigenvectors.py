"""Eigenvectors of the largest eigenvalues of a symmetric matrix, in float64 or at the price of float32.

Decompositions of Jacobians end in a small symmetric eigenproblem. It is a large part of their time, because the
reduction of a matrix to tridiagonal form keeps no processor busy. In float32 that takes half as long, and one step of
first-order perturbation theory gives the digits back unless the eigenvalues span too many.
"""

import scipy.linalg
import torch
from torch import Tensor

# Up to this width the complete eigensolver of torch is the faster one; above it scipy's for a few eigenvectors.
_PARTIAL_WIDTH = 512
# A correction larger than this belongs to eigenvalues that float32 does not tell apart, and is no correction.
_LARGEST_CORRECTION = 0.1


def top_eigenvectors(G: Tensor, k: int) -> Tensor:
    """Give orthonormal eigenvectors of the k largest eigenvalues of a symmetric matrix, largest first."""
    n = G.shape[-1]
    if n <= _PARTIAL_WIDTH or 4 * k > n or G.device.type != "cpu":
        return torch.linalg.eigh(G).eigenvectors[..., n - k :].flip(-1)
    if G.ndim > 2:
        return torch.stack([top_eigenvectors(one, k) for one in G])
    vectors = scipy.linalg.eigh(G.numpy(), subset_by_index=(n - k, n - 1), driver="evr", check_finite=False)[1]
    return torch.from_numpy(vectors).flip(-1)


def refined_eigenvectors(G: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Give what `top_eigenvectors` gives, from float32 vectors corrected once in float64, and how wrong it still is."""
    # With float32 eigenvectors x of eigenvalue t, and y of eigenvalue s among those that are not wanted, the true
    # eigenvector is x + sum_y y (y, (G - t) x) / (t - s) to first order. The corrected ones are made orthonormal, and
    # G is diagonalised on their span. Errors of 1e-6 become 1e-12 where the wanted eigenvalues span a factor of two,
    # and are as they were where they span a million.
    values, vectors = torch.linalg.eigh(G.float())
    rest, wanted = vectors.double().tensor_split([G.shape[-1] - k], dim=-1)
    image = G @ wanted
    t = (wanted * image).sum(dim=-2, keepdim=True)
    correction = rest.mT @ (image - wanted * t) / (t - values[..., :-k, None].double())
    wanted = wanted + rest @ correction.where(correction.abs() < _LARGEST_CORRECTION, 0.0)
    L = torch.linalg.cholesky(wanted.mT @ wanted)
    wanted = torch.linalg.solve_triangular(L, wanted.mT, upper=False).mT
    image = G @ wanted
    t, rotation = (part.flip(-1) for part in torch.linalg.eigh(wanted.mT @ image))
    wanted = wanted @ rotation
    return wanted, (image @ rotation - wanted * t.unsqueeze(-2)).norm(dim=-2)
