"""What a block computes with, but for its weights: modules, their settings, and the functions that they call.

All of it can be exchanged after a model was looked at, with nothing put on any module: a class's `forward`, a function
that it calls by a name (`F.silu`), a setting. What a block was made of when its route was chosen is compared with what
it is made of when it is traced (`validate`), and when it is differentiated.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

Makeup = tuple[tuple[Any, ...], ...]
# Where a function is looked up when it is called: in a dictionary of globals, a module or a class, by a name.
_Place = tuple[Any, str]

# What every module keeps for torch's sake, and what nnsight and accelerate put in the place of a module's own
# `forward`, which is part of what stands on it.
_NO_SETTINGS = {*vars(nn.Module()), "forward", "_hf_hook", "_old_forward"}
# Calls from one function to the next that are followed; of torch's functions no further ones are.
_DEPTH = 3


def makeups(blocks: Iterable[nn.Module]) -> tuple[Makeup, ...]:
    """List for each block its modules, their settings and the functions that they call, as they are now."""
    functions: dict[type, tuple[Any, ...]] = {}

    def made(part: nn.Module) -> tuple[Any, ...]:
        if (kind := type(part)) not in functions:
            functions[kind] = (kind, *map(_now, _called(kind, kind.forward)))
        return functions[kind]

    return tuple(
        tuple((name, made(part), tuple(settings(part))) for name, part in block.named_modules()) for block in blocks
    )


def written(block: nn.Module) -> list[tuple[str, ...]]:
    """Describe the functions that a block's modules call by where they were written, alike in every process."""
    found = []
    for kind in dict.fromkeys(type(part) for part in block.modules()):
        for space, name in _called(kind, kind.forward):
            value = getattr(_now((space, name)), "__func__", _now((space, name)))
            code = getattr(value, "__code__", None)
            where = (str(getattr(value, each, "")) for each in ("__module__", "__qualname__"))
            found.append(
                (kind.__qualname__, name, *where, code.co_code.hex() if code else "", str(code and code.co_names))
            )
    return sorted(found)


def settings(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name what a module keeps beside weights and modules: numbers, words, and functions."""
    for name, value in vars(part).items():
        if name in _NO_SETTINGS:
            continue
        if isinstance(value, tuple):
            yield name, repr(value)  # which may hold tensors, of which no two are compared
        # Of None nothing is kept: what is None until a pass leaves a state there is no change of the block.
        elif isinstance(value, str | int | float) or (callable(value) and not isinstance(value, nn.Module)):
            yield name, value


def _now(place: _Place) -> Any:
    space, name = place
    return space.get(name) if isinstance(space, dict) else getattr(space, name, None)


@cache
def _called(kind: type, forward: Any) -> tuple[_Place, ...]:
    """List the places of the functions that a class's forward calls, and its own."""
    found: dict[tuple[int, str], _Place] = {(id(kind), name): (kind, name) for name in ("forward", "__call__")}
    todo, seen = [(forward, 0)], set()
    while todo:
        function, depth = todo.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        # What a decorator stands around.
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        todo += [(each, depth) for each in cells if callable(each)]
        for place in _looked_up(function, kind):
            value = _now(place)
            if isinstance(value, type) and issubclass(value, torch.autograd.Function):
                more = [(value, name) for name in ("forward", "backward", "jvp", "vmap")]
            else:
                more = []
            found |= {(id(space), name): (space, name) for space, name in (place, *more)}
            if depth < _DEPTH and not str(getattr(value, "__module__", "")).startswith("torch"):
                todo.append((value, depth + 1))
    return tuple(found.values())


def _looked_up(function: FunctionType, kind: type) -> Iterator[_Place]:
    """List what a function may call by a name: globals, what is in a module, methods of its class and of tensors."""
    names = set(_names(function.__code__))
    todo, seen = [function.__globals__, kind, Tensor], set()
    while todo:
        space = todo.pop()
        seen.add(id(space))
        for name in names:
            value = _now((space, name))
            if isinstance(value, ModuleType) and id(value) not in seen:
                todo.append(value)
            elif callable(value):
                yield space, name


def _names(code: CodeType) -> Iterator[str]:
    yield from (name for name in code.co_names if not name.startswith("__"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
