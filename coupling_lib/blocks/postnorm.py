r"""Post-norm blocks: recognised by their function, and measured without the norms of their stream.

A pre-norm block adds to its stream: $y = x + f(x)$. A block of BERT normalises the sum,
$y = \mathrm{N}_2(h + \mathrm{MLP}(h))$ with $h = \mathrm{N}_1(x + \mathrm{Attn}(x))$. A normalised vector cannot
change along the all-ones vector nor along itself, so that block minus identity couples trivially. Apart from
normalising, such a block computes what its sub-layers add to the stream,

$$f(x) = \mathrm{Attn}(x) + \mathrm{MLP}(h) = y - x - \sum_k \big(\mathrm{N}_k(p_k) - p_k\big),$$

$p_k$ being the input of the k-th norm of the stream. A block that passes a large stream on adds to it; the norms of
a stream are the modules whose output is the same for a stream ten thousand times as large and whose input is a sum with
a sub-layer's output. A block that multiplies its stream, $y = s \, (x + f(x))$, passes that share of a large one on.
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

# Factor by which a stream is made larger than all recorded inputs and outputs, and the largest share of it that a block
# which ends in a norm passes on.
_FACTOR, _NORMED_SHARE = 1e4, 0.1
# Scaled streams: the share passed on differs from 1 by more than this, exceeds rounding errors of a normed stream, and
# the output is along the stream up to this relative error.
_PASSED, _LEAST, _ALONG = 0.02, 1e-3, 0.1
# Relative tolerances: of equal tensors in float32, and of a norm's outputs, which its epsilon changes.
_SAME, _AS_NORMED = 1e-4, 0.1


class _ModuleCall(NamedTuple):
    """One call of a module inside a block: its name, its input if that is one tensor, and its output."""

    name: str
    module: nn.Module
    given: Tensor | None
    gave: Tensor


class StreamBehaviour(NamedTuple):
    """Behaviour of a block on a very large stream: whether it normalises it, and the share that it passes on."""

    post_norm: bool
    share: float = 1.0


@torch.no_grad()
def stream_behaviour(call: BlockCall, block: nn.Module) -> StreamBehaviour:
    """Classify a block by its output for a very large stream."""
    x, y = (state.to(dtype_of(block)) for state in (call.input, call.output))
    factor = _FACTOR * max(1.0, float(y.norm() / x.norm()))
    large = factor * x
    gave = call.replay(block, large)
    # Relative to the recorded output, because what a sub-layer adds may be larger than the stream itself.
    grown = float((gave - y).norm() / large.norm())
    if not grown < float("inf"):
        raise UnsupportedModelError(
            f"a {type(block).__name__} that is given its stream {factor:.0e} times as large returns NaN or infinity; "
            "whether it normalises its stream cannot be told, check the model's weights"
        )
    if float((gave - large).norm()) <= _PASSED * float(large.norm()):
        return StreamBehaviour(False)
    # A norm's output does not grow with its input; a scaled stream grows along itself, by its share of the growth.
    wide = torch.promote_types(large.dtype, torch.float32)
    added, large = (call.replay(block, 2 * large) - gave).to(wide), large.to(wide)
    share = float((added * large).sum() / large.square().sum())
    scaled = abs(share) > _LEAST and bool((added - share * large).norm() <= _ALONG * abs(share) * large.norm())
    return StreamBehaviour(grown < _NORMED_SHARE and not scaled, share if scaled and abs(share - 1) > _PASSED else 1.0)


@torch.no_grad()
def stream_norms(call: BlockCall, block: nn.Module) -> tuple[str, ...]:
    """Return the names of the norms that a block's stream passes through."""
    # From the output backwards: a norm whose output is the stream has as input p the output of an earlier norm, or the
    # block's input, plus the outputs of one or two modules inside the block.
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
    """Warn of blocks that normalise their stream or scale it: they couple trivially."""
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
    """Replay a block and list the calls of modules whose output has the stream's size, in the order of their ends."""
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
    """Return whether a module is a norm: its output does not depend on the size of its input, epsilon aside."""
    if seen.given is None or next(seen.module.children(), None) is not None:
        return False
    once, more = seen.module(_FACTOR * seen.given), seen.module(_FACTOR**2 * seen.given)
    return isinstance(once, Tensor) and all(_near(once, each, _AS_NORMED) for each in (more, seen.gave))


def _is_sum(total: Tensor, stream: Tensor, seen: list[_ModuleCall]) -> bool:
    """Return whether a state is the stream plus the output of one module, or of two."""
    added, given = total - stream, [each.gave for each in seen]
    sums = chain(given, (one + other for one, other in combinations(given, 2)))
    return any(_near(added, each) for each in sums)


def _near(a: Tensor, b: Tensor, tolerance: float = _SAME) -> bool:
    return bool((a - b).norm() <= tolerance * b.norm()) and bool(b.norm() > 0)


def _fits(value: Any, stream: Tensor) -> bool:
    """Return whether a tensor has the stream's size; some families fold batch and tokens into one dimension."""
    return isinstance(value, Tensor) and value.shape[-1:] == stream.shape[-1:] and value.numel() == stream.numel()
