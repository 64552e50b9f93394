r"""Stochastic depth: residual branches that are dropped at random in training, and never while measuring.

A transformer block has two residual branches, attention and MLP. With stochastic depth (drop path) each branch of
each image is dropped with probability $p_l$, and multiplied by $1/(1-p_l)$ where it survives:

$$x \leftarrow x + \frac{b}{1-p_l}\,f(x), \qquad b \sim \mathrm{Bernoulli}(1-p_l).$$

As in DeiT, $p_l$ grows linearly with depth, from 0 at the first block to the *rate* at the last. Hugging Face's
vision transformers have no such layer; forward hooks add it to any model whose blocks keep their branches in
submodules named `attention` and `mlp`.

A Jacobian is taken of the block as it is used, in evaluation mode, where nothing is dropped. `fixed_gates` sets the
branches' factors by hand, which shows what a measurement sees when a model is left in training mode.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from coupling_lib.errors import ParameterError, UnsupportedModelError, shown

BRANCHES = ("attention", "mlp")
"""Names of a block's submodules whose outputs are added to the residual stream."""


def depth_rates(rate: float, n_blocks: int) -> list[float]:
    """Return each block's probability of dropping a branch."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ParameterError(f"rate is {shown(rate)}; a rate of stochastic depth is from 0 to below 1")
    return [round(rate * block / max(1, n_blocks - 1), 12) for block in range(n_blocks)]


@contextmanager
def fixed_gates(blocks: Sequence[nn.Module], gates: torch.Tensor) -> Generator[None]:
    """Multiply residual branches by given factors, in training and in evaluation mode."""
    if gates.shape != (len(blocks), 2):
        raise ParameterError(f"gates has shape {tuple(gates.shape)}; ({len(blocks)}, 2) is expected")
    with ExitStack() as hooks:
        for block, row in zip(blocks, gates, strict=True):
            for branch, factor in zip(branches(block), row, strict=True):
                if factor != 1:
                    hooks.enter_context(branch.register_forward_hook(partial(scaled, factor=float(factor))))
        yield


def draw_gates(rate: float, n_blocks: int, generator: torch.Generator) -> torch.Tensor:
    """Draw the factors that training mode would give the branches of one image."""
    # A block both of whose branches are dropped has the Jacobian 0 and no singular vectors; such draws are repeated.
    p = torch.tensor(depth_rates(rate, n_blocks))[:, None]
    while True:
        kept = torch.rand(n_blocks, 2, generator=generator) >= p
        if kept.any(dim=1).all():
            return kept / (1 - p)


def branches(block: nn.Module) -> list[nn.Module]:
    """Return the two residual branches of a block."""
    children = dict(block.named_children())
    if not set(BRANCHES) <= children.keys():
        message = f"{type(block).__name__} has no branches named {' and '.join(BRANCHES)}"
        raise UnsupportedModelError(f"{message}; stochastic depth is known for Hugging Face's ViT")
    return [children[name] for name in BRANCHES]


def scaled(module: nn.Module, args: tuple, output: Any, factor: torch.Tensor | float) -> Any:
    """Multiply the residual stream in what a branch returns."""
    return (output[0] * factor, *output[1:]) if isinstance(output, tuple) else output * factor
