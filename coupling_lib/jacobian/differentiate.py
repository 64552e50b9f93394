"""The record of a pass, and checked evaluation of one of its blocks with a graph at a few tokens.

The map differentiated is the one that the model evaluated: with the modifications of the block at the trace, and with
the same output to within rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from coupling_lib.blocks import attention, storage
from coupling_lib.blocks.agreement import accepted, replay_error, route_error
from coupling_lib.blocks.blockmap import state_size, token_map, without_norms
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.makeup import makeups, modifications, modified
from coupling_lib.blocks.record import Blocks
from coupling_lib.blocks.rules import all_rules
from coupling_lib.blocks.state import Changes, restored
from coupling_lib.errors import ParameterError, UnsupportedModelError, UntrustworthyResultError, VanishingJacobianError
from coupling_lib.models.model import Model
from coupling_lib.modes import differentiating, exclusive, refuse_autocast

BOUNDARIES = ("block", "hidden_states", "branch")
P, T = ParamSpec("P"), TypeVar("T")
# Tolerance of int8, relative to what a block adds to a token: activations are rounded to 8 bits in the model only.
_INT8 = 1e-1
# A Jacobian between two tokens may be all rounding if shorter than this many roundings; its error is bounded by this
# multiple of its change under a change of rounding, and it is lost where the bound exceeds this share of its length.
_TINY, _BOUND, _LOST = 1e4, 16, 0.5


@dataclass(frozen=True, eq=False)
class Traced:
    """The record of one forward pass, with the model's blocks; `tracing.Trace` documents each field."""

    model: Model
    inputs: dict[str, Tensor]
    calls: list[BlockCall]
    tokens: list[str] | None
    blocks: Blocks
    changes: Changes = field(default_factory=Changes, repr=False)
    first: int = 0
    last_token_warning: str = field(default="", repr=False)
    _copies: dict[int, nn.Module] = field(default_factory=dict, repr=False)
    _agrees: dict[tuple[int, tuple[int, int]], bool] = field(default_factory=dict, repr=False)

    @property
    def routes(self) -> tuple[str, ...]:
        """Route of every block; those of a hybrid model differ."""
        return self.blocks.routes

    @property
    def n_blocks(self) -> int:
        """Number of blocks L."""
        return len(self.calls)

    @property
    def n_tokens(self) -> int:
        """Number of token positions n: of the given ids, or of an image's patches and special tokens."""
        ids = self.inputs.get("input_ids")
        return (self.calls[-1].input if ids is None else ids).shape[1]

    @property
    def d_model(self) -> int:
        """Width d of the residual stream."""
        return self.calls[-1].input.shape[2]

    @property
    def device(self) -> torch.device:
        """Device of the last block's states."""
        return self.calls[-1].input.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype in which Jacobians are formed: float32 or float64."""
        return storage.arithmetic(self.model.hf)

    @property
    def _tokens(self) -> slice:
        return slice(self.first, self.first + self.n_tokens)

    def block(self, index: int) -> nn.Module:
        """Return a block, from 0, as a map with plain, wide weights, on which it can be differentiated."""
        # Only the last copy is kept: it takes as much memory as the block in float32.
        index %= self.n_blocks
        if index not in self._copies:
            self._copies.clear()
            self._copies[index] = storage.dense_copy(self.model.blocks.modules[index], self.dtype)
        return self._copies[index]

    @functools.cached_property
    @exclusive
    def final_norm(self) -> nn.Module:
        """Norm between the last block and the last of Hugging Face's `hidden_states`; the identity if none."""
        hf = self.model.hf
        with torch.no_grad(), restored(hf):
            wanted = hf(**self.inputs, output_hidden_states=True).hidden_states[-1].to(self.device)
        last = self.calls[-1].output
        if wanted.shape != last.shape:  # without rows that the model added
            last = last[:, self._tokens]
        if torch.equal(wanted, last):
            return nn.Identity()
        owner = hf.get_submodule(self.model.blocks.path.rpartition(".")[0])
        for name, child in owner.named_children():
            if "norm" in type(child).__name__.lower():
                place = next(child.parameters(), last).device  # may be another card than the last block's
                with torch.no_grad():
                    if torch.allclose(child(last.to(place)).to(self.device), wanted, rtol=1e-3, atol=1e-3):
                        return storage.dense_copy(owner.get_submodule(name), self.dtype, self.device)
        raise UnsupportedModelError(f"{type(hf).__name__} has no final norm that gives the last of its hidden_states")

    def check_boundary(self, boundary: str) -> None:
        """Refuse a boundary that is unknown, or that this model's blocks lack."""
        if boundary not in BOUNDARIES:
            raise ParameterError(f"boundary is {boundary!r}; it must be {', '.join(map(repr, BOUNDARIES))}")
        post_norm = self.blocks.post_norm
        if boundary == "branch" and not post_norm:
            raise ParameterError(
                f"boundary is 'branch', which is for post-norm blocks; those of {self.model.name} add to their stream, "
                "so that block minus identity is the branch: pass boundary='block'"
            )
        hidden = [number for number, norms in post_norm.items() if not norms]
        if boundary == "branch" and hidden:
            raise ParameterError(
                f"boundary is 'branch', and the norms in the stream of block {hidden[0]} of {self.model.name} were not "
                "found among its modules; boundary='block' measures it, with its trivial coupling"
            )


