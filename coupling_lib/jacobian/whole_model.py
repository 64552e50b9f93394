"""The whole model differentiated at a trace's states, and the test that its blocks' own maps compose to its derivative.

The product of the blocks' maps at one token is the derivative of its last state if no path leaves the token and
returns to it, and if blocks hand on nothing but their stream. One cotangent is pulled back through all blocks at
once and compared with that product, both linearised at the states of the trace, whatever the precision of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks import attention, storage
from coupling_lib.blocks.agreement import REPLAY as TOLERANCE
from coupling_lib.blocks.call import BlockCall, FixedChoices, cast, on_tensors, residual_stream
from coupling_lib.blocks.free_memory import available
from coupling_lib.blocks.makeup import modifications
from coupling_lib.blocks.record import StopPassError, passed, without_cache
from coupling_lib.blocks.state import restored
from coupling_lib.errors import UnsupportedModelError
from coupling_lib.jacobian.differentiate import Traced
from coupling_lib.modes import differentiating, exclusive

# Factor of the tolerance where blocks are known to hand on more than their stream.
_STRICTER = 0.02
# Size of a model up to which it is copied to float64, which takes less time than the pass.
_SMALL = 2**25
# Share of free memory that a wide copy may take.
_SHARE = 0.5
# Least relative change that is not the rounding of two passes, one of which has half of its tokens perturbed: at
# least `_MOVED`, and this multiple of the rounding of one number.
_MOVED, _ROUNDINGS, _QUANTISED = 1e-3, 4, 0.1


@dataclass
class Pass:
    """One pass through the whole model, each of its streams a function of the ones before it."""

    streams: list[Tensor] = field(default_factory=list)
    """X^0 .. X^L, `(1, n, d)`."""
    beside: set[str] = field(default_factory=set)
    """Arguments, other than the stream, that later blocks get from earlier ones."""

    def pulled_back(self, cotangent: Tensor, sources: Sequence[Tensor], **options: Any) -> tuple[Tensor, ...]:
        """Pull a cotangent of X^L back to some of the streams."""
        options |= dict(retain_graph=True, materialize_grads=True)
        return torch.autograd.grad(self.streams[-1], sources, cotangent, **options)


@exclusive
def differentiated(trace: Traced, dtype: torch.dtype) -> Pass:
    """Run a model from the first block to the last with a graph, at the states of a trace, in `dtype`."""
    model, seen = storage.dense_copy(trace.model.hf, dtype), Pass()
    given = on_tensors(partial(cast, dtype), trace.inputs)
    with restored(model), differentiating(), attention.differentiable(), _at_trace(trace, model, dtype, seen):
        model(**without_cache(model, given))
    return seen


@contextmanager
def _at_trace(trace: Traced, model: nn.Module, dtype: torch.dtype, seen: Pass) -> Generator[None]:
    """Hold the blocks of a model at the states, arguments and choices of a trace, inside the context."""
    calls = trace.calls

    def enter(block: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if not seen.streams:
            # No leaf, which torch's operation counters do not accept.
            seen.streams.append(calls[0].input.to(dtype).clone().requires_grad_(True).clone())
        first, call = len(seen.streams) == 1, calls[len(seen.streams) - 1]
        if call.chosen:
            held.enter_context(FixedChoices(call.chosen))

        def chosen(name: str, value: Any) -> Any:
            if name == call.stream:
                return seen.streams[0].to(value.device) if first else value
            if any(leaf.requires_grad for leaf in _tensors(value)):
                seen.beside.add(name)
            elif isinstance(value, Tensor | tuple) and name in call.arguments:
                # As the model rounded it; a dictionary may carry information from a block to later ones.
                return on_tensors(partial(cast, dtype), call.arguments[name])
            return value

        names = [call.stream, *call.arguments]
        args = tuple(chosen(name, value) for name, value in zip(names, args, strict=False)) + args[len(names) :]
        return args, {name: chosen(name, value) for name, value in kwargs.items()}

    def leave(block: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        held.close()
        found = residual_stream(output, seen.streams[0].shape)
        recorded = calls[len(seen.streams) - 1].output.to(found.device, dtype)
        seen.streams.append(found + (recorded - found).detach())
        if len(seen.streams) > len(calls):
            raise StopPassError
        return type(output)([seen.streams[-1], *output[1:]]) if isinstance(output, tuple | list) else seen.streams[-1]

    with suppress(StopPassError), ExitStack() as held, ExitStack() as hooks:
        for block in model.get_submodule(trace.blocks.path):
            hooks.enter_context(block.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
            hooks.enter_context(block.register_forward_hook(leave, with_kwargs=True))
        yield


def refuse_other_paths(trace: Traced, token: int, product: Callable[[Tensor, bool], Tensor]) -> None:
    """Refuse a model whose derivative at a token is not the product of its blocks' own maps."""
    # `product(u, wide)` is u^T times the product at every depth, `(L + 1, d)`, formed in float64 if `wide`.
    seen, u, name = None, _random(trace.d_model), trace.model.name
    for dtype in _arithmetics(trace.model.hf):
        # Skips kernels without float64, and graphs that exceed memory.
        with suppress(RuntimeError, MemoryError, TypeError, ValueError):
            seen = differentiated(trace, dtype)
            break
    if seen is None:
        return _refuse_by_perturbation(trace)
    tolerance = max(TOLERANCE.get(call.output.dtype, 0.0) for call in trace.calls)
    rows = _at_token(seen, u, token)
    own = rows[:, token]
    # A path back to the token leads through an earlier token or through a later one.
    later = float((rows[:, token + 1 :].norm(dim=(1, 2)) / rows.norm(dim=(1, 2))).max())
    if not (ahead := max(later, _from_later(seen, token, slice(token, token + 1)))) <= tolerance:
        raise _bidirectional(name, ahead)
    # A known side path makes the tolerance stricter. Rounding in float32 refuses nothing: a large difference is
    # checked again in float64.
    tolerance *= _STRICTER if seen.beside else 1
    for wide in (False, True):
        far = float(((product(u, wide).to(own) - own).norm(dim=-1) / own.norm(dim=-1)).max())
        if far <= tolerance:
            return None
    raise _beside(name, seen.beside, f"is {far:.2g} of its length away from the derivative of the whole model")


