"""Trajectories: the residual stream of one token from block to block, and its next-token prediction at each depth.

The *logit lens* reads the next token from the stream at each depth, as if the model ended there. `entropy` is that of
softmax(W x^l), the paper's formula, with the unembedding W (and its bias, if any); `entropy_normed` is that of
softmax(W N(x^l)) with the final norm N first, at the last depth the model's own prediction up to a constant factor or
a soft cap that a few models put on their logits.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn import functional

from coupling_lib.errors import UnsupportedModelError
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.metrics import trajectory
from coupling_lib.metrics.trajectory import FORMULAS, STATES, principal_paths, score_all, score_or_nan
from coupling_lib.models.model import Model
from coupling_lib.store.sweep import sweep

SCORES = ("line_shape_score", "expodistance", "equidistance")
"""The three scores of a trajectory, on the states that the network visits."""

COMPONENTS = 2

# Rows of the unembedding that are converted to float32 at a time, to bound memory.
_ROWS = 8192


@common.measurement(version=3)
def measure_trajectories(model: Model, prompts: common.Prompts, token: int = -1, window: int = 0) -> xr.Dataset:
    """Measure how straight, how evenly spaced and how exponential token trajectories are (paper, section 2.2).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        token: the position that is followed; -1 is the last.
        window: number of blocks of a window, odd; 0 for the paper's 11, or half of a model that is not deep enough.

    Returns:
        a dataset, levels from 0 (the input of the first block) to L, blocks from 0, with

        - `line_shape_score`, `expodistance` and `equidistance` `(prompt,)`, from $x^0$ to the last block's own output
          $x^L$, and `readings` `(prompt, states, reading)`, the same in every reading of `metrics.trajectory`; NaN
          where a score does not exist;
        - `norm` `(prompt, level)` of the states and `step_length` `(prompt, block)`, in units of the stream;
        - `window_line_shape_score`, `window_expodistance` and `window_equidistance` `(prompt, centre)`, of each run
          of `window` blocks by its middle block;
        - `entropy` and `entropy_normed` `(prompt, level)` in nats; left out for a model that has no next token, and the
          attribute `entropy_missing` gives the reason;
        - `path` `(level, position, component)` and `path_share` `(component,)`: the first prompt's tokens, special ones
          left out, in the principal components of their last states; for three tokens or more.

    Raises:
        ParameterError: if a token does not exist, the window does not fit the model, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_trajectories(cl.load_model("nano-neox"), ["It was the best of times"])
        >>> dict(ds.norm.sizes), bool(ds.line_shape_score >= 1)
        ({'prompt': 1, 'level': 13}, True)
    """
    given, missing = prompt_inputs(prompts, model), ""
    width, n_blocks = trajectory.window_width(model.n_blocks, window), model.n_blocks

    def each() -> Iterator[common.Variables]:
        nonlocal missing
        for number, traced in enumerate(common.traces(model, given)):
            variables = _scores(traced, token, width) | (_paths(traced) if number == 0 else {})
            try:
                entropies, missing = logit_lens_entropies(traced, token), ""
            except UnsupportedModelError as reason:
                entropies, missing = {}, str(reason)
            yield variables | {name: ("level", values) for name, values in entropies.items()}

    levels, centres = range(n_blocks + 1), [start + width // 2 for start in range(n_blocks - width + 1)]
    coords = {"level": levels, "block": range(n_blocks), "centre": centres}
    coords |= {"states": list(STATES), "reading": list(FORMULAS)}
    details = {"measure": "trajectories", "token": token, "window": width}
    ds = common.concat_prompts(model, given, each(), coords, ["path", "path_share", "path_token"], **details)
    return ds.assign_attrs(entropy_missing=missing)


def compare_trajectories(
    names: Sequence[str],
    prompts: Iterable[Any],
    precision: str = "float32",
    revision: str | None = None,
    token: int = -1,
    window: int = 0,
    seed: int = 0,
    memory: str | int | None = None,
) -> dict[str, dict[str, xr.Dataset]]:
    """Measure several models, each untrained and trained, with one of them in memory at a time."""
    measured = partial(sweep, measure_trajectories, token=token, window=window)
    return common.both_networks(measured, names, prompts, seed, precision=precision, revision=revision, memory=memory)


def _scores(traced: Trace, token: int, width: int) -> common.Variables:
    """Return all variables that depend on the states of one token alone."""
    states = traced.hidden[:, traced.position(token)]
    try:
        with torch.no_grad():
            normed = traced.final_norm(states[-1]).cpu()
    except UnsupportedModelError:
        normed = None
    x = states.cpu()
    windows = trajectory.block_windows(x, width)
    variables: common.Variables = {
        "readings": (("states", "reading"), score_all(x, normed)),
        "norm": ("level", trajectory.norms(x)),
        "step_length": ("block", trajectory.step_lengths(x)),
    }
    for name in SCORES:
        score = FORMULAS[name]
        variables[name] = score_or_nan(score, x)
        variables[f"window_{name}"] = ("centre", [score_or_nan(score, part) for part in windows])
    return variables


def logit_lens_entropies(traced: Trace, token: int = -1) -> dict[str, Tensor]:
    """Return the entropy of the logit lens's next-token distribution at each depth (paper, figure 26)."""
    hf, position = traced.model.hf, traced.position(token)
    x, head = traced.hidden[:, position], hf.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if not isinstance(head, nn.Module) or weight is None:
        raise UnsupportedModelError(f"{type(hf).__name__} has no unembedding, so its states give no next token")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1]:
        raise UnsupportedModelError(
            f"the unembedding of {type(hf).__name__} has shape {tuple(weight.shape)} and does not read a stream "
            f"of width {x.shape[1]}"
        )
    with torch.no_grad():
        logits = {"entropy": _logits(head, x), "entropy_normed": _logits(head, traced.final_norm(x))}
        own = hf(**traced.inputs).logits[0, position].to(x)
    # Some models transform states once more; up to a factor or a cap, these are the model's own logits.
    agreement = float(torch.corrcoef(torch.stack([logits["entropy_normed"][-1], own]))[0, 1])
    if not agreement > 0.99:
        raise UnsupportedModelError(
            f"{type(hf).__name__} does not predict by its unembedding alone (correlation {agreement:.2f} with its own "
            "logits), so its states give no next token"
        )
    return {name: trajectory.logit_entropy(values) for name, values in logits.items()}


