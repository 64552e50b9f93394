"""Evaluation of one block with a graph at a few tokens, and the checks before and after it.

What is differentiated is the map that the model evaluated: with what stood on the block when it was traced, and to
within rounding of what it gave there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from coupling_lib.blocks import attention, storage
from coupling_lib.blocks.agreement import replay_error, route_agrees
from coupling_lib.blocks.blockmap import state_size, token_map, without_norms
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.makeup import makeups, modifications, where
from coupling_lib.blocks.record import Blocks
from coupling_lib.blocks.rules import all_rules
from coupling_lib.blocks.state import Changes
from coupling_lib.errors import UntrustworthyResultError, VanishingJacobianError
from coupling_lib.models.model import Model
from coupling_lib.modes import differentiating, exclusive, refuse_autocast

P, T = ParamSpec("P"), TypeVar("T")
# An int8 block rounds its activations to 8 bits in the model and not here, relative to what it adds to a token.
_INT8 = 1e-1
# A Jacobian of two tokens so small, times the rounding of a number, may be nothing but rounding.
_TINY = 1e4
# So many times what changes where nothing but rounding does bounds an error, part of which may be the same each time; a
# Jacobian is lost where its error may be this share of it.
_BOUND, _LOST = 16, 0.5
# What a cotangent is multiplied with, so that products of it round otherwise.
_SCALES = (1.1, 0.9)


class Traced(Protocol):
    """What a Jacobian needs of a trace: `tracing.Trace`, which says what each is, makes Jacobians itself."""

    model: Model
    calls: list[BlockCall]
    blocks: Blocks
    changes: Changes
    first: int
    routes: tuple[str, ...]
    n_blocks: int
    n_tokens: int
    d_model: int
    device: torch.device
    dtype: torch.dtype
    final_norm: nn.Module
    _agrees: dict[tuple[int, tuple[int, int]], bool]

    def block(self, index: int) -> nn.Module:
        """Return a block as a map on which it can be differentiated."""

    def check_boundary(self, boundary: str) -> None:
        """Refuse a boundary that is unknown, or that this model's blocks do not have."""


def _as_traced(function: Callable[Concatenate[Traced, P], T]) -> Callable[Concatenate[Traced, P], T]:
    """Run a function in one thread at a time, with the model as its trace had it."""

    @exclusive
    @functools.wraps(function)
    def run(trace: Traced, *args: P.args, **kwargs: P.kwargs) -> T:
        with trace.changes.applied():
            return function(trace, *args, **kwargs)

    return run


