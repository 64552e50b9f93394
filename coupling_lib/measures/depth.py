"""Coupling across depth: every block's Jacobian against every other block's singular vectors, at one token of a prompt.

The coupling matrix A_{l l'} = U_{l',K}^T J^l V_{l',K} is diagonal where the top singular vectors of block l'
diagonalise the Jacobian of block l. What its numbers are without coupling is said by `measures.random_bases`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.given import prompt_inputs
from coupling_lib.measures import frame
from coupling_lib.metrics.coupling import coupling_matrices
from coupling_lib.metrics.summaries import interval
from coupling_lib.metrics.variants import locality, names_at
from coupling_lib.models.load import Model
from coupling_lib.store.limits import summarised
from coupling_lib.store.sweep import sweep


def coupling_of_blocks(ds: xr.Dataset) -> xr.DataArray:
    """Average each prompt's coupling over ordered pairs of different blocks, at the largest K."""
    return 1 - frame.between_blocks(ds["normalized_miscoupling"].isel(k=-1))


@frame.measurement(version=2)
@frame.batched
@summarised(by=coupling_of_blocks)
def measure_depth(
    model: Model, prompts: frame.Prompts, ks: Sequence[int] = (10, 30, 50), token: int = -1, boundary: str = "block"
) -> xr.Dataset:
    """Measure coupling between all pairs of blocks at one token position (paper, sections 2 and 3).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        ks: numbers of singular vectors K, each from 1 to the width.
        token: the position t whose Jacobians J_tt are measured; -1 is the last.
        boundary: `"block"`, or `"hidden_states"` or `"branch"` as in `Trace.jacobian`.

    Returns:
        a dataset with dimensions `prompt`, `k`, `block_1` (l, whose Jacobian) and `block_2` (l', whose vectors), with
        one variable `(prompt, k, block_1, block_2)` per variant of `metrics.variants.VARIANTS`;
        `by_distance` `(prompt, variant, k, distance)`, each one's mean over pairs `distance` apart, from 0;
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
    given, ks, blocks = prompt_inputs(prompts), sorted(set(ks)), range(model.n_blocks)
    frame.check_k(model, *ks)
    jacobians = frame.jacobians_by_prompt(model, given, token, boundary)
    each = (_of_one_prompt(J, ks, first=number == 0) for number, J in enumerate(jacobians))
    coords = {"k": ks, "block_1": blocks, "block_2": blocks, "variant": names_at(ks), "distance": blocks}
    details = {"measure": "depth", "token": token, "boundary": boundary}
    return frame.over_prompts(model, given, each, coords, shared=["matrix"], **details)


def _of_one_prompt(J: torch.Tensor, ks: list[int], first: bool) -> frame.Variables:
    found, values = frame.coupled(J, ks)
    variables: frame.Variables = {name: (("k", "block_1", "block_2"), value) for name, value in values.items()}
    variables |= {
        "by_distance": (("variant", "k", "distance"), locality(torch.stack(list(values.values())))),
        "singular_values": (("block_1", "rank"), found.S),
        "frobenius_norm": (("block_1",), torch.linalg.matrix_norm(J)),
        "residual": (("block_1",), found.residual.amax(dim=1)),
    }
    if first:
        variables["matrix"] = (("block_1", "block_2", "row", "column"), coupling_matrices(J, found.U, found.Vh))
    return variables


def depth_summary(ds: xr.Dataset, variant: str) -> xr.Dataset:
    """Condense coupling, 1 - m, to its mean over prompts with a 95 % interval; each prompt counts once.

    Args:
        ds: a dataset of `measure_depth`.
        variant: name of the mismatch m, a key of `metrics.variants.VARIANTS`.

    Returns:
        `mean`, `low` and `high` `(pairs, k)`, over ordered pairs of different blocks ("all pairs") and over pairs one
        block apart ("neighbours"); the ends are NaN for a single prompt.

    Raises:
        ParameterError: if the model has a single block.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_depth(cl.load_model("nano-neox"), ["It was the best of times"], ks=(10,))
        >>> means = depth_summary(ds, "normalized_miscoupling")["mean"].sel(k=10)
        >>> bool(means.sel(pairs="neighbours") > means.sel(pairs="all pairs"))
        True
    """
    if ds.sizes["block_1"] < 2:
        raise ParameterError("the model has 1 block; coupling across depth needs two or more, take a deeper model")
    neighbours = ds["by_distance"].sel(variant=variant, distance=1, drop=True)
    both = 1 - xr.concat([frame.between_blocks(ds[variant]), neighbours], dim="pairs")
    both = both.transpose("prompt", "pairs", "k").assign_coords(pairs=["all pairs", "neighbours"])
    summary = interval(both, gaps=False)
    return summary.assign_attrs(ds.attrs | {"variant": variant})


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
    memory: str | int | None = None,
) -> dict[str, dict[str, xr.Dataset]]:
    """Measure coupling across depth in several models, one in memory at a time (paper, figure 20).

    Args:
        names: aliases, Hugging Face ids or local folders.
        prompts: texts or `Prompt` objects; a model without a tokenizer gets random inputs in their place.
        k: number of singular vectors, from 1 to the width of the narrowest model.
        token: the position t; -1 is the last.
        precision: how the weights are held.
        seed: seed of the untrained weights and of random inputs.
        memory: the most that weights may take, see `load_model`.

    Returns:
        for each model the datasets of `measure_depth`, by "untrained" and "trained".

    Raises:
        ParameterError: if K exceeds the width of a model.

    Example:
        >>> found = measure_models(["nano-llama"], ["It was the best of times"], k=10)
        >>> {state: dict(ds.mismatch.sizes)["block_1"] for state, ds in found["nano-llama"].items()}
        {'untrained': 12, 'trained': 12}
    """

    def measured(model: Model, given: list) -> xr.Dataset:
        if k > model.d_model:
            raise ParameterError(
                f"k is {k}, and {model.name!r}, one of the other models, has width {model.d_model}; "
                f"leave it out of 'others' or take k up to {model.d_model}"
            )
        return sweep(measure_depth, model, given, ks=(k,), token=token)

    return frame.networks(measured, names, prompts, seed, precision=precision, memory=memory)
