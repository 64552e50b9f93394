"""Layers of bitsandbytes, made to compute with the exact dequantised weights (`low_bit`).

On the CPU a 4-bit layer runs by table look-up. On a GPU 4-bit products, and everywhere int8 products, are bitsandbytes'
own, after one of every distinct shape was compared with that arithmetic: a wrong product shows nowhere else. On CPUs
with bfloat16 instructions bitsandbytes repacks a weight at its first gradient-free use and drops it from the graph, and
the remainder dequantises to garbage: `prepare` keeps it from repacking.
"""

import logging
import math
import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from coupling_lib.blocks import low_bit, packed
from coupling_lib.blocks.find import find_blocks
from coupling_lib.blocks.low_bit import is_4bit, layer_types
from coupling_lib.blocks.storage import Storage
from coupling_lib.errors import PrecisionWarning, UntrustworthyResultError

# Device types on which bitsandbytes' product with 4-bit weights is never used.
TABLE_DEVICES = ("cpu",)
# Relative error above which a product is wrong: rounding makes 1e-6, scales of other entries 0.2.
_TOLERANCE = 1e-3
# Least share of quantised weights without a warning: norms, biases and routers make a few percent of small blocks.
_LEAST_SHARE = 0.9


class FewBits(Storage):
    """Weights in few bits: linear layers of bitsandbytes, and packed experts."""

    def weights(self, module: nn.Module) -> dict[str, int]:
        """Count the entries of a layer's quantised matrices, by name."""
        if isinstance(module, layer_types()):
            return {"weight": module.in_features * module.out_features}
        return {name: stack.shape.numel() for name, stack in module.__dict__.get("packed", {}).items()}

    def dense(self, module: nn.Module, dtype: torch.dtype, memo: dict[int, Any]) -> nn.Module:
        """Build the layer with the dequantised matrices of a quantised one."""
        return low_bit.dense(module, dtype) if isinstance(module, layer_types()) else packed.dense(module, dtype, memo)

    def prepare(self, hf: PreTrainedModel, name: str) -> None:
        """Make a model's quantised layers compute with their dequantised weights, or refuse it; called at load."""
        # Every int8 product logs that it casts its inputs, hundreds of lines a prompt; `precision` says it once.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        trusted: dict[tuple, str | None] = {}
        for layer in [module for module in hf.modules() if isinstance(module, layer_types())]:
            four, device = is_4bit(layer), layer.weight.device.type
            if four:
                layer.support_avx512bf16_for_cpu = False
            low_bit.replace_forward(layer)
            if device == "meta":  # accelerate reads the weights whenever the layer runs
                continue
            replaced = "forward" in layer.__dict__  # by nnsight or accelerate, which may hold on to the layer's own
            key = (layer.in_features, layer.out_features, device, type(layer), replaced, *_format(layer))
            if key not in trusted:
                trusted[key] = _trusted_on(layer, hf.dtype, name)
            if four:
                layer.trusted_on = trusted[key]
        if isinstance(getattr(hf.config, "quantization_config", None), BitsAndBytesConfig):
            self._warn_of_share(hf, name)

    def _warn_of_share(self, hf: PreTrainedModel, name: str) -> None:
        """Warn where much of a quantised model's blocks is not quantised, and name the largest part."""
        narrow, left = 0, Counter()
        for module in find_blocks(hf).modules.modules():
            few = self.weights(module)
            narrow += sum(few.values())
            for key, weight in module._parameters.items():
                if weight is not None and key not in few:
                    left[f"{key} of {type(module).__name__}"] += weight.numel()
        if (share := narrow / max(1, narrow + left.total())) < _LEAST_SHARE:
            warnings.warn(
                f"{name}: {share:.0%} of its blocks' weights are stored in few bits; most of the rest is "
                f"{left.most_common(1)[0][0]}, which bitsandbytes leaves as it is. The record of a measurement has it "
                "as share_in_precision",
                PrecisionWarning,
                stacklevel=2,
            )


def _format(layer: nn.Module) -> tuple:
    """Return the properties beside its shape that decide which kernel multiplies by a quantised layer."""
    if not is_4bit(layer):
        return (layer.state.threshold,)
    state = layer.weight.quant_state
    return (layer.compute_dtype, *(getattr(state, part, None) for part in ("quant_type", "blocksize", "nested")))


def _trusted_on(layer: nn.Module, dtype: torch.dtype, name: str) -> str | None:
    """Return the device type on which a layer's own product is right; None where the table is used, or with 8 bits."""
    device, four = layer.weight.device.type, is_4bit(layer)
    for own in (device, None) if four and device not in TABLE_DEVICES else (None,):
        if four:
            layer.trusted_on = own
        error, most = _error_of_product(layer, dtype)
        if error <= most:
            return own
        seen = (
            f"{name}: bitsandbytes' product with {layer.out_features} x {layer.in_features} weights of "
            f"{4 if four else 8} bits on {device} is {error:.1%} off what the weights stand for"
        )
        if own is not None:
            print(f"{seen}; their table is used instead", flush=True)
    replaced = "the layer's forward was replaced: give wrap_model the model before nnsight or a hook of yours does that"
    other = "take another precision, such as precision='bfloat16'"
    raise UntrustworthyResultError(f"{seen}; {replaced if 'forward' in layer.__dict__ else other}")


@torch.no_grad()
def _error_of_product(layer: nn.Module, dtype: torch.dtype) -> tuple[float, float]:
    """Return the relative error of a layer's product with its dequantised weights, and the tolerance for rounding."""
    # Numbers that bfloat16 represents, away from ties of int8, beside one outlier, which int8 layers multiply apart.
    x = (torch.randint(-31, 32, (9, layer.in_features), generator=torch.Generator().manual_seed(0)) + 0.25) / 32
    x[:, 0], x[:, 1] = 8.0, 127 / 32
    x = x.to(layer.weight.device, dtype)
    errors = []
    for rows in (x, x[:1]):  # a single row takes kernels of its own
        wanted = low_bit.product(layer, rows).float()
        error = float((layer(rows).float() - wanted).norm() / wanted.norm().clamp(min=1e-30))
        errors.append(math.inf if math.isnan(error) else error)
    return max(errors), max(_TOLERANCE, 2 * torch.finfo(getattr(layer, "compute_dtype", None) or dtype).eps)
