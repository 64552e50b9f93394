"""What a block computes with, but for its weights: modules, settings, functions, and what users put on them.

User modifications (hooks, a patched `forward`, parametrised weights) are part of what a block computes, and so of its
derivative. A function that it calls by name (`F.silu`), a class's `forward` or a setting can be exchanged with nothing
put on any module. All of it is compared with what it was at load (`validate`), and when the block was traced.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from nnsight.intervention.source import STATE, Controller
from torch import Tensor, nn
from torch.nn.modules import module as of_torch

from coupling_lib.errors import UnsupportedModelError

Modifications = tuple[tuple[Any, ...], ...]
Makeup = tuple[tuple[Any, ...], ...]
# Where a function is looked up when it is called: in a dictionary of globals, a module or a class, by a name.
_Place = tuple[Any, str]
# What torch keeps on every module, and what nnsight and accelerate put in the place of a module's own `forward`.
NO_SETTINGS = {*vars(nn.Module()), "forward", "_hf_hook", "_old_forward", STATE}
# Calls from one function to the next that are followed; of torch's functions no further ones are.
_DEPTH = 3


def modifications(block: nn.Module) -> Modifications:
    """List the modifications of a block's modules: name, kind of module, and the functions themselves."""
    # The functions, and not how many: one that is exchanged for another changes the block as well.
    of_all = [("every module", nn.Module, *everywhere())] if everywhere() else []
    on_modules = (
        (name, type(part), *found)
        for name, part in block.named_modules()
        if (found := [*_functions(part)]) or "parametrizations" in part._modules
    )
    return (*of_all, *on_modules)


def where(block: nn.Module) -> str:
    """Name the modified modules of a block."""
    return ", ".join(repr(name or type(block).__name__) for name, *_ in modifications(block)) or "none of its modules"


def is_bare(module: nn.Module) -> bool:
    """Return whether a module computes what its class computes."""
    return not everywhere() and next(_functions(module), None) is None


def refuse_on_backward(block: nn.Module) -> None:
    """Refuse hooks that change derivatives and not values."""
    message = "backward hook, which would change derivatives without changing what the block computes; remove it before"
    if set(everywhere()) - set(everywhere(forward_alone=True)):
        raise UnsupportedModelError(f"every module carries a global {message} you trace")
    for name, part in block.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise UnsupportedModelError(
                f"module {name or type(block).__name__!r} of a block carries a {message} you trace"
            )


def replaced_forward(part: nn.Module) -> Any:
    """Return the patched `forward` of a module; None where it runs its class's own."""
    forward = part.__dict__.get("_old_forward" if "_hf_hook" in part.__dict__ else "forward")
    if isinstance(forward, Controller):  # nnsight's, around what it found
        forward = forward.state.original
    plain = type(part).forward
    return None if getattr(forward, "__func__", forward) in (None, plain) else forward


def is_outdated(part: nn.Module) -> bool:
    """Return whether nnsight runs, in the place of a class's forward, what that was before it was exchanged."""
    forward = part.__dict__.get("forward")
    if not isinstance(forward, Controller):
        return False
    return forward.state.original is forward.__wrapped__ is not type(part).forward


def _functions(part: nn.Module) -> Iterator[Any]:
    """List what others put on a module; hooks of transformers only look."""
    hooks = (part._forward_pre_hooks, part._forward_hooks, part._backward_hooks, part._backward_pre_hooks)
    yield from _of_others(hooks, "coupling_lib.blocks.", "transformers.")
    if (forward := replaced_forward(part)) is not None:
        yield forward


def everywhere(*, forward_alone: bool = False) -> tuple[Any, ...]:
    """List the hooks of others that stand on every module there is; torch's own only count operations."""
    hooks = [of_torch._global_forward_hooks, of_torch._global_forward_pre_hooks]
    if not forward_alone:
        hooks += [of_torch._global_backward_hooks, of_torch._global_backward_pre_hooks]
    return tuple(_of_others(hooks, "torch."))


def _of_others(hooks: Iterable[Mapping[int, Any]], *packages: str) -> Iterator[Any]:
    """Leave out the hooks that some packages put there."""
    of_all = chain.from_iterable(each.values() for each in hooks)
    return (each for each in of_all if not str(getattr(each, "__module__", "")).startswith(packages))


def makeups(blocks: Iterable[nn.Module]) -> tuple[Makeup, ...]:
    """List for each block its modules, their settings and the functions that they call, as they are now."""
    functions: dict[type, tuple[Any, ...]] = {}

    def made(part: nn.Module) -> tuple[Any, ...]:
        if (kind := type(part)) not in functions:
            functions[kind] = (kind, *map(now, called(kind, kind.forward)))
        return functions[kind]

    return tuple(
        tuple((name, made(part), tuple(settings(part))) for name, part in block.named_modules()) for block in blocks
    )


def without_settings(made: Iterable[Makeup]) -> list[Makeup]:
    """Return each block's modules and the functions that they call, without their settings."""
    return [tuple((name, functions) for name, functions, _ in block) for block in made]


def settings(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name what a module keeps beside weights and modules: numbers, words, and functions."""
    for name, value in vars(part).items():
        if name in NO_SETTINGS:
            continue
        if isinstance(value, tuple):
            yield name, repr(value)  # which may hold tensors, of which no two are compared
        # Of None nothing is kept: what is None until a pass leaves a state there is no change of the block.
        elif isinstance(value, str | int | float) or (callable(value) and not isinstance(value, nn.Module)):
            yield name, value


def now(place: _Place) -> Any:
    """Return what stands at a place."""
    space, name = place
    return space.get(name) if isinstance(space, dict) else getattr(space, name, None)


@cache
def called(kind: type, forward: Any) -> tuple[_Place, ...]:
    """List the places of the functions that a class's forward calls, and its own."""
    found: dict[tuple[int, str], _Place] = {(id(kind), name): (kind, name) for name in ("forward", "__call__")}
    todo, seen = [(forward, 0)], set()
    while todo:
        function, depth = todo.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        # What a decorator stands around; a cell may be empty still.
        cells = (cell.cell_contents for cell in function.__closure__ or () if cell != CellType())
        todo += [(each, depth) for each in cells if callable(each)]
        for space, name in _looked_up(function, kind):
            value, found[id(space), name] = now((space, name)), (space, name)
            if isinstance(value, type) and issubclass(value, torch.autograd.Function):
                found |= {(id(value), method): (value, method) for method in ("forward", "backward", "jvp", "vmap")}
            if depth < _DEPTH and not str(getattr(value, "__module__", "")).startswith("torch"):
                todo.append((value, depth + 1))
    return tuple(found.values())


def codes(code: CodeType) -> Iterator[CodeType]:
    """Iterate over the code of a function and of the functions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)


def _looked_up(function: FunctionType, kind: type) -> Iterator[_Place]:
    """List what a function may call by a name: globals, what is in a module, methods of its class and of tensors."""
    names = {name for code in codes(function.__code__) for name in code.co_names if not name.startswith("__")}
    todo, seen = [function.__globals__, kind, Tensor], set()
    while todo:
        space = todo.pop()
        seen.add(id(space))
        for name in names:
            value = now((space, name))
            if isinstance(value, ModuleType) and id(value) not in seen:
                todo.append(value)
            elif callable(value):
                yield space, name
