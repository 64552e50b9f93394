"""What a model computes with beside its configuration and the weights of its files, as text and as a digest."""

import functools
import hashlib
from collections.abc import Mapping
from types import CellType, CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks.makeup import NO_SETTINGS, settings

# Whose modules compute what their version says, from weights, buffers and settings.
LIBRARIES = ("transformers.", "torch.", "peft.", "bitsandbytes.", "coupling_lib.")
# Objects within objects that are looked into, such as a configuration that a module keeps.
_DEPTH = 5


def description(hf: nn.Module) -> str:
    """Write the kinds and settings of a model's modules, functions by their names, the same in every process."""
    parts = ((name, part) for name, part in hf.named_modules() if not isinstance(part, PreTrainedModel))
    return repr([(name, type(part).__qualname__, [*map(_written, settings(part))]) for name, part in parts])


def as_made(hf: nn.Module) -> str:
    """Hash what no file of a model holds: its description, and buffers that it computes, such as rotary tables."""
    found, total = dict(hf.named_buffers()), hashlib.sha256(description(hf).encode())
    for name in sorted(found.keys() - hf.state_dict().keys()):
        total.update(name.encode())
        total.update(as_bytes(found[name]))
    return total.hexdigest()


def held(value: Any, depth: int = _DEPTH) -> str:
    """Write what a module of one's own keeps beside weights: tensors that are no buffers, objects, bound arguments."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(as_bytes(value)).hexdigest()}"
    if isinstance(value, nn.Module):
        if depth < _DEPTH:
            return type(value).__qualname__
        value = {name: part for name, part in vars(value).items() if name not in NO_SETTINGS}
    elif isinstance(value, type) and depth == _DEPTH:
        value = {name: part for name, part in vars(value).items() if not name.startswith("__")}
    elif isinstance(value, functools.partial):
        value = (value.func, value.args, value.keywords)
    elif hasattr(value, "__closure__"):
        code, cells = value.__code__, [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        called = [(name, value.__globals__.get(name)) for name in code.co_names]
        numbers = [pair for pair in called if isinstance(pair[1], str | int | float)]
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        value = (value.__qualname__, repr(code.co_code), code.co_names, constants, cells, numbers, value.__defaults__)
    elif not callable(value) and vars(type(value)).get("__slots__") is None and hasattr(value, "__dict__"):
        value = (type(value).__qualname__, vars(value))
    if depth and isinstance(value, Mapping):
        return repr([(key, held(part, depth - 1)) for key, part in value.items()])
    if depth and isinstance(value, list | tuple):
        return repr([held(part, depth - 1) for part in value])
    return getattr(value, "__qualname__", type(value).__qualname__) if callable(value) or not depth else repr(value)


def as_bytes(tensor: Tensor) -> np.ndarray:
    """View the bytes of a tensor, copying them only from another device or layout; none of one without values."""
    values = tensor.new_empty(0, device="cpu") if tensor.is_meta else tensor.detach().cpu()
    return values.contiguous().reshape(-1).view(torch.uint8).numpy()


def _written(setting: tuple[str, object]) -> tuple[str, str]:
    name, value = setting
    return name, getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else repr(value)
