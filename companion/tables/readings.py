"""The paper's "coupling" as each of its sources computes it, from one measurement of one model.

Text, project page, released code and older code disagree on five points: how the distance from perfect coupling is
formed and normalised (`metrics.variants.VARIANTS`), how it becomes a coupling (`TRANSFORMS`), whether a block with
itself is in the mean, whether the last block includes the final norm (`boundary` of `measure_depth`), and how many
singular vectors are compared. `metrics.trajectory` does the same for the scores of trajectories.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
import torch
import xarray as xr

from companion.tables.arrays import each_network, joined
from coupling_lib.datasets.summaries import block_couplings, interval
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.nulls import relative_to_null
from coupling_lib.metrics.variants import TRANSFORMS, VARIANTS, different_pairs


class Choice(NamedTuple):
    """One way to settle a point on which the sources disagree."""

    point: str  #: Point of disagreement.
    reading: str  #: The choice made.
    variant: str  #: Distance, a key of `VARIANTS`.
    transform: str = "one_minus"  #: Transform to coupling, a key of `TRANSFORMS`.
    boundary: str = "block"  #: Boundary of the last block, as in `measure_depth`.
    with_itself: bool = False  #: Whether pairs of a block with itself are in the mean.


CHOICES = (
    Choice("coupling", "−m", "released_norm", transform="negative"),
    Choice("coupling", "1 − m", "released_norm"),
    Choice("coupling", "1 − m²", "released_norm", transform="one_minus_square"),
    Choice("normaliser", "norm of A", "normalized_miscoupling"),
    Choice("normaliser", "2-norm of s", "released_norm"),
    Choice("normaliser", "1-norm of s (trace)", "released_trace"),
    Choice("entries of A", "signed", "mismatch"),
    Choice("entries of A", "absolute", "released_norm"),
    Choice("Jacobian", "all of it", "released_norm"),
    Choice("Jacobian", "its rank-K part", "released_norm_k"),
    Choice("block with itself", "left out", "normalized_miscoupling"),
    Choice("block with itself", "in the mean", "normalized_miscoupling", with_itself=True),
    Choice("last block", "ends at its output", "normalized_miscoupling"),
    Choice("last block", "includes final norm", "normalized_miscoupling", boundary="hidden_states"),
)
"""Points of disagreement, one after the other, all else being equal within a point."""


def several_ks(k: int, width: int) -> tuple[int, ...]:
    """Return the values of K at which variants are compared: the chosen one, and those of the sources."""
    if not 2 <= k <= width:
        raise ParameterError(f"k is {k}; readings are compared at k from 2 to {width}, the width; pass -p k 10")
    return tuple(sorted({k, *(other for other in (5, 10, 30, 50) if other <= width)}))


def mean_readings(both: xr.Dataset, nulls: xr.Dataset) -> xr.Dataset:
    """Average every variant over pairs of different blocks and over prompts, and relate it to its value by chance."""
    return joined({name: _means(ds, nulls.sel(network=name, drop=True)) for name, ds in each_network(both)}, "network")


def rank_agreement(ds: xr.Dataset, k: int) -> xr.Dataset:
    """Compute Spearman's rank correlation of variants over the pairs of blocks."""
    if ds.sizes["block_1"] < 3:
        raise ParameterError(f"the model has {ds.sizes['block_1']} blocks; ranks of pairs need at least three")
    if k not in ds["k"].values:
        raise ParameterError(f"k is {k!r}; measured were {', '.join(map(str, ds['k'].values))}; take one of them")
    names = [name for name in VARIANTS if name in ds]
    values = np.stack([_pairs(ds, name).sel(k=k).values for name in names], axis=-1)
    rho = np.stack([scipy.stats.spearmanr(prompt, axis=0).statistic for prompt in values])
    labelled = xr.DataArray(rho, {"variant": names, "other": names}, ("prompt", "variant", "other"))
    return interval(labelled, gaps=False).assign_attrs(ds.attrs | {"k": k})


