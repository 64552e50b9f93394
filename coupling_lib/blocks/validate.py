"""What a model must satisfy before it is measured, tested once, at load.

The definitions of the paper need blocks that add to one residual stream, and a Jacobian taken at one token needs the
other tokens to enter as constants. Neither is taken on trust from a family's name. Weights that are no numbers are said
to be that, before they show as something else: a NaN differs from itself, so a model that holds one seems to answer
differently each time it is asked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks import attention, offload, postnorm, precision
from coupling_lib.blocks.blockmap import choose_route, token_map
from coupling_lib.blocks.record import BlockCall, Blocks, block_call, family_of, find_blocks, random_input, record
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError

# Relative error between two ways to compute the same derivative in float32 or wider.
_TOLERANCE = 1e-3
# Of the identity's: a derivative below it, of tokens that hardly meet or do not, is compared with this instead.
_HARDLY = 1e-3


def validate(hf: PreTrainedModel, name: str = "") -> Blocks:
    """Find a model's blocks and refuse the model unless they behave as the definitions need."""
    # With X^l = X^{l-1} + f^l(X^{l-1}): every block is called once on a stream of shape `(1, n, d)` and returns one
    # of the same shape; each block reads exactly what the one before it wrote; two runs agree bit for bit; and
    # replaying a block on its own gives what it gave inside the model, so that output minus input is the residual
    # branch f^l and a function of the stream alone. Then the route to its Jacobian is chosen, and one random row and
    # one random column of a block's Jacobian, at a token that is not the last, are compared with those of the
    # whole sequence. A block that normalises its stream instead of adding to it is noted, not refused.
    #
    # What the weights decide (whether states are finite, whether a block reads what the last one wrote) is looked at in
    # every block, what the code decides in the first, the middle and the last of each kind. Blocks on disk and
    # quantised ones take long to read, so that only these few are run more than once. Of blocks on disk no others are
    # read at all: the model runs up to the first of its last kind, and the others of a kind are called as that was.
    # What the weights decide is looked at in every trace too, and a block that is differentiated is replayed again.
    family = family_of(hf)
    attention.use(hf)
    blocks = find_blocks(hf)
    kinds = _kinds(blocks)  # before a trace, which puts a `forward` of its own into every module
    inputs = {hf.main_input_name: random_input(hf, torch.Generator().manual_seed(0), n_tokens=7)}
    on_disk = offload.is_offloaded(blocks.modules)
    slow = on_disk or precision.is_quantised(blocks.modules)
    count = 1 + max(members[0] for members in kinds) if on_disk else len(blocks)
    calls = dict(enumerate(record(hf, blocks, inputs, count)))
    _check_finite(hf, blocks, calls, name)
    for number, again in enumerate([] if slow else record(hf, blocks, inputs)):
        _check_replay(calls[number], blocks.modules[number], number, family, again.output)
    dtype, looked = precision.arithmetic(hf), {}

    def look(number: int, like: int) -> _Looked:
        """Put a block to the test; `like` is one of its kind that the model ran."""
        module = _at_hand(blocks.modules[number])
        call = calls.get(number) or _called(blocks.modules[number], module, calls[like])
        if slow:
            _check_finite(hf, blocks, {number: call}, name)
            _check_replay(call, module, number, family)
        return _looked_at(call, module, number, dtype, family)

    for members in kinds:
        found = {number: look(number, members[0]) for number in _of_a_kind(members)}
        if len(set(found.values())) == 1:
            found = dict.fromkeys(members, next(iter(found.values())))
        # Those of a kind that is not of one mind, one by one.
        looked |= found | {number: look(number, members[0]) for number in members if number not in found}
    in_order = [looked[number] for number in range(len(blocks))]
    post_norm = {number: each.norms for number, each in enumerate(in_order) if each.norms is not None}
    return replace(blocks, routes=tuple(each.route for each in in_order), post_norm=post_norm)


@torch.no_grad()
def _called(block: nn.Module, module: nn.Module, call: BlockCall) -> BlockCall:
    """Call a block, by its copy at hand, as the model called another of its kind."""
    with attention.recording() as keys_values:
        output = call.replay(module, call.input)
    called = block_call(module, (), {call.stream: call.input, **call.arguments}, output, keys_values)
    return replace(called, block=block, config=call.config)


@torch.no_grad()
def _check_replay(call: BlockCall, block: nn.Module, number: int, family: str, again: Tensor | None = None) -> None:
    """Refuse a block that gives two answers, in the model and `again` or on its own, or not on its own what it gave."""
    replayed = call.replay(block, call.input)
    pair = (replayed, call.replay(block, call.input)) if again is None else (call.output, again)
    said = f"block {number + 1} of {family}"
    if not torch.equal(*pair):
        raise UnsupportedModelError(f"{said} gives two answers in two runs; is it in training mode?")
    if not torch.allclose(replayed, call.output, rtol=1e-3, atol=1e-4):
        raise UnsupportedModelError(f"{said} depends on more than its residual stream")


def _at_hand(block: nn.Module) -> nn.Module:
    """Read a block from disk once for all that it is asked; one that is in memory is taken as it is."""
    if not offload.is_offloaded(block):
        return block
    stored = {weight.dtype for weight in block.parameters() if weight.is_floating_point()}
    return precision.dense_copy(block, stored.pop()) if len(stored) == 1 else block