@_as_traced
def evaluate(
    trace: Traced,
    block: int,
    pairs: Sequence[tuple[int, int]],
    boundary: str,
    *,
    wide: bool = False,
    shaken: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Evaluate a block with a graph, in float64 if `wide`: the states varied at $t_1$ and read at $t_2$, `(T, d)`."""
    # `shaken` is the seed of a change of all states by their last digit, after which everything rounds otherwise.
    refuse_autocast()
    _check_modifications(trace, block)
    call, dtype = trace.calls[block], torch.float64 if wide else trace.dtype
    if shaken is not None:
        call = replace(call, input=_shaken(call.input.to(dtype), shaken))
    module = storage.dense_copy(trace.model.blocks.modules[block], dtype) if wide else trace.block(block)
    start, end = trace.first + torch.tensor(pairs, device=call.input.device).T
    one = pairs[0][0] == pairs[0][1]
    positions = start[:, None] if one else torch.stack([start, end], dim=1)
    states = call.input[0][positions].to(dtype)
    with differentiating(), attention.under(module, trace.blocks.attention), all_rules(module):
        x = states[:, 0].clone().requires_grad_(True)
        few = torch.cat([x[:, None], states[:, 1:]], dim=1)
        map_ = token_map(call, module, _route(trace, block, pairs), positions)
        y = map_(few)[:, -1]
        _check_replay(trace, block, pairs, y.detach(), end)
        if boundary == "branch" and (norms := trace.blocks.post_norm.get(block)):
            with without_norms(module, norms):
                y = map_(few)[:, -1]
        if boundary == "hidden_states" and block == trace.n_blocks - 1:
            y = trace.final_norm(y.to(trace.dtype)).to(dtype)
        return x, y


def _check_replay(trace: Traced, block: int, pairs: Sequence[tuple[int, int]], replayed: Tensor, end: Tensor) -> None:
    """Refuse to differentiate a map that is not the one the model evaluated."""
    call = trace.calls[block]
    recorded, stream = call.output[0][end], call.input[0][end]
    tolerance = _INT8 if trace.model.precision == "int8" else None
    for number, (found, y, x) in enumerate(zip(replayed, recorded, stream, strict=True)):
        if not (over := replay_error(call, found, y, x, tolerance)) <= 1:
            away = float((found - y.to(found.dtype)).norm() / (y - x).to(found.dtype).norm())
            raise UntrustworthyResultError(
                f"{position_name(trace, block, pairs[number])}: replayed on its own, the block differs by {away:.1e} "
                f"of what it adds to its stream from what it gave inside the model, {over:.1g} times what is accepted"
            )


def _check_modifications(trace: Traced, block: int) -> None:
    """Refuse a block on which something else stands than when it was traced."""
    module = trace.model.blocks.modules[block]
    if modifications(module) != trace.blocks.modifications[block]:
        raise UntrustworthyResultError(
            f"{trace.model.name!r}, block {block}: a hook or a forward of your own was put on or taken off since the "
            f"trace ({where(module)} carries one); trace again"
        )
    if makeups([module])[0] != trace.blocks.makeup[block]:
        raise UntrustworthyResultError(
            f"{trace.model.name!r}, block {block}: one of its modules, their settings or the functions that they call "
            "was changed since the trace; trace again"
        )


@_as_traced
def _route(trace: Traced, block: int, pairs: Sequence[tuple[int, int]]) -> str:
    """Return the route by which a block is evaluated at some pairs."""
    # A causal block does not let an earlier token see a later one; only the whole sequence can say so.
    route = trace.routes[block]
    if route != "attention" and any(start > end for start, end in pairs):
        return "sequence"
    if route == "sequence" or not trace.blocks.modifications[block]:
        return route
    # A hook may do one thing at one position and another at the next: each pair is compared with the whole sequence.
    for pair in pairs:
        if (block, pair) not in trace._agrees:
            call, name = trace.calls[block], trace.blocks.attention
            rows = (trace.first + pair[0], trace.first + pair[1])
            trace._agrees[block, pair] = route_agrees(call, trace.block(block), route, name, rows)
    return route if all(trace._agrees[block, pair] for pair in pairs) else "sequence"


@_as_traced
def n_evaluated(trace: Traced, block: int, pairs: Sequence[tuple[int, int]]) -> int:
    """Count the tokens whose intermediate values a cotangent meets, a state as so many tokens as are its size."""
    route = _route(trace, block, pairs)
    if route == "state":
        # A cotangent meets the state as a whole, some four times; a state may be a hundred times a stream.
        states = state_size(trace.calls[block], trace.block(block)) // (4 * trace.d_model)
        return (1 + states) * (1 + max(end - start for start, end in pairs))
    return trace.calls[block].input.shape[1] if route == "sequence" else len(pairs)


def random_cotangent(trace: Traced) -> Tensor:
    """Draw a cotangent `(d,)`, the same each time."""
    return torch.randn(trace.d_model, generator=torch.Generator().manual_seed(0))


def _shaken(x: Tensor, seed: int) -> Tensor:
    """Change every number by its last digit, up or down."""
    signs = torch.randint(2, x.shape, generator=torch.Generator().manual_seed(seed)).to(x) * 2 - 1
    return x * (1 + 2 * torch.finfo(x.dtype).eps * signs)


@_as_traced
def rounding_error(trace: Traced, block: int, pair: tuple[int, int], boundary: str) -> tuple[float, float]:
    """Bound what rounding makes of a Jacobian, and estimate its length, both in the norm of Frobenius."""
    # By its product with a normal cotangent, which is as long on average: how far that moves where states change by
    # their last digit, and in float64. A small Jacobian that is a product of small numbers hardly moves; one that is
    # left of a large sum does.
    u = random_cotangent(trace).double()

    def product(scale: float = 1.0, **how: Any) -> Tensor:
        x, y = evaluate(trace, block, [pair], boundary, **how)
        cotangent = (scale * u).to(y)
        (found,) = torch.autograd.grad(y, x, cotangent[None], allow_unused=True, materialize_grads=True)
        return (found[0] - cotangent * (pair[0] == pair[1])).double() / scale

    with differentiating():
        found = product()
        others = [product(scale, shaken=seed) for seed, scale in enumerate(_SCALES)]
        if trace.dtype != torch.float64:
            others.append(product(wide=True))
    limits, norm = torch.finfo(trace.dtype), float(found.norm())
    # What is smaller than the smallest number with all its digits has lost some of them.
    least = limits.eps * norm + limits.tiny * trace.d_model
    return _BOUND * max(float((other - found).norm()) for other in others) + least, norm


def refuse_rounding(
    trace: Traced, block: int, pair: tuple[int, int], boundary: str, u: Tensor, product: Tensor
) -> None:
    """Refuse a Jacobian between two tokens that is nothing but rounding, told by its product with a cotangent."""
    small = _TINY * torch.finfo(trace.dtype).eps * float(u.norm())
    if trace.dtype == torch.float64 or float(product.double().norm()) > small:
        return
    error, norm = rounding_error(trace, block, pair, boundary)
    if not error <= _LOST * norm:
        raise VanishingJacobianError(
            f"the Jacobian of {position_name(trace, block, pair)} is lost in rounding: it is {norm:.0e} long, and the "
            f"bound on its error in {trace.dtype} is {error:.0e}; take a token nearer, or wrap the model in float64"
        )


def zero_jacobian(trace: Traced, block: int, pair: tuple[int, int], what: str = "zero") -> VanishingJacobianError:
    """Return the error for a Jacobian that is zero, or as good as that: why it is, and what to do."""
    (start, end), named = pair, f"the Jacobian of {position_name(trace, block, pair)} is {what}"
    if start > end:
        return VanishingJacobianError(
            f"{named}: position {end} does not attend to position {start}, a later one; in a causal model that is "
            f"so by construction: exchange the two, token_in={end} and token_out={start}"
        )
    far = "a token outside of its window, or a masked one: take one nearer"
    why = f"position {end} does not attend to position {start} in this block ({far}), or " if start < end else ""
    return VanishingJacobianError(f"{named}: {why}its weights dropped out of differentiation")


def position_name(trace: Traced, block: int, pair: tuple[int, int]) -> str:
    """Name a block and a pair of tokens, from 0 as in code."""
    return f"{trace.model.name!r}, block {block}, token {pair[0]} -> {pair[1]}"