def refuse_bidirectional(seen: Pass, name: str) -> None:
    """Refuse a model in which later tokens reach earlier ones, at the sequence length of a trace."""
    half = seen.streams[0].shape[1] // 2
    if not (ahead := _from_later(seen, half, slice(half, None))) <= TOLERANCE[torch.float32]:
        raise _bidirectional(name, ahead)


def _from_later(seen: Pass, before: int, after: slice) -> float:
    """Return the influence of some tokens on all tokens before a position, relative to a token's mean influence."""
    # All rows get the same cotangent: a token's influence on each of them falls with their number, its total influence
    # does not.
    if before == 0:
        return 0.0
    cotangent = torch.zeros_like(seen.streams[-1])
    cotangent[0, :before] = _random(cotangent.shape[-1]).to(cotangent)
    (row,) = seen.pulled_back(cotangent, seen.streams[:1])
    return float(row[0, after].square().mean().sqrt() / row.square().mean().sqrt())


def _bidirectional(name: str, ahead: float) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name} is bidirectional: later tokens make {ahead:.1%} of the derivative of earlier ones: what leaves "
        "a token comes back through others; a lens is for causal decoders"
    )


def _beside(name: str, arguments: Collection[str], how: str) -> UnsupportedModelError:
    what = ", ".join(map(repr, sorted(arguments))) or "something"
    return UnsupportedModelError(
        f"{name} hands on {what} from block to block beside its stream, and so the product of its blocks' own maps "
        f"{how}; cl.lens(trace, targets='later') differentiates the whole model"
    )


