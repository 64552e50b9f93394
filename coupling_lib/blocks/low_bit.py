"""Dequantisation of 4-bit and 8-bit weights from their tables and scales, in plain torch.

bitsandbytes stores two 4-bit weights a byte, the first in the high bits: indices into a table of 16 values, times one
scale for each block of weights. Nested scales are themselves stored in 8 bits. An int8 matrix has one scale a row, and
its product rounds activations as well. None of bitsandbytes' kernels is used on the CPU: the AVX-512 one of its release
0.50.2 takes another entry's scale wherever the width is no multiple of the blocksize.
"""

import sys
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import nn

from coupling_lib.errors import UntrustworthyResultError


def layer_types() -> tuple[type[nn.Module], ...]:
    """Return bitsandbytes' layer classes of 4 and of 8 bits; none if it is not imported, since its import is slow."""
    bnb = sys.modules.get("bitsandbytes")
    return (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt) if bnb else ()


def is_4bit(layer: nn.Module) -> bool:
    """Return whether a layer has 4 bits; otherwise it has 8."""
    return isinstance(layer, layer_types()[:1])


def dense(layer: nn.Module, dtype: torch.dtype) -> nn.Linear:
    """Build the dense linear layer with the dequantised weights of a layer."""
    linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    linear.weight = nn.Parameter(weights(layer, dtype), requires_grad=False)
    if layer.bias is not None:
        linear.bias = nn.Parameter(layer.bias.detach().to(dtype), requires_grad=False)
    return linear


def weights(layer: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Return the dequantised matrix of a layer; of 4 bits in float32, or in float64 where that is asked."""
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
    values = look_up_halves(state.code.to(wide), layer.weight.data.view(torch.uint8))[: state.shape.numel()]
    return scale_blocks(values, scales(state, wide), state.blocksize).view(state.shape).to(dtype)


def look_up_halves(table: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Return the table's values at both 4-bit halves of every byte."""
    # One look-up per byte returns both of its weights: a pair of numbers is moved as one complex number.
    pairs = torch.complex(table.repeat_interleave(16), table.repeat(16))
    return torch.view_as_real(pairs.index_select(0, packed.flatten().int())).flatten()


def scales(state: Any, wide: torch.dtype) -> torch.Tensor:
    """Return one scale for each block of a matrix."""
    if not state.nested:
        return state.absmax.to(wide)
    within, whole = state.state2, state.state2.code.to(wide).index_select(0, state.absmax.flatten().int())
    return scale_blocks(whole, within.absmax.to(wide), within.blocksize) + state.offset.to(wide)


def scale_blocks(values: torch.Tensor, scales: torch.Tensor, size: int) -> torch.Tensor:
    """Multiply each block of values by its scale, in place; the last block may be short."""
    number = len(values) // size
    values[: number * size].view(-1, size).mul_(scales[:number, None])
    values[number * size :].mul_(scales[number:])
    return values


def product(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Multiply by a layer's dequantised weights, in its compute dtype; of 8 bits with activations rounded."""
    if not is_4bit(layer):
        return _rounded_product(layer, x)
    dtype = layer.compute_dtype or x.dtype
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return nn.functional.linear(x.to(dtype), weights(layer, dtype), bias).to(x.dtype)


def _rounded_product(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Multiply as an int8 layer should: activations rounded to 8 bits a row, except for columns with an outlier."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, half = x.to(wide), x.to(torch.float16).to(wide)
    outliers = half.abs() >= (layer.state.threshold or torch.inf)
    apart = outliers.any(dim=0)
    largest = half.masked_fill(outliers, 0).abs().amax(dim=1, keepdim=True)
    rounded = (half * (127 / largest)).round() * (largest / 127)
    bias = None if layer.bias is None else layer.bias.to(wide)
    return nn.functional.linear(torch.where(apart, x, rounded), weights(layer, wide), bias)


def replace_forward(layer: nn.Module) -> None:
    """Replace the forward of a bitsandbytes layer, which may compute something else than its weights stand for."""
    native = next(kind for kind in layer_types() if isinstance(layer, kind))
    if type(layer).forward is native.forward:
        layer.__class__ = _guarded(type(layer), is_4bit(layer))
        # accelerate, where it hooks a layer, keeps the method that was there before.
        kept = layer.__dict__.get("_old_forward")
        if getattr(kept, "__func__", None) is native.forward:
            layer._old_forward = MethodType(type(layer).forward, layer)


@cache
def _guarded(kind: type[nn.Module], four: bool) -> type[nn.Module]:
    """Derive a layer class that uses bitsandbytes' product only where that is right."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if four and x.device.type != self.trusted_on:
            return product(self, x)
        if not four and x.ndim > 3:  # release 0.50.2 reduces over a wrong dimension then
            return kind.forward(self, x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return kind.forward(self, x)

    # A class of its own, not a function set on the layer: it survives when the layer is copied.
    return type(kind.__name__, (kind,), {"forward": forward, "trusted_on": None})
