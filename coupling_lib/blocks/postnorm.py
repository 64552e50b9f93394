r"""Post-norm blocks: recognised by what they compute, and measured without the norms of their stream.

A pre-norm block adds to its stream: $y = x + f(x)$. Those of BERT normalise what they have added,
$y = \mathrm{N}_2(h + \mathrm{MLP}(h))$ with $h = \mathrm{N}_1(x + \mathrm{Attn}(x))$. What is normalised cannot change
along the all-ones vector nor along itself, so that block minus identity couples trivially. What such a block computes
apart from normalising is what its sub-layers add to the stream,

$$f(x) = \mathrm{Attn}(x) + \mathrm{MLP}(h) = y - x - \sum_k \big(\mathrm{N}_k(p_k) - p_k\big),$$

$p_k$ being what the k-th norm of the stream is given. A block that lets a large stream through adds to it; the norms of
a stream are the modules that give the same for a stream ten thousand times as large and stand where what a sub-layer
gave has just been added. A block that multiplies its stream, $y = s \, (x + f(x))$, gives that share of a large one.
"""

import warnings
from contextlib import ExitStack
from functools import partial
from itertools import chain, combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coupling_lib.blocks.blockmap import dtype_of
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.record import Blocks
from coupling_lib.errors import PostNormWarning, ScaledStreamWarning, UnsupportedModelError

# How much larger a stream is made than anything the block was seen to read or write, and the share of it that a block
# which ends in a norm gives at most.
_LARGER, _LET_THROUGH = 1e4, 0.1
# The share of a block that multiplies its stream is unlike 1 by so much, larger than what rounding leaves of a normed
# one, and along the stream but for so much of it.
_PASSED, _LEAST, _ALONG = 0.02, 1e-3, 0.1
# Tensors that are the same up to rounding in float32, and up to the epsilon of a norm.
_SAME, _AS_NORMED = 1e-4, 0.1


class _ModuleCall(NamedTuple):
    """One call of a module inside a block: its name, the one tensor that it was given (if one), and what it gave."""

    name: str
    module: nn.Module
    given: Tensor | None
    gave: Tensor


class Passing(NamedTuple):
    """How a block passes a very large stream on: whether it normalises it, and the share of it that it passes on."""

    post_norm: bool
    share: float = 1.0


@torch.no_grad()
def passing(call: BlockCall, block: nn.Module) -> Passing:
    """Find how a block passes its stream on, from its output for a very much larger stream."""
    x, y = (state.to(dtype_of(block)) for state in (call.input, call.output))
    factor = _LARGER * max(1.0, float(y.norm() / x.norm()))
    large = factor * x
    gave = call.replay(block, large)
    # Over the recorded output, because what a sub-layer adds may be larger than the stream itself.
    grown = float((gave - y).norm() / large.norm())
    if not grown < float("inf"):
        raise UnsupportedModelError(
            f"a {type(block).__name__} that is given its stream {factor:.0e} times as large returns NaN or infinity; "
            "whether it normalises its stream cannot be told, check the model's weights"
        )
    if float((gave - large).norm()) <= _PASSED * float(large.norm()):
        return Passing(False)
    # What a norm gives does not grow. What a scale gives does, along the stream, by its share of what that grew by.
    wide = torch.promote_types(large.dtype, torch.float32)
    added, large = (call.replay(block, 2 * large) - gave).to(wide), large.to(wide)
    share = float((added * large).sum() / large.square().sum())
    scaled = abs(share) > _LEAST and bool((added - share * large).norm() <= _ALONG * abs(share) * large.norm())
    return Passing(grown < _LET_THROUGH and not scaled, share if scaled and abs(share - 1) > _PASSED else 1.0)


