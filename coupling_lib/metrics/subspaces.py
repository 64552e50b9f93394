r"""Random orthonormal frames, and principal angles between subspaces.

**Frames.** A null of width $d$ depends on a frame of $K$ vectors through few numbers: the $r$ coordinates at distinct
singular values, and sums over the other $d - r$ coordinates, at equal ones. Both are drawn here
without drawing $d$ coordinates. A frame is $Z R^{-1}$ with $Z$ Gaussian and $R^\top R = Z^\top Z$, and the rows
$H$ of $Z$ that are not needed one by one enter as $H^\top H$. It is a Wishart matrix, whose triangular factor has
independent entries: normal ones below the diagonal and the roots of $\chi^2_{m-i}$ on it (Bartlett 1933). With $H_1 = Q
T^\top$ the product $H_1^\top H_2 = T\,(Q^\top H_2)$ needs a Gaussian matrix (K, K) more, and the rest of $H_2^\top H_2$
is again Wishart, with $K$ rows fewer.

**Angles.** Where two singular values are close, their vectors may mix: only the span of the top $K$ is determined. Two
spans are compared by their **principal angles** $0 \le \theta_1 \le \dots \le \theta_K \le \pi/2$: $\theta_1$ is the
least angle between a vector of one and a vector of the other, $\theta_2$ the smallest among the vectors orthogonal to
these, and so on. All are 0 where the spans are equal.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor


def random_frame(d: int, k: int, generator: Generator | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw orthonormal vectors of width d, uniformly distributed: the first k columns of a Haar orthogonal matrix."""
    return random_frames(1, d, k, generator, dtype)[0]


def random_frames(
    n: int, d: int, k: int, generator: Generator | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Draw n independent frames (n, d, k), distributed as in `random_frame`."""
    # The Q factor of a Gaussian matrix is Haar only after the signs of R's diagonal are moved into it.
    Q, R = torch.linalg.qr(torch.randn(n, d, k, generator=generator, dtype=dtype))
    return Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


class FramePairs(NamedTuple):
    """n draws of two independent random frames of K vectors."""

    left: Tensor  #: First r coordinates of the first (n, r, K).
    right: Tensor  #: First r coordinates of the second (n, r, K).
    tail: Tensor  #: Products of the other d - r coordinates of the two, (n, K, K); 0 if there are none.


def frame_pairs(n: int, d: int, r: int, k: int, generator: Generator | None = None) -> FramePairs:
    """Draw pairs of independent, uniformly distributed frames of k vectors; float64."""
    m = d - r
    if m < 2 * k:
        left, right = (random_frames(n, d, k, generator) for _ in range(2))
        return FramePairs(left[:, :r], right[:, :r], left[:, r:].mT @ right[:, r:])
    heads = [_gaussian(n, r, k, generator) for _ in range(2)]
    T, C, B = _bartlett(n, m, k, generator), _gaussian(n, k, k, generator), _bartlett(n, m - k, k, generator)
    grams = [T @ T.mT, C.mT @ C + B @ B.mT]
    # Upper triangular factors with a positive diagonal: the frame is then that of a QR factorisation with its signs.
    R = [torch.linalg.cholesky(G.mT @ G + gram).mT for G, gram in zip(heads, grams, strict=True)]
    left, right = (torch.linalg.solve_triangular(R_, G, upper=True, left=False) for G, R_ in zip(heads, R, strict=True))
    tail = torch.linalg.solve_triangular(R[0].mT, T @ C, upper=False)
    return FramePairs(left, right, torch.linalg.solve_triangular(R[1], tail, upper=True, left=False))


def frames_in_two_bases(n: int, d: int, r: int, k: int, generator: Generator | None = None) -> FramePairs:
    """Draw two independent frames side by side, (., r, 2 K), in the coordinates of two independent random bases."""
    # Of two independent frames X, Y only the triangular factor R of [X Y] matters: its orthonormal factor is uniform
    # in either basis. The upper left of R is I and the upper right X'Y, a corner of a uniform orthogonal matrix.
    if 2 * k > d:
        R = torch.linalg.qr(torch.cat([random_frames(n, d, k, generator) for _ in range(2)], dim=-1), mode="r").R
    else:
        C = frame_pairs(n, d, k, k, generator).left
        one = torch.eye(k, dtype=C.dtype)
        lower = torch.linalg.cholesky(one - C.mT @ C).mT
        R = torch.cat([torch.cat([one.expand_as(C), C], dim=-1), torch.cat([0 * C, lower], dim=-1)], dim=-2)
    left, right, tail = frame_pairs(n, d, r, R.shape[-2], generator)
    return FramePairs(left @ R, right @ R, R.mT @ tail @ R)


def _gaussian(n: int, rows: int, columns: int, generator: Generator | None) -> Tensor:
    return torch.randn(n, rows, columns, generator=generator, dtype=torch.float64)


def _bartlett(n: int, m: int, k: int, generator: Generator | None) -> Tensor:
    """Draw lower triangular T (n, k, k) such that T T' is distributed as H'H for Gaussian H (m, k), m at least k."""
    freedom = torch.arange(m, m - k, -1, dtype=torch.float64).expand(n, k).contiguous()
    chi = (2 * torch._standard_gamma(freedom / 2, generator=generator)).sqrt()
    return _gaussian(n, k, k, generator).tril(-1) + torch.diag_embed(chi)


def principal_angles(X: Tensor, Y: Tensor) -> Tensor:
    """Compute the principal angles between the spans of two sets of orthonormal columns."""
    # $\cos\theta_i$ are the singular values of $X^\top Y$ and $\sin\theta_i$ those of $Y - X X^\top Y$. The cosine
    # is inaccurate for small angles ($1 - \theta^2/2$ rounds to 1) and the sine for large ones, so each
    # angle is computed from the accurate one (Björck and Golub 1973). All arithmetic is float64.
    X, Y = X.double(), Y.double()
    overlap = X.mT @ Y
    cosine = torch.linalg.svdvals(overlap).clamp(max=1)
    sine = torch.linalg.svdvals(Y - X @ overlap).flip(-1).clamp(max=1)
    return torch.where(cosine**2 >= 0.5, sine.asin(), cosine.acos())


def random_angles(d: int, k: int, n_samples: int = 3000, generator: Generator | None = None) -> Tensor:
    """Draw principal angles between independent, uniformly random subspaces."""
    # Let one frame be the first K coordinates: those of the other are then X'Y, and no more is drawn.
    # Where $2K$ exceeds $d$, the two spans share directions, whose angle is 0 up to rounding.
    return torch.linalg.svdvals(frame_pairs(n_samples, d, k, k, generator).left).clamp(max=1).acos()