class _Looked(NamedTuple):
    """What was found out about a block: its route, and the norms of its stream; None if it adds to its stream."""

    route: str
    norms: tuple[str, ...] | None


def _looked_at(call: BlockCall, module: nn.Module, number: int, dtype: torch.dtype, family: str) -> _Looked:
    """Choose a block's route, put it to the test, and look for norms of its stream."""
    route, wide = choose_route(call, module), precision.dense_copy(module, dtype)
    # A recurrence may be coded twice, for one token and for many, and not quite alike; the model ran that for many.
    route = route if route != "state" or _steps_agree(call, wide, dtype) else "sequence"
    try:
        error = route_error(call, wide, route, dtype)
    except RuntimeError as problem:
        raise UnsupportedModelError(
            f"block {number + 1} of {family} cannot be differentiated by the {route} route "
            f"({str(problem).splitlines()[0]}); this family cannot be measured by it, please report it"
        ) from problem
    if not error <= _TOLERANCE:
        raise UnsupportedModelError(
            f"block {number + 1} of {family}: the {route} route gives a Jacobian that differs by {error:.1e} from "
            "that of the whole sequence; this family cannot be measured by it, please report it"
        )
    return _Looked(route, postnorm.stream_norms(call, wide) if postnorm.is_post_norm(call, wide) else None)


def _steps_agree(call: BlockCall, block: nn.Module, dtype: torch.dtype) -> bool:
    """Tell whether a block that goes on from a state has the Jacobian of the whole sequence."""
    try:
        return route_error(call, block, "state", dtype) <= _TOLERANCE
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError):
        return False


def _kinds(blocks: Blocks) -> list[list[int]]:
    """Sort blocks by kind: the same modules with weights of the same shapes, the same settings, the same hooks."""
    kinds: dict[tuple, list[int]] = {}
    for number, block in enumerate(blocks.modules):
        kinds.setdefault(tuple(_described(name, part) for name, part in block.named_modules()), []).append(number)
    return list(kinds.values())


def _described(name: str, part: nn.Module) -> tuple:
    """Describe what a module computes, but for its weights."""
    shapes = tuple((key, tuple(weight.shape)) for key, weight in part.named_parameters(recurse=False))
    settings = tuple(
        (key, repr(value))
        for key, value in vars(part).items()
        # What says which block it is tells no two blocks apart.
        if isinstance(value, str | int | float | tuple | type(None)) and not re.search(r"(idx|index|_id|number)$", key)
    )
    hooks = len(part._forward_hooks), len(part._forward_pre_hooks), "forward" in vars(part)
    return name, type(part), shapes, settings, hooks


def _of_a_kind(members: Sequence[int]) -> list[int]:
    """Choose the blocks that stand for their kind: the first, the middle and the last."""
    return sorted({members[0], members[len(members) // 2], members[-1]})


def route_error(call: BlockCall, module: nn.Module, route: str, dtype: torch.dtype) -> float:
    """Compare a route with the whole sequence on one random row and column of a block's Jacobian."""
    block = precision.dense_copy(module, dtype)
    generator = torch.Generator().manual_seed(0)
    n, d = call.input.shape[1:]
    errors = []
    for positions in ([n // 2], [n // 4, n - 2] if n > 2 else [0]):
        index = torch.tensor([positions], device=call.input.device)
        u, v = torch.randn(2, d, generator=generator, dtype=torch.float64).to(call.input.device, dtype)
        wanted, found = (_row_and_column(call, block, way, index, u, v) for way in ("sequence", route))
        least = _HARDLY * float(d) ** 0.5
        errors += [(a - b).norm() / b.norm().clamp_min(least) for a, b in zip(found, wanted, strict=True)]
    return float(torch.stack(errors).max())  # NaN if one is, unlike Python's `max`


def _row_and_column(
    call: BlockCall, block: nn.Module, route: str, positions: Tensor, u: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute u^T J and J v of the whole block (skip path included) by reverse mode."""
    u = u.clone().requires_grad_(True)
    states = call.input[0][positions].to(u.dtype)
    x = states[0, 0].clone().requires_grad_(True)
    with torch.enable_grad():
        states = torch.cat([x[None, None], states[:, 1:]], dim=1)
        y = token_map(call, block, route, positions)(states)[0, -1]
        (row,) = torch.autograd.grad(y, x, u, create_graph=True, materialize_grads=True)
        (column,) = torch.autograd.grad(row, u, v, materialize_grads=True)
    return row.detach(), column


def _check_finite(hf: PreTrainedModel, blocks: Blocks, calls: Mapping[int, BlockCall], name: str) -> None:
    """Refuse a model whose blocks gave values that are not finite, and name the weights that do it."""
    # Weights are read only after that was seen, so a sound model costs one look at its states.
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
    """Give all weights as plain numbers by their names; blocks that are quantised or on disk one at a time."""
    within = tuple(f"{blocks.path}.{number}." for number in range(len(blocks)))
    for name, weight in hf.named_parameters():
        if not name.startswith(within) and weight.is_floating_point() and weight.device.type != "meta":
            yield name, weight
    for prefix, module in zip(within, blocks.modules, strict=True):
        for name, weight in precision.dense_copy(module, precision.arithmetic(hf)).named_parameters():
            yield prefix + name, weight
