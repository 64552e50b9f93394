"""How weights are stored, and what is differentiated when they are stored in few bits.

Weights may be float32, bfloat16, float16, or quantised by bitsandbytes to 4 bits (nf4, fp4) or 8 (int8).
Jacobians are always formed in float32 or wider, so a block whose weights are narrower is replaced, while
it is measured, by a *dense copy*: the same block with its weights widened or dequantised (`low_bit`). For
4-bit weights this is the very map that the quantised block evaluates. An int8 block also rounds its activations
to 8 bits, a staircase whose true derivative is zero almost everywhere; what is measured is the map with
the dequantised weights and unrounded activations, linearised at the states of the int8 model. Experts of mixtures,
which bitsandbytes leaves as they are, are quantised like its layers (`packed`).
"""

import copy
import logging
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from coupling_lib.blocks import low_bit, offload, packed
from coupling_lib.errors import ParameterError, needed, shown

# bitsandbytes says at import that an optional faster 4-bit kernel is not installed; its own one is used then.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = (*_DTYPES, "nf4", "fp4", "int8")
# What nnsight (its controller) and accelerate (its hook) put in the place of a module's own `forward`; a copy runs
# the class's own.
_REPLACED = ("forward", "_hf_hook", "_old_forward")


def loading_arguments(precision: str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that load weights in a precision."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ParameterError(f"precision is {shown(precision)}; it must be one of {', '.join(PRECISIONS)}")
    if precision in _DTYPES:
        return {"dtype": _DTYPES[precision]}
    needed("bitsandbytes", "quantised", f"precision {precision!r}")
    # Said in full, because transformers takes fp4 where no type is named.
    in_4_bits = dict(load_in_4bit=True, bnb_4bit_quant_type=precision, bnb_4bit_compute_dtype=torch.float32)
    quantisation = BitsAndBytesConfig(**{"load_in_8bit": True} if precision == "int8" else in_4_bits)
    return {"dtype": torch.float32, "quantization_config": quantisation}


def is_quantised(module: nn.Module) -> bool:
    """Return whether a module holds weights of few bits."""
    return packed.any_in(module)


def share_in(precision: str, module: nn.Module) -> float:
    """Return the share of a module's weights that are stored in a precision."""
    if precision not in _DTYPES:
        return packed.share(module.modules())
    sizes = [(weight.dtype == _DTYPES[precision], weight.numel()) for weight in module.parameters()]
    return sum(size for fits, size in sizes if fits) / max(1, sum(size for _, size in sizes))


def stored_as(hf: PreTrainedModel) -> str:
    """Name the precision of a model's weights."""
    quantised = getattr(hf.config, "quantization_config", None)
    if getattr(quantised, "load_in_4bit", False):
        return quantised.bnb_4bit_quant_type
    return "int8" if getattr(quantised, "load_in_8bit", False) else str(hf.dtype).removeprefix("torch.")


def arithmetic(hf: PreTrainedModel) -> torch.dtype:
    """Return the dtype in which Jacobians of a model are formed."""
    return torch.float64 if hf.dtype == torch.float64 else torch.float32


def dense_copy(block: nn.Module, dtype: torch.dtype, device: torch.device | None = None) -> nn.Module:
    """Return a block with plain, wide weights, on a device if one is named: itself where they are so, else a copy."""
    on_disk = offload.is_offloaded(block)
    there = all(p.dtype == dtype and device in (None, p.device) for p in block.parameters())
    if there and not on_disk and not is_quantised(block):
        return block
    memo: dict[int, Any] = {}
    for module in block.modules():
        if isinstance(module, low_bit.kinds()):
            memo[id(module)] = _dequantised(module, dtype)
        memo |= {id(module.__dict__[name]): None for name in _REPLACED if name in module.__dict__}
    for module in filter(packed.is_packed, block.modules()):
        memo[id(module)] = packed.dense(module, dtype, memo)
    duplicate = copy.deepcopy(block, memo)
    if on_disk:
        offload.fill(duplicate, block, dtype)
    duplicate = nn.Module.to(duplicate, device, dtype)  # a whole model's own refuses where layers were quantised
    for module in duplicate.modules():
        for name in _REPLACED:
            module.__dict__.pop(name, None)
    return duplicate.requires_grad_(False)


def _dequantised(layer: nn.Module, dtype: torch.dtype) -> nn.Linear:
    """Build the dense linear layer with the weights that a quantised layer stands for."""
    linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    linear.weight = nn.Parameter(low_bit.weights(layer, dtype), requires_grad=False)
    if layer.bias is not None:
        linear.bias = nn.Parameter(layer.bias.detach().to(dtype), requires_grad=False)
    return linear