def _logits(head: nn.Module, x: Tensor) -> Tensor:
    parts = [functional.linear(x, rows.to(x.device, x.dtype)) for rows in head.weight.split(_ROWS)]
    bias = getattr(head, "bias", None)
    return torch.cat(parts, dim=-1) + (0 if bias is None else bias.to(x.device, x.dtype))


def _paths(traced: Trace) -> common.Variables:
    """Return the tokens of a prompt in the plane of their last states."""
    # A token without text, such as one that begins every prompt, often has a norm far above all others
    # and would dominate the plane.
    tokenizer, ids = traced.model.tokenizer, traced.inputs.get("input_ids")
    special = set() if tokenizer is None or ids is None else set(tokenizer.all_special_ids)
    kept = [at for at in range(traced.n_tokens) if ids is None or int(ids[0, at]) not in special]
    if len(kept) <= COMPONENTS:
        return {}
    # So has the first token of some models, an attention sink; ten times the median is far from both.
    states = traced.hidden[:, kept].cpu()
    norms = torch.linalg.vector_norm(states, dim=-1)
    near = (norms <= 10 * norms.median(dim=1, keepdim=True).values).all(dim=0)
    near |= near.sum() <= COMPONENTS  # all of them if too few remain
    path = principal_paths(states[:, near], COMPONENTS)
    coordinates = path.coordinates.new_full((*states.shape[:2], COMPONENTS), torch.nan)
    coordinates[:, near] = path.coordinates
    texts = [str(at) if traced.tokens is None else traced.tokens[at] for at in kept]
    return {
        "path": (("level", "position", "component"), coordinates),
        "path_share": ("component", path.share),
        "path_token": ("position", np.array(texts, dtype=str)),
    }