@torch.no_grad()
def stream_norms(call: BlockCall, block: nn.Module) -> tuple[str, ...]:
    """Find the norms that a block's stream passes through."""
    # From the output backwards: a norm that gives the stream was given p, which is what an earlier norm gave, or the
    # block's input, plus what one or two modules inside the block gave.
    x = call.input.to(dtype_of(block))
    seen, y = _replayed(call, block, x)
    norms = [each for each in seen if _is_norm(each)]
    path, stream = [], y
    while True:
        last = next((at for at in reversed(range(len(norms))) if _near(norms[at].gave, stream)), None)
        if last is not None:
            norm, norms = norms[last], norms[:last]
            if sum(each.module is norm.module for each in seen) > 1:
                return ()
            path.insert(0, norm.name)
            stream = norm.given
        if _near(stream, x) or _is_sum(stream, x, seen):
            return tuple(path)
        before = next((each for each in reversed(norms) if _is_sum(stream, each.gave, seen)), None)
        if before is None:
            return ()
        stream = before.gave


def warn_of_streams(blocks: Blocks, name: str) -> None:
    """Warn of blocks that normalise their stream or multiply it by a number: they couple trivially."""
    if blocks.post_norm:
        branch = "pass boundary='branch' for what their sub-layers add to it; " * all(blocks.post_norm.values())
        message = (
            f"{name}: {len(blocks.post_norm)} of {len(blocks)} blocks normalise their stream (post-norm); block minus "
            f"identity couples trivially there, trained or not; {branch}see Gotchas in the book"
        )
        warnings.warn(message, PostNormWarning, stacklevel=5)
    if blocks.scales:
        (first, scale), n = next(iter(blocks.scales.items())), len(blocks.scales)
        several = f"in {n} of {len(blocks)} blocks, " if n > 1 else ""
        message = (
            f"{name} scales its stream {several}by {scale:.3g} in block {first} (from 0); block minus identity then "
            f"holds {scale - 1:.3g} times the identity and couples trivially, trained or not; read the traceless part "
            "instead, which is without it: cl.shared(J), or cl.shared_part of what was measured"
        )
        warnings.warn(message, ScaledStreamWarning, stacklevel=5)


def _replayed(call: BlockCall, block: nn.Module, x: Tensor) -> tuple[list[_ModuleCall], Tensor]:
    """Replay a block and note every module inside it whose output has the stream's size, in order of its end."""
    seen: list[_ModuleCall] = []

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        gave = output[0] if isinstance(output, tuple | list) and output else output
        if _fits(gave, x):
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            alone = len(tensors) == 1 and _fits(tensors[0], x)
            seen.append(
                _ModuleCall(name, module, tensors[0].reshape(x.shape) if alone else None, gave.reshape(x.shape))
            )

    with ExitStack() as hooks:
        for name, module in block.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(partial(note, name), with_kwargs=True))
        return seen, call.replay(block, x)


def _is_norm(seen: _ModuleCall) -> bool:
    """Return whether a module is a norm: its output does not depend on the size of its input, above its epsilon."""
    if seen.given is None or next(seen.module.children(), None) is not None:
        return False
    once, more = seen.module(_LARGER * seen.given), seen.module(_LARGER**2 * seen.given)
    return isinstance(once, Tensor) and all(_near(once, each, _AS_NORMED) for each in (more, seen.gave))


def _is_sum(total: Tensor, stream: Tensor, seen: list[_ModuleCall]) -> bool:
    """Return whether a state is the stream plus what one of the modules gave, or two of them."""
    added, given = total - stream, [each.gave for each in seen]
    sums = chain(given, (one + other for one, other in combinations(given, 2)))
    return any(_near(added, each) for each in sums)


def _near(a: Tensor, b: Tensor, tolerance: float = _SAME) -> bool:
    return bool((a - b).norm() <= tolerance * b.norm()) and bool(b.norm() > 0)


def _fits(value: Any, stream: Tensor) -> bool:
    """Return whether a tensor has the stream's size; some families fold batch and tokens into one dimension."""
    return isinstance(value, Tensor) and value.shape[-1:] == stream.shape[-1:] and value.numel() == stream.numel()
