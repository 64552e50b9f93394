"""Coupling across depth: every block's Jacobian against every other block's singular vectors.

For one token position t of one prompt, the blocks have Jacobians J^1 .. J^L and singular vectors
U_l, V_l. The coupling matrix A_{l l'} = U_{l',K}^T J^l V_{l',K} is diagonal where the top singular vectors
of block l' diagonalise the Jacobian of block l. `measure_depth` gives every variant of the distance from
diagonal for all pairs; `depth_null` draws what the same numbers are when there is no coupling at all;
`depth_summary` condenses a measurement to a mean with its interval; `measure_models` repeats it for further models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.given import inputs_for, prompt_inputs, prompt_name
from coupling_lib.measures.frame import batched, check_k, jacobians_by_prompt, measurement
from coupling_lib.measures.random_bases import null_draws
from coupling_lib.metrics.coupling import coupling_matrices
from coupling_lib.metrics.nulls import DRAWS
from coupling_lib.metrics.statistics import mean_interval
from coupling_lib.metrics.variants import VARIANTS, locality, measure_variants
from coupling_lib.models.load import Model, load_model
from coupling_lib.provenance import provenance
from coupling_lib.store.sweep import sweep
from coupling_lib.svd.triplets import top_triplets_stacked


@measurement(version=2)
@batched
def measure_depth(
    model: Model,
    prompts: str | torch.Tensor | Iterable[Any],
    ks: Sequence[int] = (10, 30, 50),
    token: int = -1,
    boundary: str = "block",
) -> xr.Dataset:
    """Measure coupling between all pairs of blocks at one token position (paper, sections 2 and 3).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        ks: numbers of singular vectors K, each from 1 to the width.
        token: the position t whose Jacobians J_tt are measured; -1 is the last.
        boundary: `"block"`, `"hidden_states"` for the released code's last block, or `"branch"` for post-norm
            blocks; see `Trace.jacobian`.

    Returns:
        a dataset with dimensions `prompt`, `k`, `block_1` (l, whose Jacobian) and `block_2` (l', whose
        singular vectors), blocks from 0, and
        one variable `(prompt, k, block_1, block_2)` per variant of `metrics.variants.VARIANTS`;
        `by_distance` `(prompt, variant, k, distance)`, each variant's mean over pairs of blocks `distance` apart, in
        both directions, from 0 (a block with itself);
        `singular_values` `(prompt, block_1, rank)` and `frobenius_norm` `(prompt, block_1)` of each J^l;
        `residual` `(prompt, block_1)`, the largest of its triplets' residuals;
        `matrix` `(block_1, block_2, row, column)`, the signed A_{l l'} of the first prompt at the largest K.

    Raises:
        ParameterError: if K exceeds the width, a token does not exist, or there is no prompt.
        UntrustworthyResultError: if a Jacobian or a singular triplet fails its check.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_depth(cl.load_model("nano-neox"), ["It was the best of times"], ks=(10,))
        >>> dict(ds.normalized_miscoupling.sizes)
        {'prompt': 1, 'k': 1, 'block_1': 12, 'block_2': 12}
    """
    given = prompt_inputs(prompts)
    ks = sorted(set(ks))
    check_k(model, ks[0])
    check_k(model, ks[-1])
    per_prompt = []
    for number, J in enumerate(jacobians_by_prompt(model, given, token, boundary)):
        triplets = top_triplets_stacked(J, max(ks))
        # With one singular vector there are no off-diagonal entries to set against the diagonal.
        names = [name for name in VARIANTS if 1 not in ks or name != "old_off_over_diagonal"]
        values = measure_variants(J, triplets.U, triplets.S, triplets.Vh, ks, names)
        variables = {name: (("k", "block_1", "block_2"), value.cpu().numpy()) for name, value in values.items()}
        apart = locality(torch.stack(list(values.values())))
        variables["by_distance"] = (("variant", "k", "distance"), apart.cpu().numpy())
        variables["singular_values"] = (("block_1", "rank"), triplets.S.cpu().numpy())
        variables["frobenius_norm"] = (("block_1",), torch.linalg.matrix_norm(J).cpu().numpy())
        variables["residual"] = (("block_1",), triplets.residual.amax(dim=1).cpu().numpy())
        per_prompt.append(xr.Dataset(variables))
        if number == 0:
            matrix = coupling_matrices(J, triplets.U, triplets.Vh).cpu().numpy()
    ds = xr.concat(per_prompt, dim="prompt")
    ds["matrix"] = (("block_1", "block_2", "row", "column"), matrix)
    blocks = range(model.n_blocks)
    ds = ds.assign_coords(k=ks, block_1=blocks, block_2=blocks, prompt=[prompt_name(prompt) for prompt in given])
    ds = ds.assign_coords(variant=names, distance=blocks)
    ds.attrs = provenance(model, given, measure="depth", token=token, boundary=boundary, route=model.blocks.route)
    return ds


def depth_null(ds: xr.Dataset, variant: str, n_samples: int = DRAWS, seed: int = 0) -> xr.DataArray:
    """Draw what a variant is for single pairs of blocks that share no directions but keep their singular values.

    This is the spread of single pairs. The mean, which a mean over pairs is to be set against, is known far better
    than from draws: `null_of`.

    Args:
        ds: a dataset of `measure_depth`.
        variant: a name of `metrics.variants.VARIANTS`.
        n_samples: number of random draws.
        seed: seed of the draws.

    Returns:
        the values, dimensions `(sample, k, block_1)`.
    """
    return null_draws(ds, variant, n_samples, seed)


def depth_summary(ds: xr.Dataset, variant: str) -> xr.Dataset:
    """Condense coupling, 1 - m, to its mean over prompts with a 95 % interval.

    Each prompt counts once, with its mean over pairs of blocks.

    Args:
        ds: a dataset of `measure_depth`.
        variant: name of the mismatch m, a key of `metrics.variants.VARIANTS`.

    Returns:
        `mean`, `low` and `high`, dimensions `(pairs, k)`: over all ordered pairs of different blocks ("all pairs") and
        over pairs one block apart ("neighbours"). The ends are NaN where there is a single prompt.

    Raises:
        ParameterError: if the model has a single block.
    """
    if ds.sizes["block_1"] < 2:
        raise ParameterError("the model has 1 block; coupling across depth needs two or more, take a deeper model")
    everywhere = ds[variant].where(ds["block_1"] != ds["block_2"]).mean(("block_1", "block_2"))
    neighbours = ds["by_distance"].sel(variant=variant, distance=1)
    values = 1 - np.stack([part.transpose("prompt", "k").values for part in (everywhere, neighbours)], axis=1)
    mean = values.mean(axis=0)
    absent = np.full_like(mean, np.nan)
    ends = mean_interval(values)[1:] if len(values) > 1 else (absent, absent)
    variables = {
        name: (("pairs", "k"), part) for name, part in zip(("mean", "low", "high"), (mean, *ends), strict=True)
    }
    coords = {"pairs": ["all pairs", "neighbours"], "k": ds["k"].values}
    return xr.Dataset(variables, coords, attrs=ds.attrs | {"variant": variant})


def other_models(others: str, besides: str) -> list[str]:
    """Read a list of further models."""
    names = dict.fromkeys(name.strip() for name in others.split(","))
    return [name for name in names if name and name != besides]


def measure_models(
    names: Sequence[str],
    prompts: Sequence[Any],
    k: int,
    token: int = -1,
    precision: str = "float32",
    seed: int = 0,
) -> dict[str, dict[str, xr.Dataset]]:
    """Measure coupling across depth in several models, one in memory at a time (paper, figure 20).

    Args:
        names: aliases, Hugging Face ids or local folders.
        prompts: texts or `Prompt` objects; a model without a tokenizer gets random inputs in their place.
        k: number of singular vectors, from 1 to the width of the narrowest model.
        token: the position t whose Jacobians are measured; -1 is the last.
        precision: how the weights are held.
        seed: seed of the untrained weights and of random inputs.

    Returns:
        for each model the datasets of `measure_depth`, by "untrained" and "trained".

    Raises:
        ParameterError: if K exceeds the width of a model.
    """
    found: dict[str, dict[str, xr.Dataset]] = {}
    for name in names:
        found[name] = {}
        for state in ("untrained", "trained"):
            model = load_model(name, precision=precision, untrained=state == "untrained", seed=seed)
            if k > model.d_model:
                raise ParameterError(
                    f"k is {k}, and {name!r}, one of the other models, has width {model.d_model}; "
                    f"leave it out of 'others' or take k up to {model.d_model}"
                )
            inputs = inputs_for(model, prompts, seed=seed)
            found[name][state] = sweep(measure_depth, model, inputs, ks=(k,), token=token)
            del model
    return found
