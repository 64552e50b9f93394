"""Derivatives of one block at token positions: many cotangents pulled back through one graph.

A column of the Jacobian costs one token's work, see `blockmap`; d of them are pulled back together, in batches that
fit a memory budget. Several positions of one prompt, or one position in each of several prompts, are further rows of
the same matrix products.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from coupling_lib.blocks import attention, precision
from coupling_lib.blocks.agreement import holds, replay_error
from coupling_lib.blocks.blockmap import joinable, prompts_map, state_size, token_map
from coupling_lib.blocks.postnorm import without_norms
from coupling_lib.blocks.rules import all_rules
from coupling_lib.blocks.standing import standing, where
from coupling_lib.errors import CouplingError, ParameterError, UntrustworthyResultError
from coupling_lib.svd.memory import budget, ran_out

if TYPE_CHECKING:
    from coupling_lib.jacobian.tracing import Trace

# Bytes that the intermediate tensors of one batch of cotangents may take. Fewer and larger batches are faster, because
# each of them reads all of a block's weights; beside large results they take half as much.
_BATCH_BYTES = {"cpu": 10 * 2**22, "cuda": 2**32}
# More cotangents than this at once give the matrix products nothing.
_LARGEST_BATCH = 1024
# As many at once as there was memory for, on a device where it ran out with more.
_AT_MOST: dict[str, int] = {}
# An int8 block rounds its activations to 8 bits in the model and not here, relative to what it adds to a token.
_INT8 = 1e-1
# Entries of a Jacobian of two tokens so small, times the rounding of a number, may be nothing but rounding.
_TINY = 10


def block_jacobians(trace: Trace, block: int, pairs: Sequence[tuple[int, int]], boundary: str = "block") -> Tensor:
    """Form the residual Jacobians of one block at several pairs of token positions, batched (paper, section 2).

    Args:
        trace: the trace at whose states the block is linearised.
        block: the block l, from 0.
        pairs: `(t1, t2)` of each, positions from 0; all with t1 = t2, or all without.
        boundary: see `Trace.jacobian`.

    Returns:
        J^l_{t1 t2}, shape `(len(pairs), d, d)`; rows are outputs.

    Raises:
        ParameterError: if pairs with and without t1 = t2 are mixed.
        UntrustworthyResultError: if one is all zero or not finite, or the block, replayed on its own, does
            not give what it gave inside the model.

    Example:
        >>> import coupling_lib as cl
        >>> trace = cl.trace(cl.load_model("nano-neox"), "It was the best of times")
        >>> cl.block_jacobians(trace, 3, [(0, 0), (2, 2)]).shape
        torch.Size([2, 96, 96])
    """
    return _formed([trace], block, pairs, boundary, _memory(trace, len(pairs)))


def prompts_jacobians(
    traces: Sequence[Trace],
    block: int,
    pairs: Sequence[tuple[int, int]],
    boundary: str = "block",
    out: Tensor | None = None,
) -> Tensor:
    """Form the Jacobians of one block at one pair of token positions in each of several prompts, batched.

    The numbers are those of `block_jacobians` for each prompt, up to rounding. Narrow models gain by it, because a
    single short prompt leaves the hardware idle. On other routes than attention, and for families whose calls cannot
    be joined, the prompts are taken one after the other.

    Args:
        traces: of one model, at whose states the block is linearised.
        block: the block l, from 0.
        pairs: `(t1, t2)` in each prompt, positions from 0; all with t1 = t2, or all without.
        boundary: see `Trace.jacobian`.
        out: where to write them, of the shape and dtype of the result; new memory by default.

    Returns:
        the Jacobians, shape `(len(traces), d, d)`.

    Raises:
        ParameterError: if pairs with and without t1 = t2 are mixed, or there is not one per prompt.
        UntrustworthyResultError: see `block_jacobians`.

    Example:
        >>> import coupling_lib as cl
        >>> model = cl.load_model("nano-neox")
        >>> traces = [cl.trace(model, text) for text in ("It was the best of times", "it was the worst of times")]
        >>> cl.prompts_jacobians(traces, 3, [(traced.n_tokens - 1,) * 2 for traced in traces]).shape
        torch.Size([2, 96, 96])
    """
    if len(pairs) != len(traces):
        raise ParameterError(f"pairs names {len(pairs)} pairs for {len(traces)} prompts; give one for each")
    J = _memory(traces[0], len(pairs)) if out is None else out
    joined = all(trace.routes[block] == "attention" and not trace.blocks.standing[block] for trace in traces)
    if joined and len(traces) > 1 and joinable([trace.calls[block] for trace in traces]):
        return _formed(traces, block, pairs, boundary, J)
    for trace, pair, place in zip(traces, pairs, J, strict=True):
        _formed([trace], block, [pair], boundary, place[None])
    return J


def _memory(trace: Trace, count: int) -> Tensor:
    return torch.empty(count, trace.d_model, trace.d_model, dtype=trace.dtype, device=trace.device)


def _formed(traces: Sequence[Trace], block: int, pairs: Sequence[tuple[int, int]], boundary: str, J: Tensor) -> Tensor:
    """Form Jacobians at several pairs of one prompt, or at one pair of each of several, in `J` `(len(pairs), d, d)`."""
    if len({start == end for start, end in pairs}) > 1:
        raise ParameterError("pairs mixes t1 = t2 with t1 != t2; form the two kinds in two calls")
    trace = traces[0]
    trace.check_boundary(boundary)
    # Other routes than attention take one set of positions at a time.
    together = 64 if trace.routes[block] == "attention" and not trace.blocks.standing[block] else 1
    for first in range(0, len(pairs), together):
        some = slice(first, first + together)
        x, y = evaluate(traces[some] if len(traces) > 1 else traces, block, pairs[some], boundary)
        rows, place = J[some].transpose(0, 1), 0
        # Parts of one size: a small last one would leave the matrix products idle.
        batch = batch_size(trace, n_evaluated(trace, block, pairs[some]), beside=J.untyped_storage().nbytes())
        for part in rows.tensor_split(-(-len(rows) // batch)):
            units = x.new_zeros(len(part), trace.d_model)
            units.diagonal(place).fill_(1)
            part.copy_(pulled_back(y, x, units[:, None].expand(-1, len(x), -1)))
            place += len(part)
    if pairs[0][0] == pairs[0][1]:
        J.diagonal(dim1=1, dim2=2).sub_(1)
    # One pass over each matrix; what is not a number shows in its least and largest entries.
    for extremes, pair in zip([torch.stack(matrix.aminmax()).tolist() for matrix in J], pairs, strict=True):
        named = f"the Jacobian of {position_name(trace, block, pair)}"
        if not all(map(math.isfinite, extremes)):
            raise UntrustworthyResultError(f"{named} holds NaN or infinite entries; try precision='float32'")
        if not any(extremes):
            raise zero_jacobian(trace, block, pair)
    if pairs[0][0] != pairs[0][1]:
        for number, (matrix, pair) in enumerate(zip(J, pairs, strict=True)):
            u = random_cotangent(trace).to(matrix)
            refuse_rounding(traces[number] if len(traces) > 1 else trace, block, pair, boundary, u, u @ matrix)
    return J


def random_cotangent(trace: Trace) -> Tensor:
    """Draw a cotangent `(d,)`, the same each time."""
    return torch.randn(trace.d_model, generator=torch.Generator().manual_seed(0))


def refuse_rounding(trace: Trace, block: int, pair: tuple[int, int], boundary: str, u: Tensor, product: Tensor) -> None:
    """Refuse a Jacobian between two tokens that is nothing but rounding, told by its product with a cotangent."""
    # What has decayed below the rounding of the sums that it was made of differs wholly in wider numbers.
    if trace.dtype == torch.float64 or float(product.norm()) > _TINY * torch.finfo(trace.dtype).eps * float(u.norm()):
        return
    wide = precision.dense_copy(trace.model.blocks.modules[block], torch.float64)
    x, y = _evaluated(wide, [trace], block, [pair], boundary, torch.float64)
    (wanted,) = torch.autograd.grad(y, x, u.to(y)[None], allow_unused=True, materialize_grads=True)
    if not float((wanted[0] - product.double()).norm()) <= 0.1 * float(wanted.norm()):
        raise zero_jacobian(trace, block, pair, f"rounding ({float(product.norm() / u.norm()):.0e} in {trace.dtype})")


def evaluate(
    traces: Sequence[Trace], block: int, pairs: Sequence[tuple[int, int]], boundary: str
) -> tuple[Tensor, Tensor]:
    """Evaluate a block with a graph: the varied states at $t_1$ and the read states at $t_2$, both `(T, d)`."""
    _check_standing(traces[0], block)
    return _evaluated(traces[0].block(block), traces, block, pairs, boundary, traces[0].dtype)


def _evaluated(
    module: nn.Module,
    traces: Sequence[Trace],
    block: int,
    pairs: Sequence[tuple[int, int]],
    boundary: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Evaluate a block by a copy of it in some number format."""
    trace, calls = traces[0], [trace.calls[block] for trace in traces]
    start, end = torch.tensor(pairs, device=calls[0].input.device).T
    one = pairs[0][0] == pairs[0][1]
    positions = start[:, None] if one else torch.stack([start, end], dim=1)
    states = _at([call.input for call in calls], positions).to(dtype)
    with torch.enable_grad(), attention.under(module, trace.blocks.attention), all_rules(module):
        x = states[:, 0].clone().requires_grad_(True)
        few = torch.cat([x[:, None], states[:, 1:]], dim=1)
        if len(calls) > 1:
            map_ = prompts_map(calls, module, positions)
        else:
            map_ = token_map(calls[0], module, _route(trace, block, pairs), positions)
        y = map_(few)[:, -1]
        _check_replay(traces, block, pairs, y.detach(), end)
        if boundary == "branch" and (norms := trace.blocks.post_norm.get(block)):
            with without_norms(module, norms):
                y = map_(few)[:, -1]
        if boundary == "hidden_states" and block == trace.n_blocks - 1:
            y = trace.final_norm(y.to(trace.dtype)).to(dtype)
        return x, y


