"""The makeup of a block apart from its weights: modules, settings, functions, and users' modifications.

User modifications (hooks, a patched `forward`, parametrised weights) are part of what a block computes, and so of its
derivative. A function that it calls by name (`F.silu`), a class's `forward` or a setting can be exchanged with nothing
changed on any module. All of it is compared with its state at load (`validate`) and at the trace of the block.
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
# A place where a function is looked up when it is called: a dictionary of globals, a module or a class, and a name.
_Place = tuple[Any, str]
# Attributes that torch keeps on every module, and those that nnsight and accelerate set over a module's own `forward`.
NO_SETTINGS = {*vars(nn.Module()), "forward", "_hf_hook", "_old_forward", STATE}
# Depth to which calls from one function to the next are followed; calls within torch's functions are not.
_DEPTH = 3


def modifications(block: nn.Module) -> Modifications:
    """List the modifications of a block's modules: name, kind of module, and the functions themselves."""
    # The functions, not their number: exchanging one for another changes the block as well.
    of_all = [("every module", nn.Module, *global_hooks())] if global_hooks() else []
    on_modules = (
        (name, type(part), *found)
        for name, part in block.named_modules()
        if (found := [*_functions(part)]) or "parametrizations" in part._modules
    )
    return (*of_all, *on_modules)


def modified(block: nn.Module) -> str:
    """Return the names of a block's modified modules, as text."""
    return ", ".join(repr(name or type(block).__name__) for name, *_ in modifications(block)) or "none of its modules"


def is_bare(module: nn.Module) -> bool:
    """Return whether a module computes what its class's `forward` computes."""
    return not global_hooks() and next(_functions(module), None) is None


def refuse_on_backward(block: nn.Module) -> None:
    """Refuse hooks that change derivatives but no values."""
    message = "backward hook, which would change derivatives without changing what the block computes; remove it before"
    if set(global_hooks()) - set(global_hooks(forward_alone=True)):
        raise UnsupportedModelError(f"every module carries a global {message} you trace")
    for name, part in block.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise UnsupportedModelError(
                f"module {name or type(block).__name__!r} of a block carries a {message} you trace"
            )


def replaced_forward(part: nn.Module) -> Any:
    """Return the patched `forward` of a module; None where it runs its class's own."""
    forward = part.__dict__.get("_old_forward" if "_hf_hook" in part.__dict__ else "forward")
    if isinstance(forward, Controller):  # nnsight's wrapper
        forward = forward.state.original
    plain = type(part).forward
    return None if getattr(forward, "__func__", forward) in (None, plain) else forward


def is_outdated(part: nn.Module) -> bool:
    """Return whether nnsight runs a class's former `forward` in place of the one that it was exchanged for."""
    forward = part.__dict__.get("forward")
    if not isinstance(forward, Controller):
        return False
    return forward.state.original is forward.__wrapped__ is not type(part).forward


def _functions(part: nn.Module) -> Iterator[Any]:
    """Iterate over users' modifications of a module; transformers' own hooks only record."""
    hooks = (part._forward_pre_hooks, part._forward_hooks, part._backward_hooks, part._backward_pre_hooks)
    yield from _user_hooks(hooks, "coupling_lib.blocks.", "transformers.")
    if (forward := replaced_forward(part)) is not None:
        yield forward


def global_hooks(*, forward_alone: bool = False) -> tuple[Any, ...]:
    """List users' hooks on all modules of torch; torch's own only count operations."""
    hooks = [of_torch._global_forward_hooks, of_torch._global_forward_pre_hooks]
    if not forward_alone:
        hooks += [of_torch._global_backward_hooks, of_torch._global_backward_pre_hooks]
    return tuple(_user_hooks(hooks, "torch."))


def _user_hooks(hooks: Iterable[Mapping[int, Any]], *packages: str) -> Iterator[Any]:
    """Iterate over hooks other than those of some packages."""
    of_all = chain.from_iterable(each.values() for each in hooks)
    return (each for each in of_all if not str(getattr(each, "__module__", "")).startswith(packages))


def makeups(blocks: Iterable[nn.Module]) -> tuple[Makeup, ...]:
    """List the current modules, settings and called functions of each block."""

    @cache  # of this call: a function may be exchanged before the next
    def made(kind: type[nn.Module]) -> tuple[Any, ...]:
        return (kind, *map(look_up, called_functions(kind, kind.forward)))

    return tuple(
        tuple((name, made(type(part)), tuple(settings(part))) for name, part in block.named_modules())
        for block in blocks
    )


def without_settings(made: Iterable[Makeup]) -> list[Makeup]:
    """Return each block's modules and the functions that they call, without their settings."""
    return [tuple((name, functions) for name, functions, _ in block) for block in made]


def settings(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """Iterate over what a module keeps beside weights and modules: numbers, words, and functions."""
    for name, value in vars(part).items():
        if name in NO_SETTINGS:
            continue
        if isinstance(value, tuple):
            yield name, repr(value)  # as text, because it may hold tensors
        # None is left out: a setting that is None until a pass leaves a state does not change the block.
        elif isinstance(value, str | int | float) or (callable(value) and not isinstance(value, nn.Module)):
            yield name, value


def look_up(place: _Place) -> Any:
    """Return the object at a place."""
    space, name = place
    return space.get(name) if isinstance(space, dict) else getattr(space, name, None)


@cache
def called_functions(kind: type, forward: Any) -> tuple[_Place, ...]:
    """List the places of the functions that a class's forward calls, and of that forward."""
    found: dict[tuple[int, str], _Place] = {(id(kind), name): (kind, name) for name in ("forward", "__call__")}
    todo, seen = [(forward, 0)], set()
    while todo:
        function, depth = todo.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        # The function that a decorator wraps; a cell may still be empty.
        cells = (cell.cell_contents for cell in function.__closure__ or () if cell != CellType())
        todo += [(each, depth) for each in cells if callable(each)]
        for space, name in _candidates(function, kind):
            value, found[id(space), name] = look_up((space, name)), (space, name)
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


def _candidates(function: FunctionType, kind: type) -> Iterator[_Place]:
    """Iterate over what a function may call by name: globals, members of modules, methods of its class and tensors."""
    names = {name for code in codes(function.__code__) for name in code.co_names if not name.startswith("__")}
    todo, seen = [function.__globals__, kind, Tensor], set()
    while todo:
        space = todo.pop()
        seen.add(id(space))
        for name in names:
            value = look_up((space, name))
            if isinstance(value, ModuleType) and id(value) not in seen:
                todo.append(value)
            elif callable(value):
                yield space, name