def _as_traced(function: Callable[Concatenate[Traced, P], T]) -> Callable[Concatenate[Traced, P], T]:
    """Run a function in one thread at a time, with the model in the state of its trace."""

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
    # `shaken` is the seed of a perturbation of all states in their last digit, which changes all rounding errors.
    refuse_autocast()
    _check_modifications(trace, block)
    call, dtype = trace.calls[block], torch.float64 if wide else trace.dtype
    if shaken is not None:
        x = call.input.to(dtype)
        signs = torch.randint(2, x.shape, generator=torch.Generator().manual_seed(shaken)).to(x) * 2 - 1
        call = replace(call, input=x * (1 + 2 * torch.finfo(dtype).eps * signs))
    module = storage.dense_copy(trace.model.blocks.modules[block], dtype) if wide else trace.block(block)
    start, end = trace.first + torch.tensor(pairs, device=call.input.device).T
    one = pairs[0][0] == pairs[0][1]
    positions = start[:, None] if one else torch.stack([start, end], dim=1)
    states = call.input[0][positions].to(dtype)
    with differentiating(), attention.using(module, trace.blocks.attention), all_rules(module):
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
    """Refuse to differentiate a map that differs from the one that the model evaluated."""
    call = trace.calls[block]
    recorded, stream = call.output[0][end], call.input[0][end]
    tolerance = _INT8 if trace.model.precision == "int8" else None
    if replay_error(call, replayed, recorded, stream, tolerance) <= 1:
        return
    for number, (found, y, x) in enumerate(zip(replayed, recorded, stream, strict=True)):
        if not (over := replay_error(call, found, y, x, tolerance)) <= 1:
            away = float((found - y.to(found.dtype)).norm() / (y - x).to(found.dtype).norm())
            raise UntrustworthyResultError(
                f"{position_name(trace, block, pairs[number])}: replayed on its own, the block differs by {away:.1e} "
                f"of what it adds to its stream from what it gave inside the model, {over:.1g} times what is accepted"
            )


def _check_modifications(trace: Traced, block: int) -> None:
    """Refuse a block whose modifications or makeup changed since the trace."""
    module = trace.model.blocks.modules[block]
    if module.training:
        raise UntrustworthyResultError(
            f"{trace.model.name!r}, block {block} is in training mode since the trace; take Jacobians within "
            "cl.measuring, or call model.hf.eval()"
        )
    now, traced = modifications(module), trace.blocks.modifications[block]
    if now == traced and makeups([module])[0] == trace.blocks.makeup[block]:
        return
    if now == traced:
        what = "one of its modules, their settings or the functions that they call was changed since the trace"
    else:
        what = f"a hook or a forward of your own was added or removed since the trace ({modified(module)} carries one)"
    raise UntrustworthyResultError(f"{trace.model.name!r}, block {block}: {what}; trace again")


def _route(trace: Traced, block: int, pairs: Sequence[tuple[int, int]]) -> str:
    """Return the route by which a block is evaluated at some pairs of tokens."""
    route = trace.routes[block]
    if route != "attention" and any(start > end for start, end in pairs):
        return "sequence"  # the only route that shows that an earlier token does not see a later one
    if route == "sequence" or not trace.blocks.modifications[block]:
        return route
    # A hook may act differently at each position: each pair is compared with the whole sequence.
    for pair in pairs:
        if (block, pair) not in trace._agrees:
            call, name = trace.calls[block], trace.blocks.attention
            rows = (trace.first + pair[0], trace.first + pair[1])
            trace._agrees[block, pair] = accepted(route_error(call, call, trace.block(block), route, name, rows))
    return route if all(trace._agrees[block, pair] for pair in pairs) else "sequence"


