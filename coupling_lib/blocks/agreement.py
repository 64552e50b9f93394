"""Validation of one block against the unmodified model: same output, and the same derivative on each route.

The reference is the whole sequence, with the model's original attention, differentiated by plain autograd: it uses none
of the rules, routes and constants of this library.
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from coupling_lib.blocks import attention
from coupling_lib.blocks.blockmap import dtype_of, token_map
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.rules import all_rules

# Relative error between two ways to compute the same derivative in float32 or wider.
_TOLERANCE = 1e-3
# Share of the identity's norm: smaller derivatives, of tokens that hardly interact, are compared with this instead.
_FLOOR = 1e-3
# Tolerance of a replayed block's output, relative to what the block adds to a token: narrow weights run in their
# own number format in the model, and in float32 where a block is differentiated.
REPLAY = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def replay_error(
    call: BlockCall, found: Tensor, recorded: Tensor, stream: Tensor | None = None, tolerance: float | None = None
) -> float:
    """Return the largest difference of two outputs of a block over tokens, as a multiple of the tolerance."""
    # Relative to what the block adds to a token, plus the rounding error of a stream that may be much longer.
    narrow = max((found.dtype, recorded.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    wide = torch.promote_types(torch.promote_types(found.dtype, recorded.dtype), torch.float32)
    x, y, found = (state.to(wide) for state in (call.input if stream is None else stream, recorded, found))
    most = (tolerance or REPLAY[narrow]) * (y - x).norm(dim=-1) + 4 * torch.finfo(narrow).eps * y.norm(dim=-1)
    return float(((found - y).norm(dim=-1) / most.clamp_min(torch.finfo(wide).tiny)).max())


def route_error(
    call: BlockCall,
    reference: BlockCall,
    block: nn.Module,
    route: str,
    default: str,
    pair: tuple[int, int] | None = None,
) -> float | str:
    """Return the error of a route on rows and columns of a block's Jacobian, or the reason for its failure."""
    n = call.input.shape[1]
    # At a token that is not the last, and from an earlier token.
    pairs = [(n // 2, n // 2), (n // 4, n - 2) if n > 2 else (0, 0)] if pair is None else [pair]
    try:
        errors = [_error(call, reference, block, route, default, list(dict.fromkeys(each))) for each in pairs]
        return float(torch.stack(errors).max())  # NaN if one is
    except Exception as problem:
        return f"cannot be differentiated ({first_line(problem)})"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def accepted(error: float | str) -> bool:
    """Return whether the error of a route is within rounding."""
    return not isinstance(error, str) and error <= _TOLERANCE


def _error(
    call: BlockCall, reference: BlockCall, block: nn.Module, route: str, default: str, positions: list[int]
) -> Tensor:
    """Return the largest relative error of a route: output at the last token, one row and one column of J."""
    generator, d = torch.Generator().manual_seed(0), call.input.shape[2]
    dtype = dtype_of(block)
    index = torch.tensor([positions], device=call.input.device)
    u, v = torch.randn(2, d, generator=generator, dtype=torch.float64).to(call.input.device, dtype)
    with attention.differentiable():
        found = _row_and_column(call, block, route, index, u, v, ruled=True)
    with attention.using(block, default):
        wanted = _row_and_column(reference, block, "sequence", index, u, v)
    least = torch.tensor([_FLOOR * float(d) ** 0.5] * 2 + [0.0]).to(u)
    added = wanted[2] - call.input[0, positions[-1]].to(dtype)
    sizes = torch.stack([wanted[0].norm(), wanted[1].norm(), added.norm() + 1e-4 * wanted[2].norm()])
    return (torch.stack([(a - b).norm() for a, b in zip(found, wanted, strict=True)]) / sizes.maximum(least)).max()


def _row_and_column(
    call: BlockCall, block: nn.Module, route: str, positions: Tensor, u: Tensor, v: Tensor, *, ruled: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute u^T J and J v of the whole block (skip path included) by reverse mode, and its output."""
    u = u.clone().requires_grad_(True)
    states = call.input[0][positions].to(u.dtype)
    x = states[0, 0].clone().requires_grad_(True)
    with torch.enable_grad(), all_rules(block) if ruled else nullcontext():
        states = torch.cat([x[None, None], states[:, 1:]], dim=1)
        y = token_map(call, block, route, positions)(states)[0, -1]
        (row,) = torch.autograd.grad(y, x, u, create_graph=True, materialize_grads=True)
        (column,) = torch.autograd.grad(row, u, v, materialize_grads=True)
    return row.detach(), column, y.detach()
