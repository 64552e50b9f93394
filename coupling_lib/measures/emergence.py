"""Emergence: the measurements of depth and trajectories, repeated at several steps of a model's training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from tqdm import tqdm

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.given import inputs_for
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.random_bases import null_of
from coupling_lib.measures.trajectories import SCORES, measure_trajectories
from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.models.checkpoints import choose_steps, progress
from coupling_lib.models.load import load_model
from coupling_lib.store.sweep import sweep

TRAJECTORY = (*SCORES, "norm", "window_line_shape_score", "window_expodistance")
"""What is kept of `measure_trajectories` at each step."""


def measure_emergence(
    name: str | Path,
    prompts: str | torch.Tensor | Iterable[Any],
    steps: Sequence[int] | None = None,
    precision: str = "float32",
    ks: Sequence[int] = (10,),
    token: int = -1,
    window: int = 0,
    seed: int = 0,
    variant: str = "normalized_miscoupling",
    memory: str | int | None = None,
) -> xr.Dataset:
    """Measure one model at several steps of its training (paper, figures 1b to 1e and 27 to 30).

    One step is in memory at a time. Each step goes through `sweep`, so that a measurement that was broken off goes on
    where it stopped.

    Args:
        name: alias, Hugging Face id or local folder of a model with revisions called "stepN".
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects; the same at every step.
        steps: training steps; None for those of `checkpoints.choose_steps`.
        precision: how the weights are stored, see `load_model`.
        ks: numbers of singular vectors K, each from 1 to the width.
        token: the position t; -1 is the last.
        window: number of blocks of a window, see `measure_trajectories`.
        seed: seed of the null, and of random inputs where the model has no tokenizer.
        variant: the mismatch whose null is given, a name of `metrics.variants.VARIANTS`.
        memory: the most that weights may take, see `load_model`.

    Returns:
        a dataset with dimension `step`, in order of training, and

        - every variant `(step, prompt, k, block_1, block_2)` of `measure_depth`, with its `singular_values`
          and `frobenius_norm`;
        - `null` `(step, k)`: the mean of `variant` for random orthogonal bases with that step's singular values,
          since the spectrum itself changes in training; `null_error`, its standard error;
        - `line_shape_score`, `expodistance` and `equidistance` `(step, prompt)`, `norm` `(step, prompt, level)`,
          `window_line_shape_score` and `window_expodistance` `(step, prompt, centre)` of `measure_trajectories`;
        - `progress` `(step,)`: validation loss or benchmark accuracy, NaN where it is not known; the attribute
          `progress_label` says which.

    Raises:
        ParameterError: if steps are given twice or do not exist, the model has one block, or for the reasons of
            `measure_depth`.
        ModelUnavailableError: if the model has one revision only, or a revision cannot be had.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_emergence("nano-neox", ["It was the best of times"], steps=(0, 1000))
        >>> dict(ds.normalized_miscoupling.sizes)
        {'step': 2, 'prompt': 1, 'k': 1, 'block_1': 12, 'block_2': 12}
    """
    given = prompts if isinstance(prompts, str | torch.Tensor) else list(prompts)
    chosen = choose_steps(name, "" if steps is None else ",".join(map(str, steps)))
    per_step = []
    for step in tqdm(chosen, desc=f"{name}: steps", unit="step", disable=None, leave=False):
        measured = _one_step(
            name, step, given, {"precision": precision, "memory": memory}, tuple(ks), token, window, seed
        )
        null = null_of(measured, variant, seed=seed).mean("block_1")
        per_step.append(measured.assign(null=null["value"], null_error=null["error"]))
    known = progress(name)
    ds = xr.concat(per_step, dim="step", combine_attrs="override").assign_coords(step=list(chosen))
    ds["progress"] = ("step", [known.values.get(step, float("nan")) for step in chosen])
    revisions = ", ".join(f"step{step}" for step in chosen)
    noted = {"revision": revisions, "variant": variant, "progress_label": known.label, "seed": seed}
    return ds.assign_attrs(measure="emergence", **noted)


def _one_step(
    name: str | Path,
    step: int,
    prompts: Any,
    loading: dict[str, Any],
    ks: tuple[int, ...],
    token: int,
    window: int,
    seed: int,
) -> xr.Dataset:
    """Measure one revision; its weights are gone when this returns."""
    model = load_model(name, revision=f"step{step}", **loading)
    if model.n_blocks < 2:
        raise ParameterError(f"{model.name} has 1 block; coupling across depth needs two or more, take a deeper model")
    given = inputs_for(model, prompts, seed=seed)
    depth = sweep(measure_depth, model, given, ks=ks, token=token)
    paths = sweep(measure_trajectories, model, given, token=token, window=window)
    kept = [variable for variable in (*VARIANTS, "singular_values", "frobenius_norm") if variable in depth]
    return depth[kept].assign({name: paths[name] for name in TRAJECTORY}).assign_attrs(window=paths.attrs["window"])
