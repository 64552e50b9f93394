r"""How far apart two subspaces lie: principal angles, and what they are for subspaces drawn at random.

The top $K$ singular vectors of a Jacobian are known up to a joint sign each, and where two singular values are close,
hardly at all: the two vectors may mix. Their span is what is determined. Two spans of the same dimension are compared
by their **principal angles** $0 \le \theta_1 \le \dots \le \theta_K \le \pi/2$: $\theta_1$ is the least angle between
a vector of one and a vector of the other, $\theta_2$ the smallest among the vectors orthogonal to these, and so on. All
are 0 where the spans are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.frames import frame_pairs


def principal_angles(X: Tensor, Y: Tensor) -> Tensor:
    """Principal angles between the spans of two sets of orthonormal columns."""
    # $\cos\theta_i$ are the singular values of $X^\top Y$ and $\sin\theta_i$ those of $Y - X X^\top Y$. The cosine
    # says nothing about small angles ($1 - \theta^2/2$ rounds to 1) and the sine nothing about large ones, so each
    # angle comes from the one that determines it (Björck and Golub 1973). All arithmetic is float64.
    if X.ndim < 2 or X.shape[-2:] != Y.shape[-2:] or X.shape[-1] > X.shape[-2]:
        raise ParameterError(
            f"X has shape {tuple(X.shape)} and Y {tuple(Y.shape)}; orthonormal columns (..., d, K) of one shape fit"
        )
    X, Y = X.double(), Y.double()
    overlap = X.mT @ Y
    cosine = torch.linalg.svdvals(overlap).clamp(max=1)
    sine = torch.linalg.svdvals(Y - X @ overlap).flip(-1).clamp(max=1)
    return torch.where(cosine**2 >= 0.5, sine.asin(), cosine.acos())


def random_angles(d: int, k: int, n_samples: int = 3000, generator: torch.Generator | None = None) -> Tensor:
    """Principal angles between independent, uniformly random subspaces."""
    # Only $X^\top Y$ of the two frames enters, a (K, K) matrix; no more is drawn (`coupling_lib.metrics.frames`).
    # Where $2K$ exceeds $d$, the two spans share directions, whose angle is 0 up to rounding.
    # Of one frame all first K coordinates are 1 on the diagonal: the other's are then X'Y.
    cosine = torch.linalg.svdvals(frame_pairs(n_samples, d, k, k, generator).left).clamp(max=1)
    return cosine.acos()
