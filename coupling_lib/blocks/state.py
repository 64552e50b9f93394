"""Changes of a model's state by a forward pass: recorded, undone, and applied again where needed.

BigBird exchanges its sparse attention for a full one when it reads a short text; a long prompt stretches a rotary
table; a module counts its calls. A pass for inspection must leave no such trace, and a block that is differentiated
later must be in the state of its pass (`Changes.applied`).
"""

import random
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from nnsight.intervention.source import STATE
from torch import Tensor, nn
from transformers import PreTrainedConfig

from coupling_lib.blocks import attention

# Not undone: entries of nnsight, the attention set by this library, and transformers' mark that its hooks for hidden
# states are installed, without which it would install them twice.
_NOT_UNDONE = {STATE, "forward", attention.SETTING, "_output_capturing_hooks_installed"}
# Largest size of a buffer that is copied, to be restored where a pass overwrites it.
_SMALL = 2**16
_CONTAINERS = (dict, list, set)
_MISSING = object()


class _Change(NamedTuple):
    """One entry of a dictionary, list or set of a model, before a pass and after it."""

    put: Callable[[Any], None]
    before: Any
    after: Any


class Changes:
    """The changes that a pass made in a model."""

    def __init__(self) -> None:
        self._changes: list[_Change] = []
        self._inside = False

    @contextmanager
    def applied(self) -> Generator[None]:
        """Apply the pass's changes to the model, inside the context."""
        for each in self._changes:
            each.put(each.after)
        if self._inside:  # a block that ran in between may have changed it further
            yield
            return
        self._inside = True
        try:
            with _generators_restored():
                yield
        finally:
            self._undo()
            self._inside = False

    def _undo(self) -> None:
        for each in reversed(self._changes):
            each.put(each.before)


@contextmanager
def restored(hf: nn.Module) -> Generator[Changes]:
    """Undo, on leaving the context, all changes that a pass inside it made in a model."""
    changes = Changes()
    places = [(place, place.copy()) for place in _places(hf)]
    tensors = list(_tensors(hf))
    try:
        with _generators_restored():
            yield changes
    finally:
        for place, before in places:
            changes._changes += _differences(place, before)
        written = []
        for path, tensor, version, copy in tensors:
            if tensor._version != version and copy is not None:
                changes._changes.append(_Change(partial(_write, tensor), copy, tensor.detach().clone()))
            elif tensor._version != version:
                written.append(path)
        if written:
            # Weights have no copies, and other changes may refer to them: RWKV records that its weights are rescaled.
            changes._changes.clear()
            warnings.warn(
                f"{len(written)} weights of {type(hf).__name__} ({written[0]}, ...) were written over during a forward "
                "pass, and stay as they are now",
                stacklevel=4,
            )
        changes._undo()


@contextmanager
def _generators_restored() -> Generator[None]:
    """Restore the global random generators on leaving the context."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _tensors(hf: nn.Module) -> Iterator[tuple[str, Tensor, int, Tensor | None]]:
    """Iterate over weights and buffers with their versions, and copies of small buffers."""
    for name, module in hf.named_modules():
        for key, tensor in (module._parameters | module._buffers).items():
            if tensor is not None and not tensor.is_inference():
                small = not isinstance(tensor, nn.Parameter) and tensor.numel() <= _SMALL
                yield f"{name}.{key}", tensor, tensor._version, tensor.detach().clone() if small else None


def _places(hf: nn.Module) -> list[Any]:
    """List the dictionaries, lists and sets that hold a model's settings, submodules and buffers."""
    found = (vars(part).get("config") for part in hf.modules())
    configs = {id(config): config for config in found if isinstance(config, PreTrainedConfig)}
    places = [vars(each) for each in (*hf.modules(), *configs.values())]
    # Neither hooks, which come and go while a pass is recorded, nor weights, which are compared by their versions.
    inner = ((key, value) for place in places for key, value in place.items() if type(value) in _CONTAINERS)
    return places + [value for key, value in inner if key != "_parameters"]


def _differences(place: Any, before: Any) -> Iterator[_Change]:
    """Iterate over the differences between a container now and its copy from before."""
    with suppress(RuntimeError, ValueError):  # of tensors that differ, which == cannot decide
        if place == before:
            return
    if not isinstance(place, dict):
        if len(place) != len(before) or any(a is not b for a, b in zip(place, before, strict=True)):
            yield _Change(partial(_refill, place), before, place.copy())
        return
    for key in (before.keys() | place.keys()) - _NOT_UNDONE:
        old, new = before.get(key, _MISSING), place.get(key, _MISSING)
        if old is not new and not _equal(old, new):
            yield _Change(partial(_put, place, key), old, new)


def _equal(old: Any, new: Any) -> bool:
    """Return whether two entries are the same number, word or tuple; containers of tensors count as different."""
    with suppress(RuntimeError, ValueError):  # of tensors, which == does not decide
        return isinstance(old, str | int | float | tuple) and type(old) is type(new) and old == new
    return False


def _put(place: dict, key: Any, value: Any) -> None:
    if value is _MISSING:
        place.pop(key, None)
    else:
        place[key] = value


def _write(tensor: Tensor, values: Tensor) -> None:
    tensor.data = values.clone()  # a graph may hold its former values


def _refill(place: list | set, values: list | set) -> None:
    place.clear()
    (place.extend if isinstance(place, list) else place.update)(values)