def _at(streams: Sequence[Tensor], positions: Tensor) -> Tensor:
    """Take the states at positions `(T, ...)` of one prompt's stream `(1, n, d)`, or row by row of T prompts'."""
    if len(streams) == 1:
        return streams[0][0][positions]
    return torch.stack([stream[0][own] for stream, own in zip(streams, positions, strict=True)])


def _check_replay(
    traces: Sequence[Trace], block: int, pairs: Sequence[tuple[int, int]], replayed: Tensor, end: Tensor
) -> None:
    """Refuse to differentiate a map that is not the one the model evaluated."""
    trace, calls = traces[0], [each.calls[block] for each in traces]
    recorded, stream = (
        _at(states, end) for states in ([call.output for call in calls], [call.input for call in calls])
    )
    tolerance = _INT8 if trace.model.precision == "int8" else None
    for number, (found, y, x) in enumerate(zip(replayed, recorded, stream, strict=True)):
        if not (over := replay_error(calls[0], found, y, x, tolerance)) <= 1:
            away = float((found - y.to(found.dtype)).norm() / (y - x).to(found.dtype).norm())
            raise UntrustworthyResultError(
                f"{position_name(trace, block, pairs[number])}: replayed on its own, the block differs by {away:.1e} "
                f"of what it adds to its stream from what it gave inside the model, {over:.1g} times what is accepted"
            )


