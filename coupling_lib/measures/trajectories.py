"""Trajectories: how the residual stream of one token moves from block to block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from coupling_lib.errors import UnsupportedModelError
from coupling_lib.inputs.given import inputs_for, prompt_inputs, prompt_name
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures.frame import measurement, traces
from coupling_lib.measures.logit_lens import logit_lens_entropies
from coupling_lib.metrics import trajectory
from coupling_lib.metrics.trajectory import READINGS, STATES, measure_readings, principal_paths, score_or_nan
from coupling_lib.models.load import Model, load_model
from coupling_lib.provenance import provenance
from coupling_lib.store.sweep import sweep

SCORES = ("line_shape_score", "expodistance", "equidistance")
"""The three numbers that sum up a trajectory, in their default reading."""

COMPONENTS = 2


@measurement(version=2)
def measure_trajectories(
    model: Model, prompts: str | torch.Tensor | Iterable[Any], token: int = -1, window: int = 0
) -> xr.Dataset:
    r"""Measure how straight, how evenly spaced and how exponential token trajectories are (paper, section 2.2).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        token: the position that is followed; -1 is the last.
        window: number of blocks of a window, odd; 0 for the paper's 11, or half of a model that is not deep enough.

    Returns:
        a dataset, levels from 0 (what enters the first block) to L, blocks from 0, with

        - `line_shape_score`, `expodistance` and `equidistance` `(prompt,)`, from the embedding $x^0$ to the last
          block's own output $x^L$, and `readings` `(prompt, states, reading)`, the same in every reading of
          `metrics.trajectory`; NaN where a score does not exist, as the expodistance of a stream whose norm
          is kept constant;
        - `norm` `(prompt, level)` of the states and `step_length` `(prompt, block)`, in units of the stream;
        - `window_line_shape_score`, `window_expodistance` and `window_equidistance` `(prompt, centre)`, of each run
          of `window` blocks by its middle block;
        - `entropy` and `entropy_normed` `(prompt, level)` in nats, see `measures.logit_lens`; left out for a model
          that has no next token, and the attribute `entropy_missing` says why;
        - `path` `(level, position, component)` and `path_share` `(component,)`: the tokens of the first prompt in
          the principal components of their last states, without special tokens; left out of prompts with fewer
          than three tokens.

    Raises:
        ParameterError: if a token does not exist, the window does not fit the model, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_trajectories(cl.load_model("nano-neox"), ["It was the best of times"])
        >>> dict(ds.norm.sizes), bool(ds.line_shape_score >= 1)
        ({'prompt': 1, 'level': 13}, True)
    """
    given = prompt_inputs(prompts)
    width = trajectory.window_width(model.n_blocks, window)
    per_prompt, paths, missing = [], {}, ""
    for number, traced in enumerate(traces(model, given)):
        x = traced.hidden[:, traced.position(token)]
        entropies, missing = _entropies(traced, token)
        per_prompt.append(_measured(x.cpu(), _normed(traced, x), width).assign(entropies))
        if number == 0:
            paths = _paths(traced)
    ds = xr.concat(per_prompt, dim="prompt").assign(paths)
    ds = ds.assign_coords(
        prompt=[prompt_name(prompt) for prompt in given],
        level=range(model.n_blocks + 1),
        block=range(model.n_blocks),
        centre=[start + width // 2 for start in range(model.n_blocks - width + 1)],
        states=list(STATES),
        reading=list(READINGS),
    )
    ds.attrs = provenance(
        model, given, measure="trajectories", token=token, window=width, entropy_missing=missing, route=traced.route
    )
    return ds


def compare_trajectories(
    names: Sequence[str],
    prompts: Iterable[Any],
    precision: str = "float32",
    revision: str | None = None,
    token: int = -1,
    window: int = 0,
    seed: int = 0,
) -> dict[str, dict[str, xr.Dataset]]:
    """Measure several models, each untrained and trained, with one of them in memory at a time.

    Args:
        names: aliases, Hugging Face ids or folders.
        prompts: texts or `Prompt` objects; a model without a tokenizer gets random inputs instead.
        precision: see `load_model`.
        revision: see `load_model`; of the first model only, the others are taken at their newest.
        token: see `measure_trajectories`.
        window: see `measure_trajectories`.
        seed: seed of the untrained weights and of random inputs.

    Returns:
        for each name the datasets `"untrained"` and `"trained"` of `measure_trajectories`.

    Raises:
        ParameterError: see `load_model` and `measure_trajectories`.
    """
    prompts, found = list(prompts), {}
    for number, name in enumerate(names):
        found[name] = {}
        for role in ("untrained", "trained"):
            model = load_model(
                name,
                precision=precision,
                revision=None if number else revision,
                untrained=role == "untrained",
                seed=seed,
            )
            given = inputs_for(model, prompts, seed=seed)
            found[name][role] = sweep(measure_trajectories, model, given, token=token, window=window)
            del model
    return found


def _measured(x: torch.Tensor, normed: torch.Tensor | None, width: int) -> xr.Dataset:
    """Give everything that the states of one token say by themselves."""
    windows = trajectory.block_windows(x, width)
    windowed = {
        f"window_{name}": ("centre", [score_or_nan(getattr(trajectory, name), part) for part in windows])
        for name in SCORES
    }
    return xr.Dataset(
        {name: score_or_nan(getattr(trajectory, name), x) for name in SCORES}
        | {"readings": (("states", "reading"), measure_readings(x, normed).numpy())}
        | {"norm": ("level", trajectory.norms(x).numpy()), "step_length": ("block", trajectory.step_lengths(x).numpy())}
        | windowed
    )


def _normed(traced: Trace, x: torch.Tensor) -> torch.Tensor | None:
    try:
        with torch.no_grad():
            return traced.final_norm(x[-1]).cpu()
    except UnsupportedModelError:
        return None


def _entropies(traced: Trace, token: int) -> tuple[dict[str, Any], str]:
    try:
        entropies = logit_lens_entropies(traced, token)
    except UnsupportedModelError as reason:
        return {}, str(reason)
    return {name: ("level", values.cpu().numpy()) for name, values in entropies.items()}, ""


def _paths(traced: Trace) -> dict[str, Any]:
    """Give the tokens of a prompt in the plane of their last states."""
    # A token that stands for no text, such as one that begins every prompt, often has a norm far above all others
    # and would turn the plane towards itself.
    tokenizer, ids = traced.model.tokenizer, traced.inputs.get("input_ids")
    special = set() if tokenizer is None or ids is None else set(tokenizer.all_special_ids)
    kept = [at for at in range(traced.n_tokens) if ids is None or int(ids[0, at]) not in special]
    if len(kept) <= COMPONENTS:
        return {}
    path = principal_paths(traced.hidden[:, kept], COMPONENTS)
    texts = [str(at) if traced.tokens is None else traced.tokens[at] for at in kept]
    return {
        "path": (("level", "position", "component"), path.coordinates.numpy()),
        "path_share": ("component", path.share.numpy()),
        "path_token": ("position", np.array(texts, dtype=str)),
    }
