"""Linear layers that hand out rows of their weights where a product would give nothing else.

A Jacobian is formed by pulling the unit vectors back. The last linear layer before the residual stream meets them as
they are: its product with e_i is row i of its weights, so that a third of a block's arithmetic (GPT-2: 8 d^3 of 24 d^3
operations) is a product with the identity. Autograd does not know that. Inside `picking_rows` each linear layer looks
at its cotangents first: where none has more than one entry, rows are taken, equal to the product in every digit;
elsewhere it multiplies.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from coupling_lib.blocks.functions import Function

# Weights of a layer from which the product costs more than looking at the cotangents does.
_LEAST_WEIGHTS = 2**18


class _TimesWeight(Function):
    """Multiply cotangents `g` `(..., out)` by weights `W` `(out, in)`, all leading dimensions folded into rows."""

    @staticmethod
    def forward(g: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
        rows = g.reshape(-1, g.shape[-1])
        product = _picked(W, rows)
        product = rows @ W if product is None else product
        return product.reshape(*g.shape[:-1], W.shape[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (W,) = ctx.saved_tensors
        return _TimesWeight.apply(gradient, W.mT), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, g: torch.Tensor, W: torch.Tensor) -> tuple[torch.Tensor, int]:
        return _TimesWeight.apply(g.movedim(in_dims[0], 0), W), 0


class _Linear(Function):
    """Give a linear layer's output as it is, and pull its cotangents back by `_TimesWeight`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _TimesWeight.apply(gradient, ctx.saved_tensors[0]), None, None


def _picked(W: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
    """Multiply rows that have single entries by W; None where a row has more than one."""
    # Almost every layer's cotangents are full, and the first of them says so.
    if not len(rows) or int(rows[0].count_nonzero()) > 1:
        return None
    start = int(rows[0].argmax())
    units = rows.diagonal(start)
    if len(units) == len(rows) and bool((units == 1).all()) and int(rows.count_nonzero()) == len(rows):
        return W[start : start + len(rows)]  # a batch of neighbouring unit vectors: not even a copy
    row, column = rows.nonzero(as_tuple=True)
    if not bool((row[1:] > row[:-1]).all()):
        return None
    # Along its memory: to turn a matrix round while copying takes three times as long.
    taken = W.index_select(0, column) if W.is_contiguous() else W.mT.index_select(1, column).mT
    taken = taken * rows[row, column, None]
    return taken if len(row) == len(rows) else W.new_zeros(len(rows), W.shape[1]).index_copy_(0, row, taken)


@contextmanager
def picking_rows(block: nn.Module) -> Generator[None]:
    """Let a block's linear layers take rows of their weights for cotangents with a single entry."""
    # For y = W x + b, a cotangent c e_i is pulled back to c times row i of W. Derivatives by the weights are not
    # available for what is evaluated inside.
    handles = [module.register_forward_hook(_as_linear) for module in block.modules() if _is_large_linear(module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# Where each kind of layer keeps W of y = W x + b. Subclasses (quantised, adapted) compute something else.
_WEIGHTS = {nn.Linear: lambda module: module.weight, Conv1D: lambda module: module.weight.mT}


def _is_large_linear(module: nn.Module) -> bool:
    return type(module) in _WEIGHTS and module.weight.numel() >= _LEAST_WEIGHTS


def _as_linear(module: nn.Module, given: tuple[torch.Tensor, ...], y: torch.Tensor) -> torch.Tensor:
    return _Linear.apply(given[0], y.detach(), _WEIGHTS[type(module)](module).detach())