def _check_standing(trace: Trace, block: int) -> None:
    """Refuse a block on which something else stands than when it was traced."""
    module = trace.model.blocks.modules[block]
    if standing(module) != trace.blocks.standing[block]:
        raise UntrustworthyResultError(
            f"{trace.model.name!r}, block {block}: a hook or a forward of your own was put on or taken off since the "
            f"trace ({where(module)} carries one); trace again"
        )


def _route(trace: Trace, block: int, pairs: Sequence[tuple[int, int]]) -> str:
    """Tell by which route a block is evaluated at some pairs."""
    # A causal block does not let an earlier token see a later one; only the whole sequence can say so.
    route = trace.routes[block]
    if route != "attention" and any(start > end for start, end in pairs):
        return "sequence"
    if route == "sequence" or not trace.blocks.standing[block]:
        return route
    # A hook may do one thing at one position and another at the next: each pair is compared with the whole sequence.
    for pair in pairs:
        if (block, pair) not in trace._holds:
            call, name = trace.calls[block], trace.blocks.attention
            trace._holds[block, pair] = holds(call, trace.block(block), route, name, pair)
    return route if all(trace._holds[block, pair] for pair in pairs) else "sequence"


def n_evaluated(trace: Trace, block: int, pairs: Sequence[tuple[int, int]]) -> int:
    """Count the tokens whose intermediate values a cotangent meets, a state as so many tokens as are its size."""
    route = _route(trace, block, pairs)
    if route == "state":
        # A cotangent meets the state as a whole, some four times; a state may be a hundred times a stream.
        states = state_size(trace.calls[block], trace.block(block)) // (4 * trace.d_model)
        return (1 + states) * (1 + max(end - start for start, end in pairs))
    return trace.n_tokens if route == "sequence" else len(pairs)


