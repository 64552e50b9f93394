"""Derivatives of one block at token positions: many cotangents pulled back through one graph, in batches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coupling_lib.errors import CouplingError, ParameterError, UntrustworthyResultError, check_whole, is_whole, shown
from coupling_lib.jacobian.differentiate import (
    Traced,
    evaluate,
    n_evaluated,
    position_name,
    refuse_rounding,
    zero_jacobian,
)
from coupling_lib.memory import budget, ran_out
from coupling_lib.modes import differentiating

# Bytes for the intermediate tensors of one batch of cotangents; each batch reads all of a block's weights.
_BATCH_BYTES = {"cpu": 10 * 2**22, "cuda": 2**32}
# Larger batches of cotangents do not speed up the matrix products.
_LARGEST_BATCH = 1024
# Largest batch that fitted, on a device where memory ran out with a larger one.
_AT_MOST: dict[str, int] = {}


def block_jacobians(trace: Traced, block: int, pairs: Sequence[tuple[int, int]], boundary: str = "block") -> Tensor:
    """Form the residual Jacobians of one block at several pairs of token positions, batched (paper, section 2).

    Args:
        trace: the trace at whose states the block is linearised.
        block: the block l, from 0.
        pairs: `(t1, t2)` of each, positions from 0; all with t1 = t2, or all without.
        boundary: see `Trace.jacobian`.

    Returns:
        J^l_{t1 t2}, shape `(len(pairs), d, d)`; rows are outputs.

    Raises:
        ParameterError: if the block or a position does not exist, or pairs with and without t1 = t2 are mixed.
        UntrustworthyResultError: if one is all zero, not finite or lost in rounding, or the block's replayed output
            differs from that inside the model.

    Example:
        >>> import coupling_lib as cl
        >>> trace = cl.trace(cl.load_model("nano-neox"), "It was the best of times")
        >>> cl.block_jacobians(trace, 3, [(0, 0), (2, 2)]).shape
        torch.Size([2, 96, 96])
    """
    block = check_whole("block", block, -trace.n_blocks, trace.n_blocks - 1) % trace.n_blocks
    if np.shape(pairs)[1:] != (2,) or not all(is_whole(t, 0) and t < trace.n_tokens for pair in pairs for t in pair):
        raise ParameterError(f"pairs is {shown(pairs)}; expected (t1, t2), ... with t from 0 to {trace.n_tokens - 1}")
    J = torch.empty(len(pairs), trace.d_model, trace.d_model, dtype=trace.dtype, device=trace.device)
    return form(trace, block, pairs, boundary, out=J)


def form(
    trace: Traced, block: int, pairs: Sequence[tuple[int, int]], boundary: str, out: Tensor, *, rounded: bool = False
) -> Tensor:
    """Form the Jacobians of `block_jacobians` in the caller's memory; with `rounded`, ones lost in rounding as well."""
    if len({start == end for start, end in pairs}) > 1:
        raise ParameterError("pairs mixes t1 = t2 with t1 != t2; form the two kinds in two calls")
    trace.check_boundary(boundary)
    # Other routes than attention take one set of positions at a time.
    together = 64 if trace.routes[block] == "attention" and not trace.blocks.modifications[block] else 1
    for first in range(0, len(pairs), together):
        some = slice(first, first + together)
        x, y = evaluate(trace, block, pairs[some], boundary)
        rows, place = out[some].transpose(0, 1), 0
        # Parts of one size: a small last part would leave the processor idle.
        batch = batch_size(trace, n_evaluated(trace, block, pairs[some]), beside=out.untyped_storage().nbytes())
        for part in rows.tensor_split(-(-len(rows) // batch)):
            units = x.new_zeros(len(part), trace.d_model)
            units.diagonal(place).fill_(1)
            part.copy_(pulled_back(y, x, units[:, None].expand(-1, len(x), -1)))
            place += len(part)
    if pairs[0][0] == pairs[0][1]:
        out.diagonal(dim1=1, dim2=2).sub_(1)
    for matrix, pair in zip(out, pairs, strict=True):
        extremes = torch.stack(matrix.aminmax()).tolist()  # one pass, which also shows NaN
        if not all(map(math.isfinite, extremes)):
            raise UntrustworthyResultError(
                f"the Jacobian of {position_name(trace, block, pair)} holds NaN or infinite entries; "
                "try precision='float32'"
            )
        if not any(extremes):
            raise zero_jacobian(trace, block, pair)
        if pair[0] != pair[1] and not rounded:
            refuse_rounding(trace, block, pair, boundary, lambda u, J=matrix: u.to(J) @ J)
    return out


def batch_size(trace: Traced, n_tokens: int, beside: int = 0) -> int:
    """Return the number of cotangents that fit into the memory budget at once, beside the given bytes of results."""
    # About sixteen streams of intermediate values per cotangent, by count over a block's operations.
    each = 16 * n_tokens * trace.d_model * trace.dtype.itemsize
    # An eighth of the float32 weights of a wide block, 12 d^2 of them, is always allowed.
    room = max(budget(_BATCH_BYTES, trace.device.type, beside), 6 * trace.d_model**2)
    return min(_AT_MOST.get(trace.device.type, _LARGEST_BATCH), max(1, room // each))


def batched_gradient(y: Tensor, x: Tensor, cotangents: Tensor, batch: int) -> Tensor:
    """Pull many cotangents back through one graph: entry i is the gradient of <cotangents_i, y> by x."""
    parts = cotangents.tensor_split(-(-len(cotangents) // batch))
    return torch.cat([pulled_back(y, x, part) for part in parts])


def pulled_back(y: Tensor, x: Tensor, cotangents: Tensor) -> Tensor:
    """Pull one batch of cotangents back through a graph; in smaller batches where memory runs out."""

    def pull(cotangent: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, cotangent, retain_graph=True, materialize_grads=True)[0]

    size, device, parts = len(cotangents), x.device.type, []
    while not parts:
        try:
            with differentiating():
                parts = [torch.vmap(pull)(part).detach() for part in cotangents.split(size)]
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            if size == 1:
                raise CouplingError(
                    "memory ran out while a single row of a Jacobian was formed; free some, take a shorter prompt, or "
                    "leave the model's blocks on disk with memory='2GiB' or so"
                ) from None
            size = -(-size // 2)
    if size < len(cotangents):
        if device not in _AT_MOST:
            n = len(cotangents)
            message = f"memory ran out with {n} rows of a Jacobian at once; going on with {size} at a time"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        _AT_MOST[device] = min(size, _AT_MOST.get(device, size))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
