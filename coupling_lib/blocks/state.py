"""What a forward pass changes in a model, beside what it returns: seen, undone, and done again where it is needed.

BigBird exchanges its sparse attention for a full one when it reads a short text; a rotary table is stretched by a long
prompt; a module counts its calls. A pass that only looks at a model leaves no such trace, and a block that is
differentiated later has to be as the pass had it (`Changes.applied`).
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

# What nnsight leaves, the attention set here, and transformers' note that its hooks for hidden states stand, without
# which they would be put there twice: all of it stays.
_LEFT = {STATE, "forward", attention.SETTING, "_output_capturing_hooks_installed"}
# Numbers of a buffer up to which it is copied, to be put back where it was written over.
_SMALL = 2**16
_CONTAINERS = (dict, list, set)
_MISSING = object()


class _Change(NamedTuple):
    """One entry of a dictionary, list or set of a model, before a pass and after it."""

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
    places = [(place, place.copy()) for place in _places(hf)]
    tensors = list(_tensors(hf))
    try:
        with _generators_kept():
            yield changes
    finally:
        for place, before in places:
            changes._changes += _compared(place, before)
        written = []
        for path, tensor, version, copy in tensors:
            if tensor._version != version and copy is not None:
                changes._changes.append(_Change(partial(_write, tensor), copy, tensor.detach().clone()))
            elif tensor._version != version:
                written.append(path)
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


def _tensors(hf: nn.Module) -> Iterator[tuple[str, Tensor, int, Tensor | None]]:
    """List weights and buffers with their versions, and copies of what is small and no weight."""
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
    # Not hooks, which come and go while a pass is recorded, nor weights, which are compared by their versions.
    inner = ((key, value) for place in places for key, value in place.items() if type(value) in _CONTAINERS)
    return places + [value for key, value in inner if key != "_parameters"]


def _compared(place: Any, before: Any) -> Iterator[_Change]:
    """List what differs between a container now and its copy from before."""
    with suppress(RuntimeError, ValueError):  # of tensors that differ, which == cannot decide
        if place == before:
            return
    if not isinstance(place, dict):
        if len(place) != len(before) or any(a is not b for a, b in zip(place, before, strict=True)):
            yield _Change(partial(_refill, place), before, place.copy())
        return
    for key in (before.keys() | place.keys()) - _LEFT:
        old, new = before.get(key, _MISSING), place.get(key, _MISSING)
        if old is not new and not _equal(old, new):
            yield _Change(partial(_put, place, key), old, new)


def _equal(old: Any, new: Any) -> bool:
    """Return whether two entries are the same number, word or tuple; one that holds tensors is another one."""
    with suppress(RuntimeError, ValueError):  # of tensors, which == does not decide
        return isinstance(old, str | int | float | tuple) and type(old) is type(new) and old == new
    return False


def _put(place: dict, key: Any, value: Any) -> None:
    if value is _MISSING:
        place.pop(key, None)
    else:
        place[key] = value


def _write(tensor: Tensor, values: Tensor) -> None:
    tensor.data = values.clone()  # what it held may be kept for a derivative


def _refill(place: list | set, values: list | set) -> None:
    place.clear()
    (place.extend if isinstance(place, list) else place.update)(values)