def batch_size(trace: Trace, n_tokens: int, beside: int = 0) -> int:
    """Give how many cotangents fit into the memory budget at once, beside so many bytes of results."""
    # About sixteen streams of intermediate values per cotangent, by count over a block's operations.
    each = 16 * n_tokens * trace.d_model * trace.dtype.itemsize
    # An eighth of what the weights of a wide block take, 12 d^2 of them in float32, is little beside them.
    room = max(budget(_BATCH_BYTES, trace.device.type, beside), 6 * trace.d_model**2)
    return min(_AT_MOST.get(trace.device.type, _LARGEST_BATCH), max(1, room // each))


def batched_gradient(y: Tensor, x: Tensor, cotangents: Tensor, batch: int) -> Tensor:
    """Pull many cotangents back through one graph: entry i is the gradient of <cotangents_i, y> by x."""
    parts = cotangents.tensor_split(-(-len(cotangents) // batch))
    return torch.cat([pulled_back(y, x, part) for part in parts])


def pulled_back(y: Tensor, x: Tensor, cotangents: Tensor) -> Tensor:
    """Pull one batch of cotangents back through a graph; where memory runs out, by smaller ones."""

    def pull(cotangent: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True)[0]

    size = len(cotangents)
    while True:
        try:
            parts = [torch.vmap(pull)(part).detach() for part in cotangents.split(size)]
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            if size == 1:
                raise CouplingError(
                    "memory ran out while a single row of a Jacobian was formed; free some, take a shorter prompt, or "
                    "leave the model's blocks on disk with memory='2GiB' or so"
                ) from None
        else:
            break
        # Only here has the error let go of what its frames hold.
        size = -(-size // 2)
    if size < len(cotangents):
        if x.device.type not in _AT_MOST:
            said = f"memory ran out with {len(cotangents)} rows of a Jacobian at once; going on with {size} at a time"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        _AT_MOST[x.device.type] = min(size, _AT_MOST.get(x.device.type, size))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def zero_jacobian(trace: Trace, block: int, pair: tuple[int, int], what: str = "zero") -> UntrustworthyResultError:
    """Give the error for a Jacobian that is zero, or as good as that: why it is, and what to do."""
    (start, end), named = pair, f"the Jacobian of {position_name(trace, block, pair)} is {what}"
    if start > end:
        return UntrustworthyResultError(
            f"{named}: position {end} does not attend to position {start}, a later one; in a causal model that is "
            f"so by construction: exchange the two, token_in={end} and token_out={start}"
        )
    far = "a token outside of its window, or a masked one: take one nearer"
    why = f"position {end} does not attend to position {start} in this block ({far}), or " if start < end else ""
    return UntrustworthyResultError(f"{named}: {why}its weights dropped out of differentiation")


def position_name(trace: Trace, block: int, pair: tuple[int, int]) -> str:
    """Name a block and a pair of tokens, from 0 as in code."""
    return f"{trace.model.name!r}, block {block}, token {pair[0]} -> {pair[1]}"
