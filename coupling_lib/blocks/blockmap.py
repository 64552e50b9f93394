"""One block as a function of a few tokens' states, all other tokens held fixed.

The other tokens enter through their keys and values, or through the state of a recurrence, which are constants; with
those frozen, a column of the Jacobian costs one token's work instead of the whole sequence's. Four routes:

- `attention`: the family calls its attention through transformers' interface, and `attention` takes its place;
- `cache`: the family has an attention of its own, and a cache object that returns constants replaces its cache;
- `state`: the block carries a state from token to token; the tokens before t_1 leave theirs in the family's own cache;
- `sequence`: the block mixes tokens in some other way, and the whole sequence is evaluated for every column.
"""

import copy
import inspect
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from coupling_lib.blocks.attention import KeysValues, frozen, recording
from coupling_lib.blocks.call import BlockCall, chosen_rows

# A map of the chosen tokens' states, (T, s, d), to their states after the block.
TokenMap = Callable[[Tensor], Tensor]

_CACHE = re.compile(r"\b(Dynamic|EncoderDecoder)?Cache\b|^(cache|layer_past|past_key_values)$")
# Errors that a block may raise if it does not take a cache, or not the substitute.
NO_CACHE = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class _RecordingCache(DynamicCache):
    """A cache that records the written keys and values and returns them unchanged."""

    written: KeysValues | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> KeysValues:
        if self.written is not None:
            raise ValueError("the block writes to its cache more than once")
        self.written = KeysValues(key_states.detach(), value_states.detach())
        return self.written


class _FrozenCache(DynamicCache):
    """A cache of constants, in which newly written tokens take their own places."""

    def __init__(self, constants: KeysValues, positions: Tensor):
        super().__init__()
        self.constants, self.positions = constants, positions

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> KeysValues:
        return self.constants.with_tokens(KeysValues(key_states, value_states), self.positions)

    def get_seq_length(self, *_: Any) -> int:
        return self.constants.keys.shape[2] - self.positions.shape[1]


def token_map(call: BlockCall, block: nn.Module, route: str, positions: Tensor) -> TokenMap:
    """Return a block as a function of the states at a few positions."""
    maps = {"attention": _attention_map, "cache": _cache_map, "state": _state_map}
    if route in maps:
        return maps[route](call, block, positions)
    index = positions[0]
    return lambda x: call.replay(block, call.input.to(x.dtype).index_copy(1, index, x))[:, index]


