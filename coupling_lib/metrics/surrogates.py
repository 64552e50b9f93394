r"""Surrogates: the same Jacobians against singular vectors from which one kind of agreement has been taken away.

A surrogate says *which* agreement it is that lifts a trained model above its null. Block $l$ keeps its Jacobian and
singular vectors. The vectors of block $l'$ are replaced:

- `rotated`: $U_{l'} \to Q\, U_{l'}$, $V_{l'} \to R\, V_{l'}$ with independent, uniformly random rotations. Nothing is
  left but orthonormality: the null hypothesis of `coupling_lib.metrics.nulls`.
- `permuted`: the coordinates of the residual stream are shuffled, by one permutation for $U_{l'}$ and $V_{l'}$. How the
  entries of a vector are distributed and how a block's left and right vectors lie to each other both stay; their place
  in the stream is lost.
- `unpaired`: $U_{l'}$ and $V_{l'}$ stay, but $v_i$ is matched with another $u_{\pi(i)}$. The subspaces stay shared, the
  partners do not: what exceeds this is coupling of single directions and not of subspaces alone.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.coupling import widened
from coupling_lib.metrics.subspaces import random_frame
from coupling_lib.metrics.variants import block_products, checked_ks, chosen_variants, evaluated

SURROGATES = ("rotated", "permuted", "unpaired")
"""What can be done to the singular vectors of block l'."""


def surrogate_vectors(U: Tensor, V: Tensor, kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Replace the singular vectors of every block, each block by a draw of its own."""
    if kind not in SURROGATES:
        raise ParameterError(f"kind is {kind!r}; expected one of {', '.join(SURROGATES)}")
    _, d, k = U.shape
    if kind == "rotated":
        frames = [torch.stack([random_frame(d, k, generator, U.dtype) for _ in U]).to(U.device) for _ in range(2)]
        return frames[0], frames[1]
    if kind == "permuted":
        orders = torch.stack([torch.randperm(d, generator=generator) for _ in U]).to(U.device).unsqueeze(-1)
        return U.take_along_dim(orders, dim=1), V.take_along_dim(orders, dim=1)
    orders = torch.stack([_derangement(k, generator) for _ in U]).to(U.device).unsqueeze(1)
    return U, V.take_along_dim(orders, dim=2)


def _derangement(k: int, generator: torch.Generator) -> Tensor:
    """A cyclic order of k things in random sequence: nothing stays where it is, if there are two at least."""
    order = torch.randperm(k, generator=generator)
    partners = torch.empty_like(order)
    partners[order] = order.roll(1)
    return partners


def mean_over_pairs(
    J: Tensor, U: Tensor, S: Tensor, V: Tensor, U2: Tensor, V2: Tensor, ks: Iterable[int], names: Iterable[str]
) -> dict[str, Tensor]:
    """Mean of variants over all ordered pairs of different blocks, the other block's vectors given separately."""
    # With `U2 = U` and `V2 = V` these are the means of `measure_variants` off its diagonal.
    J, U, S, V, U2, V2 = widened(J, U, S, V, U2, V2)
    n_blocks, _, k = U.shape
    if n_blocks < 2:
        raise ParameterError("the model has 1 block; coupling needs pairs of different blocks, take a deeper model")
    ks, variants = checked_ks(ks, available=k), chosen_variants(names)
    different = ~torch.eye(n_blocks, dtype=torch.bool, device=U.device)
    totals = {variant.name: torch.zeros(len(ks), dtype=torch.float64, device=U.device) for variant in variants}
    for rows, products in block_products(J, U, S, V, U2, V2, variants):
        for name, values in evaluated(variants, products, ks).items():
            totals[name] += values[:, different[rows]].sum(dim=-1)
    return {name: total / (n_blocks * (n_blocks - 1)) for name, total in totals.items()}
