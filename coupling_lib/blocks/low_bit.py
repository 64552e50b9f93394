"""Dequantisation of 4-bit and 8-bit weights from their tables and scales, in plain torch.

bitsandbytes stores two 4-bit weights a byte, the first in the high bits: indices into a table of 16 values, times one
scale for each block of weights. Nested scales are themselves stored in 8 bits. An int8 matrix has one scale a row, and
its product rounds activations as well. None of bitsandbytes' kernels is used on the CPU: that of its release 0.50.2 for
AVX-512 takes another entry's scale wherever the width is no multiple of the blocksize.
"""

import sys
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import nn

from coupling_lib.errors import UntrustworthyResultError


def kinds() -> tuple[type[nn.Module], ...]:
    """Return bitsandbytes' layers of 4 and of 8 bits; none where nothing has loaded it, because its import is slow."""
    bnb = sys.modules.get("bitsandbytes")
    return (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt) if bnb else ()


def is_4bit(layer: nn.Module) -> bool:
    """Return whether a layer has 4 bits; otherwise it has 8."""
    return isinstance(layer, kinds()[:1])


def dense(layer: nn.Module, dtype: torch.dtype) -> nn.Linear:
    """Build the dense linear layer with the weights that a quantised layer stands for."""
    linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    linear.weight = nn.Parameter(weights(layer, dtype), requires_grad=False)
    if layer.bias is not None:
        linear.bias = nn.Parameter(layer.bias.detach().to(dtype), requires_grad=False)
    return linear


def weights(layer: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix that a layer stands for; of 4 bits in float32, or in float64 where that is asked."""
    if not is_4bit(layer):
        scale = layer.state.SCB if layer.state.SCB is not None else layer.weight.SCB
        return layer.weight.data.to(dtype) * (scale.to(dtype) / 127).unsqueeze(1)
    state = layer.weight.quant_state
    if state is None:
        raise UntrustworthyResultError(
            "a 4-bit layer holds weights that are not quantised yet; move the model to its device first, "
            "hf_model.to('cpu') or hf_model.to('cuda')"
        )
    if getattr(state, "packing_format_for_cpu", False):
        raise UntrustworthyResultError(
            "a 4-bit weight was repacked for the CPU and can no longer be dequantised; load the model with "
            "coupling_lib.load_model, which prevents it"
        )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values = halves(state.code.to(wide), layer.weight.data.view(torch.uint8))[: state.shape.numel()]
    return scaled(values, scales(state, wide), state.blocksize).view(state.shape).to(dtype)


def halves(table: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Look up both halves of every byte in a table of 16 values."""
    # One look-up a byte gives both of its weights: a pair of numbers is moved as one complex number.
    pairs = torch.complex(table.repeat_interleave(16), table.repeat(16))
    return torch.view_as_real(pairs.index_select(0, packed.flatten().int())).flatten()


def scales(state: Any, wide: torch.dtype) -> torch.Tensor:
    """Return one scale for each block of a matrix."""
    if not state.nested:
        return state.absmax.to(wide)
    within, whole = state.state2, state.state2.code.to(wide).index_select(0, state.absmax.flatten().int())
    return scaled(whole, within.absmax.to(wide), within.blocksize) + state.offset.to(wide)


def scaled(values: torch.Tensor, scales: torch.Tensor, size: int) -> torch.Tensor:
    """Multiply each block of values by its scale, in place; the last block may be short."""
    number = len(values) // size
    values[: number * size].view(-1, size).mul_(scales[:number, None])
    values[number * size :].mul_(scales[number:])
    return values


def product(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Multiply by what a layer stands for, in the dtype in which it computes; with 8 bits as it should."""
    if not is_4bit(layer):
        return _rounded_product(layer, x)
    dtype = layer.compute_dtype or x.dtype
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return nn.functional.linear(x.to(dtype), weights(layer, dtype), bias).to(x.dtype)


def _rounded_product(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Multiply rows as an int8 layer should: rounded to 8 bits a row, but for columns in which an outlier stands."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, half = x.to(wide), x.to(torch.float16).to(wide)
    outliers = half.abs() >= (layer.state.threshold or torch.inf)
    apart = outliers.any(dim=0)
    largest = half.masked_fill(outliers, 0).abs().amax(dim=1, keepdim=True)
    rounded = (half * (127 / largest)).round() * (largest / 127)
    bias = None if layer.bias is None else layer.bias.to(wide)
    return nn.functional.linear(torch.where(apart, x, rounded), weights(layer, wide), bias)


def take_over(layer: nn.Module) -> None:
    """Put a layer of this library into the place of bitsandbytes' own, which may compute something else."""
    native = next(kind for kind in kinds() if isinstance(layer, kind))
    if type(layer).forward is native.forward:
        layer.__class__ = _replaced(type(layer), is_4bit(layer))
        # accelerate, where it hooks a layer, keeps the method that was there before.
        kept = layer.__dict__.get("_old_forward")
        if getattr(kept, "__func__", None) is native.forward:
            layer._old_forward = MethodType(type(layer).forward, layer)


@cache
def _replaced(kind: type[nn.Module], four: bool) -> type[nn.Module]:
    """Derive a kind of layer that uses bitsandbytes' product only where it is right."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if four and x.device.type != self.trusted_on:
            return product(self, x)
        if not four and x.ndim > 3:  # release 0.50.2 takes the largest of another dimension then
            return kind.forward(self, x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return kind.forward(self, x)

    # A class of its own, and not a function put into the layer: it goes along when the layer is copied.
    return type(kind.__name__, (kind,), {"forward": forward, "trusted_on": None})
