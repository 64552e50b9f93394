r"""Comparison of lenses by their readouts at each depth, and a test of the derivative by interventions.

A lens maps the state $x^l$ of depth $l$ to the last depth's coordinates, where the model's final norm and
unembedding turn it into a distribution $q$ over tokens. Its distance from the model's own prediction $p$ is
$\mathrm{KL}(p \Vert q)$. All but the first two are fitted on other texts than those that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import xarray as xr
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

import coupling_lib as cl
from coupling_lib.blocks.call import residual_stream
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.jacobian.lens import Lens
from coupling_lib.measures import common
from coupling_lib.store.key import fingerprint

LENSES = {
    "logit lens": "the state as it is",
    "own lens": "times the derivative of the last state at this very token",
    "mean lens": "times that derivative averaged over tokens of other texts",
    "lens with futures": "the same, with what a token does to all later ones added",
    "affine fit": "times a matrix, and a constant, that predict the last state best on other texts",
    "no state": "nothing but the mean last state of other texts: what a lens says without looking",
}
"""The compared lenses, and what each does to a state before it is read."""

# An attention sink: the state at the first position of a text is unlike all others.
_FIRST = 1
# Share of a coordinate's mean square that the ridge penalty adds: few texts determine few directions.
_RIDGE = 0.1
# Sizes of an intervention, as shares of the state's norm, and the number of directions of each.
_STEPS, _DIRECTIONS = (0.02, 0.01), 4


def other_texts(texts: Sequence[Any], count: int = 16) -> tuple[str, ...]:
    """Choose texts to fit lenses on: embedded prompts of all sets that are not among those to be read."""
    read = {getattr(text, "text", text) for text in texts if not isinstance(text, Tensor)}
    left = [prompt.text for prompt in cl.load_prompts() if prompt.text not in read]
    if len(left) < count:
        raise ParameterError(f"these prompts leave {len(left)} texts to fit on; {count} are needed, take fewer prompts")
    return tuple(left[at] for at in np.linspace(0, len(left) - 1, count).round().astype(int))


@cl.measurement(version=2)
def measure_readouts(model: cl.Model, prompts: common.Prompts, fitted_on: Sequence[str] = ()) -> xr.Dataset:
    """Read every depth of each prompt's last token through all lenses, and test the token's own by interventions."""
    given = prompt_inputs(prompts, model)
    if isinstance(fitted_on, str) or len(fitted_on) < 2:
        raise ParameterError("fitted_on holds fewer than two texts; give texts other than those that are read")
    try:
        weights = fingerprint(model)
    except ParameterError:  # a changed model, or one with hooks: its fits are not shared
        _fitted.cache_clear()
        weights = ""
    fits = _fitted(model, tuple(fitted_on), weights)
    each = (_of_one_prompt(traced, fits) for traced in common.traces(model, given))
    coords = {"lens": list(LENSES), "depth": range(model.n_blocks + 1), "block": range(model.n_blocks)}
    return common.concat_prompts(model, given, each, coords, measure="readouts", fitted_on=len(fitted_on))


def _of_one_prompt(traced: cl.Trace, fits: dict[str, tuple[Tensor, Tensor]]) -> common.Variables:
    lens = cl.lens(traced)
    lens.dense()
    x = traced.hidden[:, -1]
    states = {"logit lens": x, "own lens": lens.states()}
    states |= {name: torch.einsum("lij,lj->li", A, x) + b for name, (A, b) in fits.items()}
    logits = lens.head(torch.stack([states[name] for name in LENSES]))
    own = logits[0, -1].log_softmax(dim=-1)
    futures, mean = fits["lens with futures"][0], fits["mean lens"][0]
    distance = (own.exp() * (own - logits.log_softmax(dim=-1))).sum(dim=-1)
    return {
        "divergence": (("lens", "depth"), distance),
        "agrees": (("lens", "depth"), (logits.argmax(dim=-1) == own.argmax()).double()),
        "slope": (("block",), intervened_slopes(lens)),
        "futures_apart": (("depth",), torch.linalg.matrix_norm(futures - mean) / torch.linalg.matrix_norm(mean)),
    }


def words_of(lens: Lens, k: int = 3) -> xr.Dataset:
    """Return the k strongest tokens of one text at every depth, by the logit lens and its own lens."""
    trace, words, shares = lens.trace, [], []
    states = {"logit lens": trace.hidden[:, lens.token], "own lens": lens.states()}
    for state in states.values():
        found = lens.head(state).softmax(dim=-1).detach().topk(k)
        shares.append(found.values.cpu().numpy())
        words.append([[trace.model.tokenizer.decode([token]) for token in ids] for ids in found.indices.tolist()])
    dims = ("lens", "depth", "rank")
    coords = {"lens": list(states), "depth": range(trace.n_blocks + 1), "rank": range(1, k + 1)}
    data = {"token": (dims, np.array(words)), "probability": (dims, np.stack(shares))}
    return xr.Dataset(data, coords, {"model": trace.model.name})


@lru_cache(maxsize=1)
def _fitted(model: cl.Model, texts: tuple[str, ...], weights: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Fit the three lenses that are not a token's own: a matrix and a constant for every depth."""
    states, own, futures = [], [], []
    for text in texts:
        traced = cl.trace(model, text)
        tokens = range(_FIRST, traced.n_tokens)
        states.append(traced.hidden[:, _FIRST:])
        own.append(cl.measure_lens(model, [text], tokens=tokens).lens.values[0])
        futures.append(lens_with_futures(traced))
    nothing = states[0].new_zeros(model.n_blocks + 1, model.d_model)
    found = {
        "mean lens": (torch.from_numpy(np.mean(own, axis=0)).to(nothing), nothing),
        "lens with futures": (torch.stack(futures).mean(dim=0), nothing),
    }
    together = torch.cat(states, dim=1)
    constant = together[-1].mean(dim=0).expand_as(nothing)
    return found | {"affine fit": _affine(together), "no state": (torch.zeros_like(found["mean lens"][0]), constant)}