def compare_choices(measured: Mapping[str, xr.Dataset], nulls: xr.Dataset, k: int) -> pd.DataFrame:
    """Compute coupling for every choice of `CHOICES`."""
    rows = []
    for choice in (one for one in CHOICES if one.boundary in measured):
        for network, ds in each_network(measured[choice.boundary]):
            found = interval(xr.DataArray(_coupling(ds, choice, k), dims="prompt"), gaps=False)
            null = _null_coupling(nulls.sel(network=network), choice, k)
            ends = (found[name].item() for name in ("mean", "low", "high"))
            rows.append((choice.point, choice.reading, choice.variant, network, *ends, *null))
    columns = ["point", "reading", "variant", "network", "coupling", "low", "high", "null", "null_error"]
    return pd.DataFrame(rows, columns=columns)


def coupling_by_block(measured: Mapping[str, xr.Dataset], variant: str, k: int) -> xr.Dataset:
    """Average the coupling 1 - m of each block with all others, for both boundaries of the last block."""
    each = {
        boundary: joined(
            {name: interval(block_couplings(ds, variant, k), gaps=False) for name, ds in each_network(both)}, "network"
        )
        for boundary, both in measured.items()
    }
    return joined(each, "boundary").assign_attrs(variant=variant, k=k)


def _pairs(ds: xr.Dataset, variant: str) -> xr.DataArray:
    """Return one variant at all ordered pairs of different blocks, (prompt, k, pair)."""
    values = ds[variant].transpose("prompt", "k", "block_1", "block_2").values.astype(float)
    return xr.DataArray(different_pairs(values), {"k": ds["k"]}, ("prompt", "k", "pair"))


def _means(ds: xr.Dataset, null: xr.Dataset) -> xr.Dataset:
    names = [name for name in VARIANTS if name in ds]
    # The mean over all pairs is the mean over distances, weighted by the number of pairs at each.
    pairs = (ds.sizes["block_1"] - ds["distance"]).where(ds["distance"] > 0, 0)
    values = ds["by_distance"].sel(variant=names).astype(float).weighted(pairs).mean("distance")
    values = values.transpose("prompt", "variant", "k")
    chance = null.sel(variant=names).mean("block_1").transpose("variant", "k")
    against = torch.from_numpy(chance["value"].values).expand(values.shape)
    share = values.copy(data=relative_to_null(torch.from_numpy(values.values), against).numpy())
    ends = interval(share, gaps=False).rename(mean="share", low="share_low", high="share_high")
    return interval(values, gaps=False).assign(null=chance["value"], null_error=chance["error"], **ends.data_vars)


def _coupling(ds: xr.Dataset, choice: Choice, k: int) -> np.ndarray:
    """Return each prompt's mean coupling over pairs of blocks, by one choice."""
    values = ds[choice.variant].sel(k=k).transpose("prompt", "block_1", "block_2").values.astype(float)
    values = TRANSFORMS[choice.transform](values)
    return (values.reshape(len(values), -1) if choice.with_itself else different_pairs(values)).mean(axis=1)


def _null_coupling(null: xr.Dataset, choice: Choice, k: int) -> tuple[float, float]:
    """Return the same for random bases, with its error; a block with itself is perfectly coupled there, too."""
    place = {"variant": choice.variant, "k": k}
    chosen, n_blocks = null.sel(place).mean("block_1"), null.sizes["block_1"]
    coupling, error = TRANSFORMS[choice.transform](chosen["value"].item()), chosen["error"].item()
    if choice.transform == "one_minus_square":
        coupling, error = 1 - chosen["mean_square"].item(), 0.0
    if choice.with_itself:
        coupling += (TRANSFORMS[choice.transform](0.0) - coupling) / n_blocks
        error *= 1 - 1 / n_blocks
    return coupling, error
