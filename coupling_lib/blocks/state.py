"""What a forward pass changes in a model, beside what it returns: seen, undone, and done again where it is needed.

BigBird exchanges its sparse attention for a full one when it reads a short text; a rotary table is stretched by a long
prompt; a module counts its calls. A pass that only looks at a model leaves no such trace, and a block that is
differentiated later has to be as the pass had it (`Changes.applied`).
"""

import random
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from nnsight.intervention.source import STATE
from torch import Tensor, nn
from transformers import PreTrainedConfig

from coupling_lib.blocks import attention

# What nnsight leaves on what it has traced, the attention that this library sets, and transformers' note that its hooks
# for hidden states stand, which stay: without it they would be put there twice, and give every state twice.
_LEFT = (STATE, "forward", attention.SETTING, "_output_capturing_hooks_installed")
# Numbers of a buffer up to which it is copied, to be put back where it was written over.
_SMALL = 2**16
_CONTAINERS = (dict, list, set)
_MISSING = object()


class _Change(NamedTuple):
    """One entry of a dictionary, list or set of a model, before a pass and after it."""

    path: str
    put: Callable[[Any], None]
    before: Any
    after: Any


class Changes:
    """What a pass changed in a model."""

    def __init__(self) -> None:
        self._changes: list[_Change] = []
        self._inside = False

    @contextmanager
    def applied(self) -> Generator[None]:
        """Change the model as the pass did, inside the context."""
        for each in self._changes:
            each.put(each.after)
        if self._inside:  # where a block that ran in between may have changed it further
            yield
            return
        self._inside = True
        try:
            with _generators_kept():
                yield
        finally:
            self._undo()
            self._inside = False

    def _undo(self) -> None:
        for each in reversed(self._changes):
            each.put(each.before)


@contextmanager
def kept(hf: nn.Module) -> Generator[Changes]:
    """Undo on leaving the context what a pass inside it changed in a model."""
    changes = Changes()
    modules = list(hf.named_modules())
    places = [(path, place, place.copy()) for path, place in _places(modules)]
    tensors = [(f"{name}.{key}", x, x._version, _copied(x)) for name, part in modules for key, x in _tensors(part)]
    try:
        with _generators_kept():
            yield changes
    finally:
        for path, place, before in places:
            changes._changes += _compared(path, place, before)
        over = [(name, tensor, copy) for name, tensor, version, copy in tensors if tensor._version != version]
        written = [name for name, _, copy in over if copy is None]
        changes._changes += [
            _Change(name, tensor.data.copy_, copy, tensor.clone()) for name, tensor, copy in over if copy is not None
        ]
        if written:
            # Of these there is no copy, and what else was changed may say so: RWKV notes that its weights are rescaled.
            changes._changes.clear()
            warnings.warn(
                f"{len(written)} weights of {type(hf).__name__} ({written[0]}, ...) were written over during a forward "
                "pass, and stay as they are now",
                stacklevel=4,
            )
        changes._undo()


@contextmanager
def _generators_kept() -> Generator[None]:
    """Put the global random generators back on leaving the context."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """List a module's own weights and buffers."""
    for tensors in (module._parameters, module._buffers):
        for key, tensor in tensors.items():
            if tensor is not None and not tensor.is_inference():
                yield key, tensor


def _copied(tensor: Tensor) -> Tensor | None:
    """Copy what is small and no weight."""
    return None if isinstance(tensor, nn.Parameter) or tensor.numel() > _SMALL else tensor.clone()


def _places(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, Any]]:
    """List the dictionaries, lists and sets that hold a model's settings, submodules and buffers."""
    seen: set[int] = set()
    for name, module in modules:
        yield name, vars(module)
        for key, value in vars(module).items():
            # Not hooks, which come and go while a pass is looked at, nor weights, which are compared by their versions.
            if type(value) in _CONTAINERS and key != "_parameters":
                yield f"{name}.{key}", value
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig) and id(config) not in seen:
            seen.add(id(config))
            yield f"{name}.config", vars(config)
            for key, value in vars(config).items():
                if type(value) in _CONTAINERS:
                    yield f"{name}.config.{key}", value


def _compared(path: str, place: Any, before: Any) -> Iterator[_Change]:
    """List what differs between a container now and its copy from before."""
    with suppress(RuntimeError, ValueError):  # of tensors that differ, which cannot be told by ==
        if place == before:
            return
    if not isinstance(place, dict):
        if len(place) != len(before) or any(a is not b for a, b in zip(place, before, strict=True)):
            yield _Change(path, lambda value: _refill(place, value), before, place.copy())
        return
    for key in before.keys() | place.keys():
        if key in _LEFT:
            continue
        old, new = before.get(key, _MISSING), place.get(key, _MISSING)
        if old is not new and not _same(old, new):
            yield _Change(f"{path}.{key}", lambda value, key=key: _put(place, key, value), old, new)


def _same(old: Any, new: Any) -> bool:
    plain = str | int | float | bool | tuple | type(None)
    return isinstance(old, plain) and isinstance(new, plain) and type(old) is type(new) and old == new


def _put(place: dict, key: Any, value: Any) -> None:
    if value is _MISSING:
        place.pop(key, None)
    else:
        place[key] = value


def _refill(place: list | set, values: list | set) -> None:
    place.clear()
    (place.extend if isinstance(place, list) else place.update)(values)