def _affine(states: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the last state by that of each depth, with a ridge penalty because of the few texts."""
    X = states.double().cpu().numpy()
    fits = [Ridge(alpha=_RIDGE * len(x) * float(np.var(x, axis=0).mean())).fit(x, X[-1]) for x in X]
    A, b = (np.stack([getattr(fit, name) for fit in fits]) for name in ("coef_", "intercept_"))
    return torch.from_numpy(A).to(states), torch.from_numpy(b).to(states)


def operations(model: cl.Model, tokens: int = 128) -> dict[str, float]:
    """Count floating-point operations: of one token's lens, and of the backward passes that fit one with futures."""
    # They depend on the number of tokens only; a text that begins with padding is refused.
    config = model.hf.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or tokens
    traced = cl.trace(model, torch.full((1, min(tokens, longest)), config.vocab_size // 2))
    with FlopCounterMode(display=False) as own:
        # Without the check of the whole model that `cl.lens` makes.
        Lens(traced, traced.n_tokens - 1).dense()
    seen = _differentiable_streams(traced)
    with FlopCounterMode(display=False) as passed:
        torch.autograd.grad(seen[-1].sum(), seen[0])
    fit = traced.d_model * passed.get_total_flops()
    found = {"own": own.get_total_flops(), "fit": fit, "ratio": fit / own.get_total_flops(), "tokens": traced.n_tokens}
    return {f"operations-{name}": float(value) for name, value in found.items()}


def lens_with_futures(traced: cl.Trace, batch: int = 16) -> Tensor:
    """Average over tokens the derivative of the sum of their own and all later last states, (L + 1, d, d)."""
    # This is the quantity that other programs call a Jacobian lens: for every coordinate of the last state a backward
    # pass through the whole model, here `batch` of them in parallel.
    seen = _differentiable_streams(traced)
    found = torch.zeros(traced.n_blocks + 1, traced.d_model, traced.d_model, dtype=traced.dtype)
    for rows in torch.arange(traced.d_model).split(batch):
        cotangents = torch.zeros(len(rows), *seen[-1].shape, dtype=traced.dtype)
        cotangents[torch.arange(len(rows)), :, _FIRST:, rows] = 1
        grads = torch.autograd.grad(seen[-1], seen, cotangents, retain_graph=True, is_grads_batched=True)
        found[:, rows] = torch.stack([grad[:, 0, _FIRST:].mean(dim=1) for grad in grads])
    return found


def _differentiable_streams(traced: cl.Trace) -> list[Tensor]:
    """Run the model again and return the stream at every depth, each a function of the first."""
    seen: list[Tensor] = []

    def begin(stream: Tensor) -> Tensor:
        seen.append(stream.detach().clone().requires_grad_(True))
        return seen[-1]

    def leave(block: nn.Module, args: tuple, output: Any) -> None:
        seen.append(residual_stream(output, seen[0].shape))

    blocks = traced.model.blocks.modules
    with ExitStack() as hooks, torch.enable_grad():
        hooks.enter_context(_input_hook(blocks[0], begin))
        for block in blocks:
            hooks.enter_context(block.register_forward_hook(leave))
        traced.model.hf(**traced.inputs)
    return seen


def _input_hook(block: nn.Module, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Change the stream at a block's input while the hook is registered."""

    def enter(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

    return block.register_forward_pre_hook(enter, with_kwargs=True)


@torch.no_grad()
def intervened_slopes(lens: Lens) -> Tensor:
    """Compare changes of the logits with the lens's prediction, by depth: 1 where it is their derivative."""
    traced, token = lens.trace, lens.token
    x, blocks, head, found = traced.hidden[:, token], list(traced.model.blocks.modules), lens.head, []
    generator, given = torch.Generator().manual_seed(0), {}
    directions = [torch.randn(_DIRECTIONS, traced.d_model, generator=generator).to(x) for _ in blocks]
    # From the last block on: the outputs of blocks before the changed one are the same in every pass.
    for depth in reversed(range(len(blocks))):
        v = directions[depth]
        v *= x[depth].norm() / v.norm(dim=-1, keepdim=True)
        steps = torch.cat([sign * size * v for size in _STEPS for sign in (1, -1)])
        inputs = {name: value.expand(len(steps), *value.shape[1:]) for name, value in traced.inputs.items()}

        def stepped(stream: Tensor, steps: Tensor = steps) -> Tensor:
            stream = stream.clone()
            stream[:, token] += steps.to(stream)
            return stream

        with _input_hook(blocks[depth], stepped), _cached_outputs(blocks[:depth], given):
            ends = traced.model.hf(**inputs).logits[:, token].double().chunk(4)
        # Terms of second order in the step cancel; smaller steps would be limited by the rounding of the logits.
        whole, half = ((up - down) / (2 * size) for up, down, size in zip(ends[::2], ends[1::2], _STEPS, strict=True))
        moved = (4 * half - whole) / 3
        predicted = torch.func.vmap(lambda u: torch.func.jvp(head, (x[-1],), (u,))[1])(v @ lens[depth].T).double()
        found.append((moved * predicted).sum() / (predicted * predicted).sum())
    return torch.stack(found[::-1])


@contextmanager
def _cached_outputs(blocks: Sequence[nn.Module], given: dict[nn.Module, Any]) -> Generator[None]:
    """Run each block once, and return its output again at every later call."""

    def once(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if block not in given:
            given[block] = forward(*args, **kwargs)
        return given[block]

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(patch.object(block, "forward", partial(once, block, block.forward)))
        yield
