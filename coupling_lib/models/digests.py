"""Description of all that a model computes with beside configuration and stored weights, as text and as a digest."""

import functools
import hashlib
import re
import sys
from collections.abc import Mapping
from types import CellType, CodeType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks.makeup import NO_SETTINGS, codes, settings

# Libraries whose modules are determined by their version, weights, buffers and settings.
LIBRARIES = ("transformers.", "torch.", "peft.", "bitsandbytes.", "coupling_lib.")
# Depth to which objects within objects are described, such as a configuration that a module keeps.
_DEPTH = 5


def description(hf: nn.Module) -> str:
    """Return the classes and settings of a model's modules, functions by name, as text equal in every process."""
    parts = ((name, part) for name, part in hf.named_modules() if not isinstance(part, PreTrainedModel))
    return repr([(name, type(part).__qualname__, [*map(_written, settings(part))]) for name, part in parts])


def load_digest(hf: nn.Module) -> str:
    """Hash what no file of a model holds: its description, and computed buffers such as rotary tables."""
    found, total = dict(hf.named_buffers()), hashlib.sha256(description(hf).encode())
    for name in sorted(found.keys() - hf.state_dict().keys()):
        total.update(name.encode())
        total.update(as_bytes(found[name]))
    return total.hexdigest()


def is_own(value: Any) -> bool:
    """Return whether a function, class or module belongs to no library, whose version identifies it."""
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    installed = "-packages" in (getattr(sys.modules.get(name), "__file__", None) or "")
    return not (installed or name.startswith(LIBRARIES) or name.partition(".")[0] in sys.stdlib_module_names)


def contents_text(value: Any, depth: int = _DEPTH, seen: set[int] | None = None) -> str:
    """Return all that a user's function or module computes with beside weights, as text: code, values, attributes."""
    if isinstance(value, Tensor | np.ndarray):
        contents = as_bytes(value) if isinstance(value, Tensor) else value.tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(contents).hexdigest()}"
    if isinstance(value, nn.Module):
        if depth < _DEPTH:
            return type(value).__qualname__
        value = {name: part for name, part in vars(value).items() if name not in NO_SETTINGS}
    elif isinstance(value, type) and depth == _DEPTH:
        value = {name: part for name, part in vars(value).items() if not name.startswith("__")}
    elif isinstance(value, functools.partial):
        value = (value.func, value.args, value.keywords)
    elif isinstance(value, property):
        value = (value.fget, value.fset)
    elif hasattr(value, "__closure__"):
        value = _of_function(value, set() if seen is None else seen)
    elif isinstance(value, set | frozenset):  # its order differs between processes
        value = sorted(map(repr, value))
    elif not isinstance(value, type | ModuleType | Mapping | list | tuple) and hasattr(value, "__dict__"):
        value = (type(value).__qualname__, vars(value), vars(type(value)).get("__call__"))
    if depth and isinstance(value, Mapping):
        return repr([(key, contents_text(part, depth - 1, seen)) for key, part in value.items()])
    if depth and isinstance(value, list | tuple):
        return repr([contents_text(part, depth - 1, seen) for part in value])
    if callable(value) or not depth:
        return getattr(value, "__qualname__", type(value).__qualname__)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # an address differs between processes


def _of_function(function: Any, seen: set[int]) -> tuple[Any, ...]:
    """Return the code of a function, of those in it and the user's that it calls, and the values it is bound to."""
    every = [*codes(function.__code__)]
    names = sorted({name for code in every for name in code.co_names})
    constants = [each for code in every for each in code.co_consts if not isinstance(each, CodeType)]
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    # Of globals, also of other files: values, and functions of no library, once each as they may refer to each other.
    scopes = [function.__globals__]
    scopes += [vars(one) for one in map(scopes[0].get, names) if isinstance(one, ModuleType) and is_own(one)]
    found = [(name, scope.get(name)) for scope in scopes for name in names]
    plain = [pair for pair in found if isinstance(pair[1], str | int | float)]
    for name, value in found:
        values = isinstance(value, tuple | list | dict | set | Tensor | np.ndarray)
        if id(value) not in seen and (values or (callable(value) and is_own(value))):
            seen.add(id(value))
            plain.append((name, contents_text(value, seen=seen)))
    bound = (function.__defaults__, function.__kwdefaults__, getattr(function, "__self__", None))
    return (function.__qualname__, [code.co_code for code in every], names, constants, cells, plain, *bound)


def as_bytes(tensor: Tensor) -> np.ndarray:
    """Return the bytes of a tensor, copied only from another device or layout; none for a meta tensor."""
    values = tensor.new_empty(0, device="cpu") if tensor.is_meta else tensor.detach().cpu()
    return values.contiguous().reshape(-1).view(torch.uint8).numpy()


def _written(setting: tuple[str, object]) -> tuple[str, str]:
    name, value = setting
    return name, getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else repr(value)
