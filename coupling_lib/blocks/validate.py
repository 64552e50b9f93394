"""Validation of a model at load, before it is measured.

The definitions of the paper need blocks that add to one residual stream, and a Jacobian taken at one token needs the
other tokens to enter as constants. Neither is trusted from a family's name. NaN weights are named before they show as
another fault: a NaN differs from itself, so that a model seems to answer differently each time.
"""

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks import attention, attention_choice, central_differences, state, storage
from coupling_lib.blocks.agreement import first_line, replay_error
from coupling_lib.blocks.call import BlockCall, RecordedChoices
from coupling_lib.blocks.find import find_blocks
from coupling_lib.blocks.makeup import makeups, modifications, modified, replaced_forward, settings
from coupling_lib.blocks.model_config import random_input, shortened_lengths
from coupling_lib.blocks.postnorm import stream_behaviour
from coupling_lib.blocks.record import Blocks, family_of, passed, record
from coupling_lib.blocks.route_choice import AnotherModelError, Validated, validate_route
from coupling_lib.errors import CouplingError, ModelUnavailableError, UnsupportedModelError


def validate(hf: PreTrainedModel, name: str = "") -> Blocks:
    """Return a model's blocks and their properties, or refuse the model if it violates the definitions' assumptions."""
    # Every block is called once on a stream `(1, n, d)` and returns one of the same shape; each reads exactly the last
    # one's output; two runs agree bit for bit; and a block replayed on its own returns the same as inside the model.
    # Then the route to its Jacobian is compared with the unmodified model (`agreement`), and one block of each kind
    # with central differences. Where blocks compute something else with the registered attention than with the model's
    # original one, they keep the latter.
    blocks = find_blocks(hf)
    with shortened_lengths(hf), state.restored(hf) as changes:
        probe = _Probe(hf, name, blocks)
        for each in dict.fromkeys((attention.NAME, probe.default)):
            attention_choice.use(hf, each)
            try:
                found = probe.validated()
                break
            except AnotherModelError as error:
                another = error
        else:
            raise another
    with changes.applied():
        return replace(found, makeup=makeups(found.modules))  # with windows at full length