def _random(d: int) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _at_token(seen: Pass, u: Tensor, token: int) -> Tensor:
    """Pull a cotangent of one token's last state back to every stream, `(L + 1, n, d)`."""
    cotangent = torch.zeros_like(seen.streams[-1])
    cotangent[0, token] = u.to(cotangent)
    return torch.cat([row.to(cotangent.device) for row in seen.pulled_back(cotangent, seen.streams)])


def _arithmetics(hf: PreTrainedModel) -> list[torch.dtype]:
    """Return the dtypes in which the whole model can be differentiated, the best first."""
    own, size = storage.arithmetic(hf), sum(weight.numel() for weight in hf.parameters())
    if storage.on_disk(hf):
        return []
    # A copy runs without a `forward` that users set on its modules.
    wide = [torch.float64] if size <= _SMALL and not modifications(hf) else []
    as_it_is = not storage.in_few_bits(hf) and all(weight.dtype == own for weight in hf.parameters())
    fits = as_it_is or size * own.itemsize <= _SHARE * available(hf.device)
    return list(dict.fromkeys(wide + [own] * fits))


@exclusive
@torch.no_grad()
def _refuse_by_perturbation(trace: Traced) -> None:
    """Refuse, by two passes without a graph, a model whose blocks hand on more than their stream, or look ahead."""
    hf, name = trace.model.hf, trace.model.name
    # int8 layers search for outliers in all tokens at once.
    least = max(_MOVED, _ROUNDINGS * torch.finfo(hf.dtype).eps, _QUANTISED * storage.in_few_bits(hf))
    before = _perturbed(trace)
    after = _perturbed(trace, before[0].stream)
    half = before[0].input.shape[1] // 2
    if half:
        first = ((a.output[0, :half].float(), b.output[0, :half].float()) for a, b in zip(before, after, strict=True))
        if not (ahead := max(float((a - b).norm() / a.norm()) for a, b in first)) <= least:
            raise _bidirectional(name, ahead)
    changed = {
        key
        for a, b in zip(before, after, strict=True)
        for key, value in a.arguments.items()
        if (one := _checksum(value)) is not None and (other := _checksum(b.arguments.get(key))) is not None
        if one.shape != other.shape or not float((one - other).abs().max()) <= least * float(one[1::2].max())
    }
    if changed:
        raise _beside(name, changed, "is not the derivative of the whole model")


def _perturbed(trace: Traced, moved: str = "") -> list[BlockCall]:
    """Run a model with the second half of its first block's stream, the argument `moved`, perturbed or not."""

    def move(block: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        stream = args[0] if args else kwargs[moved]
        noise = torch.randn(stream.shape, generator=torch.Generator().manual_seed(1)).to(stream)
        noise[:, : stream.shape[1] // 2] = 0
        changed = stream + noise * stream.norm() / stream.numel() ** 0.5
        return ((changed, *args[1:]), kwargs) if args else (args, kwargs | {moved: changed})

    with restored(trace.model.hf), ExitStack() as hooks:
        if moved:
            hooks.enter_context(trace.blocks.modules[0].register_forward_pre_hook(move, with_kwargs=True))
        return passed(trace.model.hf, trace.blocks, trace.inputs)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of an argument, in whatever container."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | PreTrainedConfig | type):
        yield from _tensors(vars(value))


def _checksum(value: Any) -> Tensor | None:
    """Return a checksum of an argument's numbers: their product with a wave, and their norm; None without numbers."""
    found = []
    for leaf in _tensors(value):
        if leaf.is_floating_point() and leaf.numel():
            flat = leaf.detach().double().flatten().nan_to_num(0.0, 0.0, 0.0)
            flat = flat * (flat.abs() < torch.finfo(leaf.dtype).max / 2)  # masked entries
            found += [flat @ torch.arange(len(flat), device=flat.device).cos().to(flat), flat.norm()]
    return torch.stack(found).cpu() if found else None
