"""The spectrum of block Jacobians: decay, change with depth, and agreement of left and right singular vectors."""

import numpy as np
import torch
from torch import Tensor

from coupling_lib.datasets.statistics import LinearFit, linear_fit
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.coupling import miscoupling, trustworthy, widened
from coupling_lib.metrics.subspaces import random_frames

# Entries of the largest intermediate product.
_MAX_ENTRIES = 2**21


def probes(Vh: Tensor, count: int = 16) -> Tensor:
    """Draw standard normal vectors, as columns, and remove their components along the rows of `Vh`."""
    g = torch.randn(Vh.shape[-1], count, generator=torch.Generator().manual_seed(0)).to(Vh)
    return g - Vh.mT @ (Vh @ g)


def frobenius_estimate(S: Tensor, products: Tensor) -> Tensor:
    r"""Estimate $\lVert J \rVert_F$ from its strongest singular values and its products with `probes`."""
    # $\lVert J \rVert_F^2 = \sum_{i \le K} \sigma_i^2 + \lVert J (I - V_K V_K^\top) \rVert_F^2$, whose last term is the
    # mean of $\lVert J (I - V_K V_K^\top) g \rVert^2$ over standard normal $g$. Without the strongest directions its
    # variance is small: sixteen $g$ determine it to a few per cent in the blocks of a decoder.
    rest = products.square().sum(dim=-2).mean(dim=-1)
    return trustworthy((S.square().sum(dim=-1) + rest).sqrt(), "Frobenius norm")


def decay_exponent(S: Tensor) -> Tensor:
    r"""Fit the exponent $a$ of the power law $\sigma_i \propto i^{-a}$ in a log-log plot."""
    # Least squares of $\ln \sigma_i$ on $\ln i$, each value with the same weight.
    (S,) = widened(S)
    if S.shape[-1] < 2:
        raise ParameterError(f"the spectrum has shape {tuple(S.shape)!r}; a decay needs at least two singular values")
    if (S <= 0).any():
        raise UntrustworthyResultError(
            "a singular value is 0 or negative, so it has no logarithm; pass the nonzero ones"
        )
    log_rank = torch.arange(1, S.shape[-1] + 1, dtype=S.dtype, device=S.device).log()
    centred = log_rank - log_rank.mean()
    return trustworthy(-(S.log() * centred).sum(dim=-1) / centred.square().sum(), "decay exponent")


def inverse_sigma_fit(sigma1: Tensor, first_block: int = 9) -> LinearFit:
    r"""Fit a line through $1/\sigma_1$ against depth, with its $R^2$ (paper, singular-value scaling)."""
    # If the top singular value falls as one over depth, $1/\sigma_1^l$ lies on a straight line. Depth is the block's
    # number counted from 1, as in the figure; the early blocks are left out of the fit, as in the released code.
    sigma1 = trustworthy(sigma1.detach().to("cpu", torch.float64), "top singular value")
    if (sigma1 == 0).any():
        raise UntrustworthyResultError("the top singular value of a block is 0, so it has no inverse")
    n = len(sigma1)
    if n < 3:
        raise ParameterError(f"a line through 1/s_1 needs three blocks, and the model has {n}; take a deeper model")
    if sigma1.ndim != 1 or not 0 <= first_block <= n - 3:
        raise ParameterError(
            f"first_block is {first_block!r} and sigma1 has shape {tuple(sigma1.shape)!r}: the line would start at "
            f"block {first_block + 1} of {n}; it needs three blocks, so start at block 1 to {n - 2}"
        )
    depth = np.arange(1, len(sigma1) + 1)
    return linear_fit(depth[first_block:], (1 / sigma1).numpy()[first_block:])


def first_block_of_fit(n_blocks: int) -> int:
    """Return the first block of the line through 1/s_1: depth 10 as in the released code, if the model is so deep."""
    # From depth 10 on, a model of fewer than 20 blocks has hardly a point to fit; there the first quarter of the
    # blocks is left out, about the share that the released code leaves out of its 32-block models.
    return 9 if n_blocks >= 20 else min(n_blocks // 4, n_blocks - 3)


def left_right_alignment(U: Tensor, Vh: Tensor) -> Tensor:
    r"""Return the mean cosine $\frac1K \sum_i |u_i^\top v_i|$ between left and right vectors of the same rank."""
    # It is 1 if each singular direction is written to the direction that it is read from (with either sign), as the
    # paper's dynamical interpretation assumes, and about $\sqrt{2 / \pi d}$ for unrelated vectors.
    U, Vh = widened(U, Vh)
    overlaps = trustworthy((Vh @ U).mT.abs(), "overlap of left and right vectors")
    return overlaps.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def exchanged_miscoupling(J: Tensor, U: Tensor, Vh: Tensor) -> Tensor:
    r"""Compute the normalised mis-coupling $\tilde m(B)$ of a block with itself, left and right vectors exchanged."""
    # The released code calls $B = V_K^\top J\, U_K$ `vju`. Unlike $U_K^\top J\, V_K$, which is diagonal by
    # construction, it is diagonal only where each left vector equals its right one up to sign.
    J, U, Vh = widened(J, U, Vh)
    return miscoupling(Vh @ J @ U, normalized=True)


def exchanged_null(S: Tensor, k: int, n_samples: int = 3000, generator: torch.Generator | None = None) -> Tensor:
    """Draw values of `exchanged_miscoupling` for unrelated left and right vectors."""
    # With independent, uniformly distributed $U$ and $V$ the matrix $Q = V^\top U$ is a uniform orthogonal matrix and
    # $B$ the leading (K, K) block of $Q S Q$. Only the first K columns $(F_1; F_2)$ and the first K rows $(F_1, G)$
    # of $Q$ enter. Given the columns, $G = (I - F_1 F_1^\top)^{1/2} W$ with $W$ K orthonormal rows, uniformly
    # distributed, so no (d, d) matrix is drawn.
    (S,) = widened(S)
    d = S.shape[-1]
    if S.ndim != 2 or not 2 <= k <= d // 2:
        raise ParameterError(f"k is {k!r}; random bases of width {d} need k from 2 to {d // 2}")
    samples = []
    group = max(1, min(1000, _MAX_ENTRIES // (len(S) * d * k)))
    for first in range(0, n_samples, group):
        n = min(group, n_samples - first)
        columns = random_frames(n, d, k, generator).to(S)
        W = random_frames(n, d - k, k, generator).to(S).mT
        square = columns[:, :k]
        values, vectors = torch.linalg.eigh(torch.eye(k).to(S) - square @ square.mT)
        root = (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)) @ vectors.mT
        rows = torch.cat([square, root @ W], dim=-1)
        # For all spectra at once: each entry of B is linear in S.
        terms = (rows.mT.unsqueeze(-1) * columns.unsqueeze(-2)).flatten(-2)  # (n, d, K K)
        samples.append(miscoupling((S @ terms).unflatten(-1, (k, k)).transpose(0, 1), normalized=True))
    return torch.cat(samples, dim=1).mT
