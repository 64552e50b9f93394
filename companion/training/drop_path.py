"""Stochastic depth in training (Huang et al., 2016): branches or whole blocks that are left out at random, as hooks."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from coupling_lib.errors import ParameterError
from coupling_lib.models.drop_path import branches, depth_rates, scaled


def _factors(stream: torch.Tensor, p: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw 0 with probability p, and 1 / (1 - p) otherwise, which keeps the mean, for each sequence or image."""
    # Drawn on the CPU, so that a run repeats on any device.
    return ((torch.rand(len(stream), 1, 1, generator=generator) >= p) / (1 - p)).to(stream)


class DropPath:
    """Each of the two branches of a block is dropped by itself, with a probability that grows with depth (DeiT)."""

    def __init__(self, blocks: Sequence[nn.Module], rate: float):
        self.rates = depth_rates(rate, len(blocks))
        self.generator = torch.Generator()
        self._handles = [
            branch.register_forward_hook(partial(self._drop, p))
            for block, p in zip(blocks, self.rates, strict=True)
            for branch in branches(block)
            if p > 0
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _drop(self, p: float, module: nn.Module, args: tuple, output: Any) -> Any:
        if not module.training:
            return output
        return scaled(
            module, args, output, _factors(output[0] if isinstance(output, tuple) else output, p, self.generator)
        )


def drop_blocks(blocks: Sequence[nn.Module], p: float) -> None:
    """Drop whole blocks, all with one probability: what a block adds to the stream is left out."""
    if not 0 <= p < 1:
        raise ParameterError(f"stochastic_depth is {p!r}; expected a probability from 0 to below 1")

    def drop(block: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor | None:
        stream = arguments[0]
        return stream + (output - stream) * _factors(stream, p) if block.training else None

    for block in blocks:
        block.register_forward_hook(drop)
