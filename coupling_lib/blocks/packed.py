"""Experts of mixtures in 4 and in 8 bits: stacks of matrices, which bitsandbytes' layers leave unquantised.

transformers keeps the matrices of all experts in one parameter of three dimensions. At load, each expert's matrix
is quantised by bitsandbytes' own functions, as if it were a linear layer: 4 bits in blocks that end with the matrix,
or 8 bits with one scale a row. The layer computes with the dequantised matrices and rounds no activations.
"""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any

import torch
from torch import nn
from transformers.quantizers import auto
from transformers.quantizers.quantizers_utils import get_module_from_name, should_convert_module

from coupling_lib.blocks import low_bit
from coupling_lib.errors import require

_lock = RLock()


@dataclass(frozen=True)
class Stack:
    """Storage of the matrices in a packed parameter: of 4 bits with a table, of 8 without."""

    shape: torch.Size  # of the parameter
    transposed: bool  # whether its matrices are inputs x outputs
    blocksize: int = 0
    table: tuple[float, ...] = ()


def expert_stacks(module: nn.Module) -> list[str]:
    """Return the names of a module's parameters that are stacks of experts' matrices."""
    # transformers marks its layers of experts; others have an attribute with the number of experts.
    marked = hasattr(module, "is_transposed") and hasattr(module, "has_gate")
    numbers = {value for name, value in vars(module).items() if "experts" in name and isinstance(value, int)}
    found = [(name, weight) for name, weight in module._parameters.items() if weight is not None and weight.ndim == 3]
    return [name for name, weight in found if weight.is_floating_point() and (marked or weight.shape[0] in numbers)]


def pack(module: nn.Module, name: str, value: torch.Tensor, bits: int, kind: str, nested: bool) -> nn.Parameter:
    """Quantise an expert stack of a layer, and make the layer compute with the dequantised matrices."""
    bnb = require("bitsandbytes", "quantised", "storing experts in few bits").functional
    transposed = bool(getattr(module, "is_transposed", False))
    matrices = (value.mT if transposed else value).detach().contiguous()
    if bits == 8:
        # As in an 8-bit layer, from float16; columns of outliers concern its activations alone.
        data, scale, _ = bnb.int8_vectorwise_quant(matrices.flatten(0, 1).half())
        data, scale, made = data.view(matrices.shape), scale.view(matrices.shape[:2]), Stack(value.shape, transposed)
    else:
        size = bnb.quantize_4bit(matrices.new_zeros(1, 64), quant_type=kind)[1].blocksize
        # No block reaches into the next matrix: each matrix is padded with zeros to whole blocks.
        flat = nn.functional.pad(matrices.flatten(1), (0, -matrices[0].numel() % size))
        data, state = bnb.quantize_4bit(flat, blocksize=size, quant_type=kind, compress_statistics=nested)
        scale = low_bit.scales(state, torch.float32).view(len(flat), -1)
        data, made = data.view(len(flat), -1), Stack(value.shape, transposed, size, tuple(state.code.tolist()))
    if "packed" not in module.__dict__:
        module.packed = {}
        module.__class__ = _unpacking(type(module))
    module.packed = module.packed | {name: made}
    module.register_buffer(f"{name}_scale", scale)
    return nn.Parameter(data, requires_grad=False)


def weights(module: nn.Module, name: str, dtype: torch.dtype) -> torch.Tensor:
    """Return the dequantised matrices of a packed parameter."""
    stack, data, scale = module.packed[name], module._parameters[name], module._buffers[f"{name}_scale"]
    number, *sides = stack.shape
    sides = sides[::-1] if stack.transposed else sides
    if stack.table:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        table = torch.tensor(stack.table, dtype=wide, device=data.device)
        values = low_bit.scale_blocks(low_bit.look_up_halves(table, data), scale.to(wide).flatten(), stack.blocksize)
        values = values.view(number, -1)[:, : sides[0] * sides[1]].to(dtype)
    else:
        values = data.to(dtype) * (scale.to(dtype) / 127).unsqueeze(-1)
    values = values.reshape(number, *sides)
    return values.mT if stack.transposed else values


def dense(module: nn.Module, dtype: torch.dtype, memo: dict[int, Any]) -> nn.Module:
    """Build a layer with the dequantised matrices of its packed parameters; other weights and modules are copied."""
    plain = _with_weights(module, dtype)
    plain._parameters |= {
        name: copy.deepcopy(weight, memo) for name, weight in module._parameters.items() if name not in module.packed
    }
    plain._buffers = {name: copy.deepcopy(value, memo) for name, value in plain._buffers.items()}
    plain._modules = {name: copy.deepcopy(child, memo) for name, child in module._modules.items()}
    return plain


def _with_weights(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a layer with dequantised matrices in its original class, everything else shared."""
    plain = copy.copy(module)
    del plain.__dict__["packed"]
    plain.__class__ = type(module).unpacked
    scales = {f"{name}_scale" for name in module.packed}
    plain._buffers = {name: value for name, value in module._buffers.items() if name not in scales}
    values = {name: nn.Parameter(weights(module, name, dtype), requires_grad=False) for name in module.packed}
    plain._parameters = module._parameters | values
    return plain


@cache
def _unpacking(kind: type[nn.Module]) -> type[nn.Module]:
    """Derive a layer class that computes with the dequantised matrices of its packed parameters."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        stream = next(x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.is_floating_point())
        return kind.forward(_with_weights(self, stream.dtype), *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "unpacked": kind})


class _Operation:
    """The quantisation of one parameter while it is read."""

    def __init__(self, quantiser: Any, plain: Any):
        self.quantiser, self.plain = quantiser, plain

    def convert(self, given: Mapping[str, Any], model: nn.Module, **more: Any) -> dict[str, torch.Tensor]:
        """Quantise a parameter, by bitsandbytes' layer or as a stack."""
        (full, value), *_ = given.items()
        module, name = get_module_from_name(model, full)
        if name not in expert_stacks(module):
            return self.plain.convert(given, model=model, **more)
        value = value[0] if isinstance(value, list) else value
        config = self.quantiser.quantization_config
        bits = 8 if config.load_in_8bit else 4
        module._is_hf_initialized = True
        return {full: pack(module, name, value, bits, config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant)}


@cache
def _expert_quantiser(kind: type) -> type:
    """Derive a quantiser of transformers that quantises stacks as well."""

    def param_needs_quantization(self: Any, model: nn.Module, param_name: str, **kwargs: Any) -> bool:
        if kind.param_needs_quantization(self, model, param_name, **kwargs):
            return True
        module, name = get_module_from_name(model, param_name)
        stack = not self.pre_quantized and name in expert_stacks(module)
        return stack and should_convert_module(param_name.rpartition(".")[0], self.modules_to_not_convert)

    own = {"get_quantize_ops": lambda self: _Operation(self, kind.get_quantize_ops(self))}
    return type(kind.__name__, (kind,), own | {"param_needs_quantization": param_needs_quantization})


@contextmanager
def quantising_experts(asked: bool) -> Generator[None]:
    """Quantise stacks of experts too, while transformers loads a model to be quantised."""
    if not asked:
        yield
        return
    known = auto.AUTO_QUANTIZER_MAPPING  # global in transformers: one thread at a time
    with _lock:
        plain = {name: kind for name, kind in known.items() if name.startswith("bitsandbytes_")}
        known.update({name: _expert_quantiser(kind) for name, kind in plain.items()})
        try:
            yield
        finally:
            known.update(plain)
