"""Spectra: the singular values of block Jacobians across depth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import xarray as xr

from coupling_lib.measures.common import (
    check_k,
    depth_jacobians,
    prompt_inputs,
    prompt_name,
    traces,
)
from coupling_lib.metrics.spectrum import left_right_alignment
from coupling_lib.models import Model
from coupling_lib.provenance import provenance
from coupling_lib.svd import top_triplets_stacked


def measure_spectra(
    model: Model, prompts: str | torch.Tensor | Iterable[Any], k: int = 15, token: int = -1
) -> xr.Dataset:
    """Measure the top singular values of every block's Jacobian J_tt (paper, figures 33 and 34).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        k: number of singular values.
        token: the position t; -1 is the last.

    Returns:
        a dataset with `singular_values` `(prompt, block, rank)`; `stable_rank` `(prompt, block)`, which is
        norm_F(J)^2 / s_1^2; and `left_right_alignment` `(prompt, block)` of U_K with V_K.

    Raises:
        ParameterError: if `k` exceeds the width, a token does not exist, or there is no prompt.
    """
    given = prompt_inputs(prompts)
    check_k(model, k)
    per_prompt = []
    for traced in traces(model, given):
        J = depth_jacobians(traced, token)
        triplets = top_triplets_stacked(J, k)
        stable_rank = (torch.linalg.matrix_norm(J) / triplets.S[:, 0]) ** 2
        per_prompt.append(
            xr.Dataset(
                {
                    "singular_values": (("block", "rank"), triplets.S.cpu().numpy()),
                    "stable_rank": (("block",), stable_rank.cpu().numpy()),
                    "left_right_alignment": (("block",), left_right_alignment(triplets.U, triplets.Vh).cpu().numpy()),
                }
            )
        )
    ds = xr.concat(per_prompt, dim="prompt").assign_coords(
        block=range(model.n_blocks), prompt=[prompt_name(prompt) for prompt in given]
    )
    ds.attrs = provenance(model, given, measure="spectra", k=k, token=token, route=traced.route)
    return ds
