"""Recording of block calls: the one place that runs nnsight.

A transformer is a list of blocks that read and write one residual stream. One nnsight trace records the input and
output of each block; whether they satisfy the paper's definitions is checked by `validate`.
"""

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from nnsight import NNsight
from nnsight.intervention.source import STATE
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks.attention import NAME, KeysValues, recording
from coupling_lib.blocks.call import BlockCall, RecordedChoices, block_call
from coupling_lib.blocks.makeup import Makeup, Modifications, is_outdated, refuse_on_backward, replaced_forward
from coupling_lib.errors import UnsupportedModelError


@dataclass(frozen=True, eq=False)
class Blocks:
    """A model's transformer blocks, and the properties found by validation at load."""

    # `attention` names the implementation that they were checked with, `choosing` tells whether any selects experts or
    # tokens, and `scales` maps blocks that multiply their stream to the factor.
    path: str
    modules: nn.ModuleList
    routes: tuple[str, ...] = ()
    post_norm: dict[int, tuple[str, ...]] = field(default_factory=dict)
    attention: str = NAME
    choosing: bool = False
    modifications: tuple[Modifications, ...] = ()
    makeup: tuple[Makeup, ...] = ()
    scales: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def route(self) -> str:
        """Routes to the blocks' maps, as text: one, or several where blocks differ in kind."""
        return " and ".join(sorted(set(self.routes)))

    @property
    def norm_position(self) -> str:
        """Position of the norms: `"pre"`, `"post"` (block minus identity couples trivially), `"mixed"` for some."""
        if not self.post_norm:
            return "pre"
        return "post" if len(self.post_norm) == len(self) else "mixed"


def family_of(hf: PreTrainedModel) -> str:
    """Return a model's architecture, as text for a message."""
    return f"{type(hf).__name__} (model type {hf.config.model_type!r})"


def stack_config(hf: PreTrainedModel) -> PreTrainedConfig:
    """Return the part of a model's configuration that describes the stack which reads its input."""
    return images_config(hf.config) if hf.main_input_name == "pixel_values" else hf.config.get_text_config()


def images_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the part of a configuration that holds the images' size, which CLIP's nests."""
    return config if hasattr(config, "image_size") else getattr(config, "vision_config", config)


def nnsight_view(hf: PreTrainedModel, blocks: Blocks) -> tuple[NNsight, Any]:
    """Return nnsight's view of a model, and of its blocks."""
    for module in hf.modules():
        # A `forward` that was set after nnsight had wrapped the module has to be wrapped as well.
        if STATE in module.__dict__ and replaced_forward(module) is module.__dict__.get("forward") is not None:
            del module.__dict__[STATE]
        # A class's forward that was exchanged since would not run: nnsight kept the former one.
        elif is_outdated(module):
            del module.__dict__[STATE], module.__dict__["forward"]
    with warnings.catch_warnings():
        # BERT and ViT name a submodule `output`; nnsight warns that its own `output` wins, which is the one read here.
        warnings.simplefilter("ignore", UserWarning)
        tracer = NNsight(hf)
    return tracer, attrgetter(blocks.path)(tracer)


class StopPassError(Exception):
    """End a pass after the last block that is wanted."""