class _Probe:
    """Runs of a model on a few random tokens, with its original attention and another."""

    # Properties that depend on weights (finite states, each block reads the last one's output) are tested in all blocks
    # and again in every trace; those that depend on code in the first, the middle and the last block of each kind. Of
    # quantised blocks and those on disk, which take long to read, only these few are run more than once. Of blocks on
    # disk no others are read: the model runs up to the first of its last kind, whose call serves for the later ones.

    def __init__(self, hf: PreTrainedModel, name: str, blocks: Blocks):
        self.hf, self.name, self.blocks, self.family = hf, name, blocks, family_of(hf)
        self.kinds = _kinds(blocks)  # before a trace, which puts a `forward` of its own into every module
        self.inputs = {hf.main_input_name: random_input(hf, torch.Generator().manual_seed(0), n_tokens=7)}
        self.default, self.dtype = attention_choice.default(hf), storage.arithmetic(hf)
        self.on_disk = storage.on_disk(blocks.modules)
        self.slow = self.on_disk or storage.in_few_bits(blocks.modules)
        self.firsts = 1 + max(members[0] for members in self.kinds)
        attention_choice.use(hf, self.default)
        try:
            reference = passed(hf, blocks, self.inputs, self.firsts if self.slow else None)
        except CouplingError:
            raise
        except Exception as error:
            raise UnsupportedModelError(
                f"{self.family} does not run on 7 random tokens with the attention that it came with, {self.default!r} "
                f"({first_line(error)}); {_next_step(hf, error)}"
            ) from error
        self.reference = dict(enumerate(reference))

    def validated(self) -> Blocks:
        """Validate the blocks with the current attention."""
        hf, in_force = self.hf, attention.current(self.hf)
        choosing = any(call.chosen for call in self.reference.values())
        blocks = replace(self.blocks, attention=in_force, choosing=choosing)
        self.calls = dict(enumerate(record(hf, blocks, self.inputs, self.firsts if self.on_disk else len(blocks))))
        _check_finite(hf, blocks, self.calls, self.name)
        if not self.slow:
            again = self.reference.values() if in_force == self.default else passed(hf, blocks, self.inputs)
            for number, other in enumerate(again):
                _check_replay(self.calls[number], blocks.modules[number], number, self.family, other.output)
        every: dict[int, Validated] = {}
        for members in self.kinds:
            few = {members[0], members[len(members) // 2], members[-1]}
            found = {number: self._validate(number, members[0]) for number in sorted(few)}
            # If the few of a kind differ, the others are validated one by one.
            alike = found[members[0]] if len(set(found.values())) == 1 else None
            for number in (number for number in members if number not in few):
                found[number] = self._alike(alike, number) if alike else self._validate(number, members[0])
            every |= found
        return _updated(blocks, every)

    def _alike(self, one: Validated, number: int) -> Validated:
        """Return the result of a block's kind for a block, with its own scale of the stream, which is a weight."""
        if self.slow or one.norms is not None:
            return one
        block = self.blocks.modules[number]
        if any(weight.dtype == torch.float16 for weight in block.parameters()):  # a large stream overflows it
            block = storage.dense_copy(block, self.dtype)
        return one._replace(scale=stream_behaviour(self.calls[number], block).share)

    def _validate(self, number: int, like: int) -> Validated:
        """Validate a block; `like` is a block of its kind whose call was recorded."""
        block = self.blocks.modules[number]
        _refuse_lost_forward(block, self.dtype)
        module = _in_memory(block)
        call = self.calls.get(number) or _call_alike(block, module, self.calls[like])
        if self.slow:
            _check_finite(self.hf, self.blocks, {number: call}, self.name)
            _check_replay(call, module, number, self.family)
        reference = replace(self.reference.get(number, self.reference[like]), block=block, input=call.input)
        # The original call's choices were made at states that differ by rounding, or by another block.
        if len(reference.chosen) == len(call.chosen):
            reference = replace(reference, chosen=call.chosen)
        label, dense = f"block {number + 1} of {self.family}", storage.dense_copy(module, self.dtype)
        found = validate_route(call, reference, dense, label, self.dtype, self.default)
        if number == like:
            central_differences.check(reference, dense, self.default, label)
        return found


def _updated(blocks: Blocks, found: Mapping[int, Validated]) -> Blocks:
    """Merge the results of some blocks into the properties of all."""
    routes = [*blocks.routes] or [""] * len(blocks)
    norms, scales = ({n: x for n, x in old.items() if n not in found} for old in (blocks.post_norm, blocks.scales))
    for number, one in sorted(found.items()):
        routes[number] = one.route
        if one.norms is not None:
            norms[number] = one.norms
        if one.scale != 1:
            scales[number] = one.scale
    carried = tuple(map(modifications, blocks.modules))
    return replace(blocks, routes=tuple(routes), post_norm=norms, scales=scales, modifications=carried)


def _next_step(hf: PreTrainedModel, error: Exception) -> str:
    """Return advice for a model that does not run, as text."""
    if any(functions for _, _, *functions in modifications(hf)):
        return f"{modified(hf)} carries a hook or a forward of your own: mend it or take it off"
    if any(part._compiled_call_impl is not None or "_orig_mod" in part._modules for part in hf.modules()):
        return "wrap the model before it is compiled"
    if storage.in_few_bits(hf):
        return "if a layer does not run in few bits, pass precision='bfloat16'"
    if any("_hf_hook" in vars(part) for part in hf.modules()):
        return "load it by cl.load_model(..., memory=...), which leaves its blocks on disk, in the place of device_map"
    parts = [f"model.{name}" for name, part in hf.named_children() if isinstance(part, PreTrainedModel)]
    if len(parts) > 1 and isinstance(error, AttributeError | TypeError):
        return f"it reads more than {hf.main_input_name}: wrap one of its parts, {' or '.join(parts)}"
    if isinstance(error, ImportError) or attention_choice.default(hf) != "eager":
        return "if that attention is not installed here, load the model with attn_implementation='eager'"
    return f"see that it runs on {hf.main_input_name} alone"


# Blocks that were compared with central differences after a change, with their makeup at that time.
_rechecked: weakref.WeakKeyDictionary[nn.Module, tuple] = weakref.WeakKeyDictionary()


def recheck_changed_blocks(hf: PreTrainedModel, blocks: Blocks, calls: Sequence[BlockCall]) -> Blocks:
    """Validate again, at the states of a trace, the blocks whose makeup changed since load."""
    now = list(zip(map(modifications, blocks.modules), makeups(blocks.modules), strict=True))
    before = list(zip(blocks.modifications, blocks.makeup, strict=True))
    changed = [number for number, (found, loaded) in enumerate(zip(now, before, strict=True)) if found != loaded]
    firsts = {next((each for each in members if each in changed), None) for members in _kinds(blocks)}
    found, dtype = {}, storage.arithmetic(hf)
    for number in changed:
        call, label = calls[number], f"block {number + 1} of {family_of(hf)},"
        _refuse_lost_forward(call.block, dtype)
        if now[number][0] == before[number][0]:
            label += " a module, setting or function of which was changed since,"
        else:
            label += f" on which {modified(call.block)} carries a hook or a forward,"
        dense = storage.dense_copy(_in_memory(call.block), dtype)
        found[number] = validate_route(call, call, dense, label, dtype, blocks.attention)
        if number in firsts and _rechecked.get(call.block) != now[number]:
            central_differences.check(call, dense, blocks.attention, label)
            _rechecked[call.block] = now[number]
    return replace(_updated(blocks, found), makeup=tuple(made for _, made in now))


def _refuse_lost_forward(block: nn.Module, dtype: torch.dtype) -> None:
    """Refuse a `forward` set on a module of a block that is differentiated on a copy, which runs the class's."""
    copied = storage.on_disk(block) or storage.in_few_bits(block)
    if not copied and all(weight.dtype == dtype for weight in block.parameters()):
        return
    for name, part in block.named_modules():
        if replaced_forward(part) is not None:
            raise UnsupportedModelError(
                f"module {name or type(block).__name__!r} has a forward of your own, which a copy of its block in "
                f"{dtype} would run without; load the model in float32, or put a hook in its place"
            )


@torch.no_grad()
def _call_alike(block: nn.Module, module: nn.Module, call: BlockCall) -> BlockCall:
    """Call a block, or its copy in memory, with the recorded call of another block of its kind."""
    with attention.recording() as keys_values, RecordedChoices(lambda: 0) as noting:
        output = replace(call, chosen=()).replay(module, call.input)
    recorded = {name: keys_values[part] for name, part in module.named_modules() if part in keys_values}
    output, chosen = output.detach(), tuple(noting.chosen.get(0, ()))
    return replace(call, block=block, output=output, keys_values=recorded, chosen=chosen)


@torch.no_grad()
def _check_replay(call: BlockCall, block: nn.Module, number: int, family: str, again: Tensor | None = None) -> None:
    """Refuse a block whose two runs differ, or whose replay differs from its output inside the model."""
    replayed = call.replay(block, call.input)
    pair = (replayed, call.replay(block, call.input)) if again is None else (call.output, again)
    label = f"block {number + 1} of {family}"
    if not torch.equal(*pair):
        why = "is it in training mode, or does it write over its stream (x += ...)?"
        raise UnsupportedModelError(f"{label} gives two answers in two runs; {why}")
    if not replay_error(call, replayed, call.output) <= 1:
        raise UnsupportedModelError(f"{label} depends on more than its residual stream")


def _in_memory(block: nn.Module) -> nn.Module:
    """Return a block with its weights read from disk, once for all checks; one in memory unchanged."""
    if not storage.on_disk(block):
        return block
    stored = {weight.dtype for weight in block.parameters() if weight.is_floating_point()}
    return storage.dense_copy(block, stored.pop()) if len(stored) == 1 else block


def _kinds(blocks: Blocks) -> list[list[int]]:
    """Group blocks by kind: same modules, shapes of weights, settings and modifications."""
    # In modules of users a block's own number or function may decide what it computes: each of those is a kind.
    libraries = ("transformers.", "torch.", "peft.", "bitsandbytes.", "coupling_lib.")
    kinds: dict[tuple, list[int]] = {}
    for number, block in enumerate(blocks.modules):
        known = all(type(part).__module__.startswith(libraries) for part in block.modules())
        parts = (_described(name, part) for name, part in block.named_modules())
        described = (None if known else number, *parts, modifications(block))
        kinds.setdefault(described, []).append(number)
    return list(kinds.values())


def _described(name: str, part: nn.Module) -> tuple:
    """Describe a module's function, but for its weights and what identifies the block."""
    shapes = tuple((key, tuple(weight.shape)) for key, weight in part.named_parameters(recurse=False))
    kept = tuple(
        # Of a function that each block has for itself, its code.
        (key, getattr(getattr(value, "__func__", value), "__code__", type(value)) if callable(value) else repr(value))
        for key, value in settings(part)
        if not re.search(r"(idx|index|_id|number)$", key)
    )
    return name, type(part), shapes, kept


def _check_finite(hf: PreTrainedModel, blocks: Blocks, calls: Mapping[int, BlockCall], name: str) -> None:
    """Refuse a model with block outputs that are not finite, and name the weights at fault."""
    # Weights are read only after that was seen, so that a sound model costs one test of its states.
    bad = [number + 1 for number, call in calls.items() if not bool(call.output.isfinite().all())]
    if not bad:
        return
    name = name or type(hf).__name__
    wrong = [(place, weight) for place, weight in _weights(hf, blocks) if not bool(weight.isfinite().all())]
    if not wrong:
        raise UnsupportedModelError(
            f"model {name!r}: block {bad[0]} gives values that are not finite, and all weights are finite: they are "
            "too large for the number format; take precision='float32'"
        )
    place, weight = wrong[0]
    counts = {"NaN": int(weight.isnan().sum()), "infinite": int(weight.isinf().sum())}
    seen = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    others = f" (and {len(wrong) - 1} other tensors are not finite)" if len(wrong) > 1 else ""
    raise ModelUnavailableError(
        f"model {name!r}: weights {place} hold {seen} of {weight.numel():,} entries{others}; "
        "fetch it again or choose another revision"
    )


def _weights(hf: PreTrainedModel, blocks: Blocks) -> Iterator[tuple[str, Tensor]]:
    """Iterate over all weights as plain numbers, by name; blocks that are quantised or on disk one at a time."""
    within = tuple(f"{blocks.path}.{number}." for number in range(len(blocks)))
    for name, weight in hf.named_parameters():
        if not name.startswith(within) and weight.is_floating_point() and weight.device.type != "meta":
            yield name, weight
    for prefix, module in zip(within, blocks.modules, strict=True):
        for name, weight in storage.dense_copy(module, storage.arithmetic(hf)).named_parameters():
            yield prefix + name, weight
