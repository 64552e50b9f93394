r"""Surrogates: the same Jacobians with singular vectors from which one kind of agreement has been removed.

A surrogate shows *which* agreement raises a trained model above its null. Block $l$ keeps its Jacobian and
singular vectors. The vectors of block $l'$ are replaced:

- `rotated`: $U_{l'} \to Q\, U_{l'}$, $V_{l'} \to R\, V_{l'}$ with independent, uniformly random rotations. Only
  orthonormality is left: the null hypothesis of `coupling_lib.metrics.nulls`.
- `conjugated`: $Q$ for both, as if the block were $Q J_{l'} Q^\top$. The alignment of a block's left and right
  vectors stays, with its trace and its spectrum; the position of its directions in the stream is lost. It is the
  stricter null: two blocks whose left and right vectors nearly agree, as in a symmetric matrix, couple in any position.
- `permuted`: the coordinates of the residual stream are shuffled, by one permutation for $U_{l'}$ and $V_{l'}$. Of a
  vector the distribution of its entries stays, beside the properties that `conjugated` keeps.
- `outliers kept`: the same, but the few coordinates in which the states are largest stay in place. Its
  excess over `permuted` comes from a few outlier coordinates of all blocks, not from learned directions. They
  are left in place and not set to zero, so that the vectors stay orthonormal and only one block changes.
- `unpaired`: $U_{l'}$ and $V_{l'}$ stay, but $v_i$ is matched with another $u_{\pi(i)}$. The subspaces stay shared, the
  partners do not: any excess over this is coupling of single directions and not only of subspaces.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.subspaces import random_frame

SURROGATES = ("rotated", "conjugated", "permuted", "outliers kept", "unpaired")
"""Kinds of surrogates for the singular vectors of block l'."""


def surrogate_vectors(
    U: Tensor, V: Tensor, kind: str, generator: torch.Generator, outliers: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Replace the singular vectors of every block, with independent draws for each."""
    if kind not in SURROGATES:
        raise ParameterError(f"kind is {kind!r}; expected one of {', '.join(SURROGATES)}")
    _, d, k = U.shape
    if kind == "rotated":
        frames = [torch.stack([random_frame(d, k, generator, U.dtype) for _ in U]).to(U.device) for _ in range(2)]
        return frames[0], frames[1]
    if kind == "conjugated":
        pairs = [conjugated(u, v, generator) for u, v in zip(U, V, strict=True)]
        return torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    if kind in ("permuted", "outliers kept"):
        free = torch.tensor([i for i in range(d) if kind == "permuted" or i not in set(outliers)])
        orders = torch.arange(d).repeat(len(U), 1)
        for order in orders:
            order[free] = free[torch.randperm(len(free), generator=generator)]
        orders = orders.to(U.device).unsqueeze(-1)
        return U.take_along_dim(orders, dim=1), V.take_along_dim(orders, dim=1)
    # Cyclic orders in random sequence: every element moves, if there are at least two.
    orders = torch.stack([torch.randperm(k, generator=generator) for _ in U])
    partners = torch.empty_like(orders).scatter_(1, orders, orders.roll(1, dims=1))
    return U, V.take_along_dim(partners.to(U.device).unsqueeze(1), dim=2)


def conjugated(U: Tensor, V: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rotate left and right vectors (d, K) by one uniformly random rotation, (d, K) each."""
    # With [U V] = B R and orthonormal B, Q [U V] = (Q B) R, and Q B is a random frame: Q itself is never drawn.
    R = torch.linalg.qr(torch.cat([U, V], dim=-1), mode="r").R
    rotated = random_frame(len(U), len(R), generator, U.dtype).to(U.device) @ R
    return rotated[:, : U.shape[-1]], rotated[:, U.shape[-1] :]
