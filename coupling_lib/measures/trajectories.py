"""Trajectories: how the residual stream of one token moves from block to block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import xarray as xr

from coupling_lib.measures.common import prompt_inputs, prompt_name, traces
from coupling_lib.metrics import trajectory
from coupling_lib.models import Model
from coupling_lib.provenance import provenance


def measure_trajectories(model: Model, prompts: str | torch.Tensor | Iterable[Any], token: int = -1) -> xr.Dataset:
    """Measure how straight and how evenly spaced token trajectories are (paper, section 2.2).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        token: the position that is followed; -1 is the last.

    Returns:
        a dataset with `line_shape_score`, `expodistance` and `equidistance` `(prompt,)`, and `norm`
        `(prompt, level)` of x^0 .. x^L, all at the blocks' own boundaries and with the embedding x^0.

    Raises:
        ParameterError: if a token does not exist, or there is no prompt.
    """
    given = prompt_inputs(prompts)
    per_prompt = []
    for traced in traces(model, given):
        x = traced.hidden[:, traced.position(token)].cpu()
        scores = {
            name: float(getattr(trajectory, name)(x)) for name in ("line_shape_score", "expodistance", "equidistance")
        }
        per_prompt.append(xr.Dataset({**scores, "norm": ("level", trajectory.norms(x).numpy())}))
    ds = xr.concat(per_prompt, dim="prompt").assign_coords(
        level=range(model.n_blocks + 1), prompt=[prompt_name(prompt) for prompt in given]
    )
    ds.attrs = provenance(model, given, measure="trajectories", token=token, route=traced.route)
    return ds
