"""Activations as one product per cotangent.

An activation works entry by entry, so its derivative at a point is one number per entry. Autograd does not
know that: it pulls every cotangent back through each operation the activation is made of (eight, for the
tanh form of GELU), at the width of the MLP. Inside `linearised` the derivative is taken once, when the block
is evaluated, and each cotangent is multiplied with it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import activations as of_transformers

from coupling_lib.blocks.functions import Function

_OF_TORCH = (nn.GELU, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU)


class _Pointwise(Function):
    """Apply an activation and keep its derivative at the point."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, module: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            y = module.forward(point)
            (slope,) = torch.autograd.grad(y.sum(), point)
        return y.detach(), slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, nn.Module], output: tuple[torch.Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.saved_tensors[0], None


@contextmanager
def linearised(block: nn.Module) -> Generator[None]:
    """Let a block's activations keep their derivative at the point where they are evaluated."""
    # For y = a(x), entry by entry, a cotangent u is pulled back to a'(x) u: one product. Second derivatives are not
    # available for what is evaluated inside.
    handles = [
        module.register_forward_hook(lambda module, given, _: _Pointwise.apply(given[0], module)[0])
        for module in block.modules()
        if _is_activation(module)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_activation(module: nn.Module) -> bool:
    ours = isinstance(module, _OF_TORCH) or type(module).__module__ == of_transformers.__name__
    return ours and next(module.parameters(), None) is None and next(module.children(), None) is None
