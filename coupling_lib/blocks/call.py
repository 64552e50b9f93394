"""One call of one block, as the model made it: arguments by name, discrete choices, and output.

The experts that a mixture selects, and the tokens that sparse attention selects, are step functions of the state, with
zero derivative almost everywhere; another number format may rank two gates the other way round. So the choice of the
model's own pass is held fixed.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import Cache, PreTrainedConfig

from coupling_lib.blocks.attention import KeysValues
from coupling_lib.errors import UnsupportedModelError

_TOPK = (torch.topk, Tensor.topk)


class RecordedChoices(TorchFunctionMode):
    """Mode that records the choices of `topk` for the running block, in the order of the calls."""

    def __init__(self, running: Callable[[], int | None]):
        super().__init__()
        self.running = running
        self.chosen: dict[int, list[Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _TOPK and (number := self.running()) is not None:
            self.chosen.setdefault(number, []).append(found[1].detach())
        return found


class FixedChoices(TorchFunctionMode):
    """Mode in which `topk` repeats recorded choices, call by call."""

    def __init__(self, chosen: Sequence[Tensor]):
        super().__init__()
        self.left = list(chosen)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in _TOPK or not self.left:
            return func(*args, **kwargs)
        scores, index = args[0] if args else kwargs["input"], self.left.pop(0)
        # One row for each token, whether or not tokens have a dimension of their own.
        index = index.reshape(*scores.shape[:-1], index.shape[-1])
        return torch.return_types.topk((scores.gather(-1, index), index))


def chosen_rows(chosen: Tensor, positions: Tensor, n: int) -> Tensor:
    """Select the rows at `positions` `(T, s)` of choices made for n tokens."""
    return chosen.reshape(n, -1, chosen.shape[-1])[positions.flatten()].reshape(-1, chosen.shape[-1])


@dataclass(frozen=True, eq=False)
class BlockCall:
    """One call of one block, as the model made it."""

    block: nn.Module
    input: Tensor
    output: Tensor
    stream: str
    arguments: dict[str, Any]
    keys_values: dict[str, KeysValues] = field(default_factory=dict)
    config: PreTrainedConfig | None = None
    chosen: tuple[Tensor, ...] = ()
    positional: int = 0

    def with_arguments(self, change: Callable[[str, Tensor], Any]) -> "BlockCall":
        """Apply a function to every tensor among the arguments but the residual stream."""
        changed = {name: on_tensors(partial(change, name), value) for name, value in self.arguments.items()}
        return replace(self, arguments=changed)

    def with_argument(self, name: str, value: Any) -> "BlockCall":
        """Replace one argument."""
        return replace(self, arguments={**self.arguments, name: value})

    def on(self, device: torch.device | str) -> "BlockCall":
        """Move all arguments, the output and the choices to one device; the blocks of a model may lie on several."""
        moved = self.with_arguments(lambda _, value: value.to(device))
        chosen = tuple(each.to(device) for each in self.chosen)
        return replace(moved, input=self.input.to(device), output=self.output.to(device), chosen=chosen)

    def replay(self, block: nn.Module, stream: Tensor) -> Tensor:
        """Call a block as the model did, on another residual stream."""
        # As many by position as in the model's call: hooks of users may look for them there.
        converted = self.with_arguments(lambda _, value: cast(stream.dtype, value))
        given = {self.stream: stream} | converted.arguments
        first, rest = list(given.values())[: self.positional], dict(list(given.items())[self.positional :])
        with FixedChoices(self.chosen) if self.chosen else nullcontext():
            return residual_stream(block(*first, **rest), stream.shape)


def cast(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Convert floating-point numbers to a dtype; whole numbers and booleans are left unchanged."""
    return value.to(dtype) if value.is_floating_point() else value


def on_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to a tensor, or to each one in a tuple, list or dictionary."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(map(partial(on_tensors, change), value))
    if isinstance(value, Mapping) and not isinstance(value, Cache):
        return {name: on_tensors(change, part) for name, part in value.items()}
    return value


def _describe(value: Any) -> tuple[int, ...] | str:
    """Describe a value passed where a tensor of some shape was expected."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def residual_stream(returned: Any, shape: torch.Size) -> Tensor:
    """Return the residual stream from a block's output: a bare tensor or a tuple that starts with it."""
    # Indexing a bare tensor with `[0]` would silently take batch element 0, so the shape is checked.
    stream = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(stream, Tensor) or stream.shape != shape:
        raise UnsupportedModelError(
            f"a block returned {_describe(stream)}; a residual stream of shape {tuple(shape)} was expected"
        )
    return stream


def block_call(
    block: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any, keys_values: dict[nn.Module, KeysValues]
) -> BlockCall:
    """Return a block's call with its arguments by name: the residual stream, caches (dropped), and the rest."""
    signature = inspect.signature(type(block).forward)
    bound = signature.bind(block, *args, **kwargs).arguments
    rest = next((name for name, p in signature.parameters.items() if p.kind is p.VAR_KEYWORD), None)
    arguments = {name: value for name, value in list(bound.items())[1:] if name != rest} | bound.get(rest, {})
    stream, first = next(iter(arguments.items()), ("", None))
    if not isinstance(first, Tensor) or first.ndim != 3 or len(first) != 1 or not first.is_floating_point():
        several = isinstance(first, Tensor) and first.ndim == 4
        why = "; several streams side by side (hyper-connections) cannot be measured" if several else ""
        raise UnsupportedModelError(
            f"a block was called with {_describe(first)}; a residual stream of shape (1, n, d) was expected{why}"
        )
    others = {name: None if isinstance(value, Cache) else value for name, value in arguments.items() if name != stream}
    recorded = {name: keys_values[part] for name, part in block.named_modules() if part in keys_values}
    output = residual_stream(output, first.shape).detach()
    return BlockCall(block, first.detach(), output, stream, others, recorded, positional=len(args))
