"""Emergence: the measurements of depth and trajectories, repeated at several steps of a model's training."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import xarray as xr
from tqdm import tqdm

from coupling_lib.datasets.parts import known_shared_part
from coupling_lib.inputs.prompt_arguments import Prompts, inputs_for, prompt_inputs
from coupling_lib.measures.common import check_ks, check_pairs
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.random_bases import null_of
from coupling_lib.measures.trajectories import SCORES, measure_trajectories
from coupling_lib.metrics.variants import chosen_variants
from coupling_lib.models.checkpoints import choose_steps, progress
from coupling_lib.models.load import load_model
from coupling_lib.store.sweep import sweep

TRAJECTORY = (*SCORES, "norm", "window_line_shape_score", "window_expodistance")
"""Variables of `measure_trajectories` that are kept at each step."""


def measure_emergence(
    name: str | Path,
    prompts: Prompts,
    steps: Sequence[int] | None = None,
    precision: str = "float32",
    ks: Sequence[int] = (10,),
    token: int = -1,
    window: int = 0,
    seed: int = 0,
    variant: str = "normalized_miscoupling",
    memory: str | int | None = None,
) -> xr.Dataset:
    """Measure one model at several steps of its training, one in memory at a time (paper, figures 1b to 1e, 27 to 30).

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
        memory: maximum memory of the weights, see `load_model`.

    Returns:
        a dataset with dimension `step`, in order of training, before the dimensions of its variables: all variables of
        `measure_depth` but matrices, and `TRAJECTORY` of `measure_trajectories`; `null` and `null_error`
        `(step, k)`: `null_of` the variant, since the spectrum itself changes in training, and of the traceless part
        `shared_null` and `shared_null_error`, where the variant is one of `datasets.parts`;
        `progress` `(step,)`: validation loss or benchmark accuracy, as the attribute `progress_label` says, or NaN.

    Raises:
        ParameterError: if steps are repeated or do not exist, the model has one block, or as in `measure_depth`.
        ModelUnavailableError: if the model has one revision only, or a revision is unavailable.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_emergence("nano-neox", ["It was the best of times"], steps=(0, 1000))
        >>> dict(ds.normalized_miscoupling.sizes)
        {'step': 2, 'prompt': 1, 'k': 1, 'block_1': 12, 'block_2': 12}
    """
    given = prompt_inputs(prompts)
    if isinstance(steps, Iterable) and not isinstance(steps, str):
        steps = ",".join(map(str, steps))
    chosen = choose_steps(name, "" if steps is None else steps)
    chosen_variants([variant])
    per_step = []
    for step in tqdm(chosen, desc=f"{name}: steps", unit="step", disable=None, leave=False):
        model = load_model(name, revision=f"step{step}", precision=precision, memory=memory)
        check_pairs(model)
        inputs = inputs_for(model, given, seed=seed)
        depth = sweep(measure_depth, model, inputs, ks=tuple(check_ks(model, ks)), token=token)
        paths = sweep(measure_trajectories, model, inputs, token=token, window=window)
        del model  # before the next one is loaded
        measured = depth.drop_vars(["matrix", "shared_matrix"], errors="ignore")
        measured = measured.assign({name: paths[name] for name in TRAJECTORY})
        for prefix, part in (("", depth), ("shared_", known_shared_part(depth, variant))):
            if part is not None:
                null = null_of(part, variant, seed=seed).mean("block_1")
                measured = measured.assign({f"{prefix}null": null["value"], f"{prefix}null_error": null["error"]})
        per_step.append(measured.assign_attrs(window=paths.attrs["window"]))
    known = progress(name)
    ds = xr.concat(per_step, dim="step", combine_attrs="override").assign_coords(step=list(chosen))
    ds["progress"] = ("step", [known.values.get(step, float("nan")) for step in chosen])
    revisions = ", ".join(f"step{step}" for step in chosen)
    attributes = {"revision": revisions, "variant": variant, "progress_label": known.label, "seed": seed}
    return ds.assign_attrs(measure="emergence", **attributes)