@contextmanager
def _observing(blocks: Blocks, count: int | None = None) -> Generator[tuple[list[tuple], Callable[[], int | None]]]:
    """Record the calls of blocks, outside all hooks on them, and the running block; end a pass after `count` blocks."""
    calls: list[tuple[int, tuple, dict[str, Any], Any]] = []
    entered: list[tuple[int, tuple, dict[str, Any]]] = []

    def enter(number: int, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        entered.append((number, args, kwargs))

    def leave(_: nn.Module, __: tuple, ___: dict[str, Any], output: Any) -> None:
        calls.append((*entered.pop(), output))
        if calls[-1][0] + 1 == count:
            raise StopPassError

    with ExitStack() as hooks, suppress(StopPassError):
        for number, block in enumerate(blocks.modules):
            first = partial(enter, number)
            hooks.enter_context(block.register_forward_pre_hook(first, prepend=True, with_kwargs=True))
            hooks.enter_context(block.register_forward_hook(leave, with_kwargs=True))
        yield calls, lambda: entered[-1][0] if entered else None


@torch.no_grad()
def passed(hf: PreTrainedModel, blocks: Blocks, inputs: dict[str, Tensor], count: int | None = None) -> list[BlockCall]:
    """Run a model once, without nnsight, and return the calls of its blocks, or of the first `count`."""
    with recording() as keys_values, _observing(blocks, count) as (seen, running), RecordedChoices(running) as noting:
        hf(**without_cache(hf, inputs))
    _refuse_repeated(hf, seen)
    found = {number: call for number, *call in seen}
    if idle := [number for number in range(count or len(blocks)) if number not in found]:
        raise UnsupportedModelError(
            f"block {idle[0] + 1} of the {len(blocks)} in {blocks.path!r} of {family_of(hf)} does not run when the "
            "model does; a list of blocks that all run is needed"
        )
    return _calls(hf, blocks, found, noting.chosen, keys_values)


def first_row(hf: PreTrainedModel, blocks: Blocks, ids: Tensor, stream: Tensor) -> int:
    """Return the row of a stream that belongs to the first token, where a model adds rows of its own (padding)."""
    if (more := stream.shape[1] - ids.shape[1]) == 0:
        return 0
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % stack_config(hf).vocab_size
    other = passed(hf, blocks, {hf.main_input_name: changed}, count=1)[0].input
    same = other.shape == stream.shape
    rows = (other != stream.to(other)).any(dim=-1)[0].nonzero().flatten().tolist() if same else []
    # Positions may be counted from the first id that is no padding, so that rows after this one may change too.
    if more < 0 or not rows or rows[0] > more:
        raise UnsupportedModelError(
            f"the stream of {family_of(hf)} has {stream.shape[1]} rows for {ids.shape[1]} tokens, and it does not show "
            "which row belongs to which token; a model whose stream has a row for every token can be measured"
        )
    return rows[0]


def _refuse_repeated(hf: PreTrainedModel, seen: Sequence[tuple]) -> None:
    """Refuse a model that calls a block more than once in a pass."""
    for number, times in Counter(number for number, *_ in seen).items():
        if times > 1:
            raise UnsupportedModelError(
                f"block {number + 1} of {family_of(hf)} is called {times} times in one pass; only blocks that are "
                "called once, in order, can be measured"
            )


@torch.no_grad()
def record(hf: PreTrainedModel, blocks: Blocks, inputs: dict[str, Tensor], count: int | None = None) -> list[BlockCall]:
    """Run a model once, in one nnsight trace, and record the calls of its blocks, or of the first `count`."""
    for block in blocks.modules:
        refuse_on_backward(block)
    modules = list(blocks.modules)[:count]
    # On a block itself nnsight reads between users' hooks; these blocks' calls are taken from outside the hooks.
    hooked = {number for number, block in enumerate(modules) if block._forward_hooks or block._forward_pre_hooks}
    with recording() as keys_values, _observing(blocks) as (seen, running):
        tracer, envoys = nnsight_view(hf, blocks)
        with RecordedChoices(running) if blocks.choosing else nullcontext() as noting:
            with tracer.trace(**without_cache(hf, inputs)) as run:
                recorded = list().save()
                for envoy in list(envoys)[:count]:
                    recorded.append((envoy.inputs, envoy.output))
                # The remainder, such as logits of a whole vocabulary, would take a third of a short prompt's time.
                if len(modules) - 1 not in hooked:
                    run.stop()
    _refuse_repeated(hf, seen)
    found = {number: (*inside, output) for number, (inside, output) in enumerate(recorded)}
    found |= {number: outside for number, *outside in seen if number in hooked}
    # nnsight keeps these variables, with every layer's keys and values, in a cycle until the next garbage collection.
    recorded.clear()
    calls = _calls(hf, blocks, found, noting.chosen if noting else {}, keys_values)
    keys_values.clear()
    return calls


def without_cache(hf: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Add `use_cache=False` to a model's inputs, where it has a cache."""
    # Replayed with a filled cache a block attends to every token twice, and its Jacobian is silently wrong.
    known = "use_cache" in inspect.signature(hf.forward).parameters or hasattr(hf.config, "use_cache")
    return {**inputs, "use_cache": False} if known else inputs


def _calls(
    hf: PreTrainedModel,
    blocks: Blocks,
    found: Mapping[int, Sequence[Any]],
    chosen: Mapping[int, list[Tensor]],
    keys_values: dict[nn.Module, KeysValues],
) -> list[BlockCall]:
    """Build block calls from recorded inputs and outputs, and check that each block reads the last one's output."""
    calls = []
    for number, (args, kwargs, output) in sorted(found.items()):
        call = block_call(blocks.modules[number], args, kwargs, output, keys_values)
        calls.append(replace(call, config=hf.config, chosen=tuple(chosen.get(number, ()))))
    if len({weight.device for weight in blocks.modules.parameters()}) > 1:
        calls = [call.on(next(call.block.parameters()).device) for call in calls]
    for number, (before, call) in enumerate(pairwise(calls), start=2):
        # A NaN is refused by another check, whose message names its source.
        if not torch.equal(*(state.nan_to_num() for state in (before.output.to(call.input), call.input))):
            raise UnsupportedModelError(
                f"block {number} of {family_of(hf)} does not read what block {number - 1} wrote"
            )
    return calls