@_as_traced
def n_evaluated(trace: Traced, block: int, pairs: Sequence[tuple[int, int]]) -> int:
    """Return the number of tokens whose intermediate values a cotangent passes, counting a state by its size."""
    route = _route(trace, block, pairs)
    if route == "state":
        # A cotangent passes the whole state about four times; a state may be a hundred times as large as a stream.
        states = state_size(trace.calls[block], trace.block(block)) // (4 * trace.d_model)
        return (1 + states) * (1 + max(end - start for start, end in pairs))
    return trace.calls[block].input.shape[1] if route == "sequence" else len(pairs)


@_as_traced
def rounding_error(trace: Traced, block: int, pair: tuple[int, int], boundary: str) -> tuple[float, float]:
    """Return a bound on a Jacobian's rounding error, and an estimate of its length, both in the Frobenius norm."""
    # By its product with a normal cotangent, which has that length on average: its change when states change in their
    # last digit, and in float64. The remainder of a large sum changes, a product of small numbers hardly.
    u = torch.randn(trace.d_model, generator=torch.Generator().manual_seed(0)).double()

    def product(scale: float = 1.0, **how: Any) -> Tensor:
        x, y = evaluate(trace, block, [pair], boundary, **how)
        cotangent = (scale * u).to(y)
        (found,) = torch.autograd.grad(y, x, cotangent[None], materialize_grads=True)
        return (found[0] - cotangent * (pair[0] == pair[1])).double() / scale

    with differentiating():
        found = product()
        others = [product(scale, shaken=seed) for seed, scale in enumerate((1.1, 0.9))]  # with other rounding errors
        if trace.dtype != torch.float64:
            others.append(product(wide=True))
    limits, norm = torch.finfo(trace.dtype), float(found.norm())
    # Numbers below the smallest normal number have lost digits.
    least = limits.eps * norm + limits.tiny * trace.d_model
    return _BOUND * max(float((other - found).norm()) for other in others) + least, norm


def refuse_rounding(
    trace: Traced, block: int, pair: tuple[int, int], boundary: str, pulled: Callable[[Tensor], Tensor]
) -> None:
    """Refuse a Jacobian between two tokens that is zero or all rounding, judged by its product with a cotangent."""
    u = torch.randn(trace.d_model, generator=torch.Generator().manual_seed(0))
    if not (found := pulled(u)).any():
        raise zero_jacobian(trace, block, pair)
    small = _TINY * torch.finfo(trace.dtype).eps * float(u.norm())
    if trace.dtype == torch.float64 or float(found.double().norm()) > small:
        return
    error, norm = rounding_error(trace, block, pair, boundary)
    if not error <= _LOST * norm:
        raise VanishingJacobianError(
            f"the Jacobian of {position_name(trace, block, pair)} is lost in rounding: it is {norm:.0e} long, and the "
            f"bound on its error in {trace.dtype} is {error:.0e}; take a token nearer, or wrap the model in float64"
        )


def zero_jacobian(trace: Traced, block: int, pair: tuple[int, int]) -> VanishingJacobianError:
    """Return the error for a Jacobian that is zero, with its cause and a remedy."""
    (start, end), named = pair, f"the Jacobian of {position_name(trace, block, pair)} is zero"
    if start > end:
        return VanishingJacobianError(
            f"{named}: position {end} does not attend to position {start}, a later one; in a causal model that is "
            f"so by construction: exchange the two, token_in={end} and token_out={start}"
        )
    far = "a token outside of its window, or a masked one: take one nearer"
    why = f"position {end} does not attend to position {start} in this block ({far}), or " if start < end else ""
    return VanishingJacobianError(f"{named}: {why}its weights dropped out of differentiation")


def position_name(trace: Traced, block: int, pair: tuple[int, int]) -> str:
    """Return the name of a block and a pair of tokens, counted from 0."""
    return f"{trace.model.name!r}, block {block}, token {pair[0]} -> {pair[1]}"