@contextmanager
def without_norms(block: nn.Module, names: tuple[str, ...]) -> Generator[None]:
    """Make a block return its input plus the outputs of its sub-layers, inside the context."""
    changes: list[Tensor] = []

    def keep(_: nn.Module, args: tuple, kwargs: dict[str, Any], gave: Tensor) -> None:
        changes.append(gave - (args[0] if args else next(iter(kwargs.values()))))

    def take_back(_: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        y = output[0] if isinstance(output, tuple | list) else output
        for change in changes:
            y = y - change.reshape(y.shape)
        changes.clear()
        return (y, *output[1:]) if isinstance(output, tuple | list) else y

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(block.get_submodule(name).register_forward_hook(keep, with_kwargs=True))
        hooks.enter_context(block.register_forward_hook(take_back, with_kwargs=True))
        yield


def _attention_map(call: BlockCall, block: nn.Module, positions: Tensor) -> TokenMap:
    ((name, constants),) = call.keys_values.items()
    layer, few = block.get_submodule(name), _few(call, positions)
    if block is not call.block:
        # A dense copy has keys and values of its own, in a wider format than the model's.
        with recording() as recorded, torch.no_grad():
            call.replay(block, call.input.to(dtype_of(block)))
        constants = recorded[layer]

    def apply(x: Tensor) -> Tensor:
        with frozen(layer, constants, positions):
            return few.replay(block, x)

    return apply


def _few(call: BlockCall, positions: Tensor) -> BlockCall:
    n = call.input.shape[1]
    few = call.with_arguments(lambda name, value: _rows(name, value, positions, n))
    return replace(few, chosen=tuple(chosen_rows(each, positions, n) for each in call.chosen))


def cache_name(block: nn.Module) -> str | None:
    """Return the argument of a block that is a cache, found by its annotation, or by its name where it has none."""
    of_all = inspect.signature(type(block).forward).parameters.values()
    texts = {each.name: each.name if each.annotation is each.empty else str(each.annotation) for each in of_all}
    return next((name for name, text in texts.items() if _CACHE.search(text)), None)


@torch.no_grad()
def cached(call: BlockCall, block: nn.Module) -> KeysValues | None:
    """Run a block once with a cache and return the keys and values written to it; None if it takes no cache."""
    cache = _RecordingCache()
    try:
        call.with_argument(cache_name(block), cache).replay(block, call.input.to(dtype_of(block)))
    except NO_CACHE:
        return None
    return cache.written


def dtype_of(block: nn.Module) -> torch.dtype:
    """Return the dtype of a block's weights."""
    return next(p.dtype for p in block.parameters() if p.is_floating_point())


def _cache_map(call: BlockCall, block: nn.Module, positions: Tensor) -> TokenMap:
    # Later tokens do not matter to a causal block, and leaving them out puts the token that is differentiated last,
    # where families that slice a causal mask of their own by length (GPT-Neo) expect the query to be.
    end = int(positions[0, -1]) + 1
    constants, n = KeysValues(*(part[:, :, :end] for part in cached(call, block))), call.input.shape[1]
    few = _few(call, positions).with_arguments(lambda name, value: _keys(name, value, end, n))
    few = few.with_argument(cache_name(block), _FrozenCache(constants, positions))
    return lambda x: few.replay(block, x)


@torch.no_grad()
def state_size(call: BlockCall, block: nn.Module) -> int:
    """Count the entries of the state that one token leaves."""
    cache = DynamicCache(config=call.config)
    advance(call, block, cache, 0, call.input[:, :1].to(dtype_of(block)))
    return sum(state.numel() for states in _states(cache) for state in states.values() if state is not None)


def layers_with_state(cache: DynamicCache) -> list[LinearAttentionCacheLayerMixin]:
    """List the layers of a cache that carry a state."""
    return [layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]


def _states(cache: DynamicCache) -> list[dict[Any, Tensor]]:
    """List the states that a cache carries, by the dictionaries that hold them."""
    return [kept for layer in layers_with_state(cache) for kept in (layer.conv_states, layer.recurrent_states)]


def _state_map(call: BlockCall, block: nn.Module, positions: Tensor) -> TokenMap:
    """Return a block as a map of the states at a few positions, starting from the state that earlier tokens leave."""
    start, end = int(positions[0, 0]), int(positions[0, -1]) + 1
    stream = call.input[:, :end].to(dtype_of(block))
    before = DynamicCache(config=call.config)
    if start:
        with torch.no_grad():
            advance(call, block, before, 0, stream[:, :start])

    def apply(x: Tensor) -> Tensor:
        few = stream[:, start:].to(x.dtype).index_copy(1, positions[0] - start, x)
        cache, out = copy.deepcopy(before), []
        # One by one: some families' multi-token form does not continue from a state (Mamba's starts from zero).
        with _OutOfPlaceStates(cache):
            for place, state in enumerate(few.split(1, dim=1), start=start):
                out.append(advance(call, block, cache, place, state))
        return torch.cat(out, dim=1)[:, positions[0] - start]

    return apply


class _OutOfPlaceStates(TorchFunctionMode):
    """Mode in which a block's in-place writes to a cache's states become new tensors: a derivative needs both."""

    def __init__(self, cache: DynamicCache):
        super().__init__()
        self.states = _states(cache)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is Tensor.copy_:
            for states in self.states:
                for name, state in states.items():
                    if state is args[0]:
                        states[name] = args[1].to(state.dtype)
                        return states[name]
        return func(*args, **(kwargs or {}))


def advance(call: BlockCall, block: nn.Module, cache: DynamicCache, start: int, stream: Tensor) -> Tensor:
    """Call a block on the tokens from position `start`, with the state that earlier tokens left in its cache."""
    n, end = call.input.shape[1], start + stream.shape[1]
    among = torch.arange(start, end, device=stream.device)[None]
    part = _few(call, among).with_arguments(lambda name, value: _keys(name, value, end, n))
    return part.with_argument(cache_name(block), cache).replay(block, stream)


def _rows(name: str, value: Tensor, positions: Tensor, n: int) -> Tensor:
    """Select the rows of the chosen tokens in arguments indexed by query (rotary tables, position ids, mask rows)."""
    if name == "attention_mask" and value.ndim == 4 and value.shape[2] == n:
        return value[0].transpose(0, 1)[positions].transpose(1, 2)
    if name.startswith("position_embeddings") and value.ndim == 3 and value.shape[1] == n:
        return value[0][positions]
    if name in ("position_ids", "cache_position") and value.shape[-1] == n:
        return value.reshape(-1, n)[0][positions]
    return value


def _keys(name: str, value: Tensor, end: int, n: int) -> Tensor:
    """Select the entries before `end` in arguments indexed by key (mask columns, ALiBi)."""
    return value[..., :end] if name in ("attention_mask", "alibi") and value.shape[-1] == n else value
