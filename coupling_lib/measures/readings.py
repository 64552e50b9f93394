"""Readings: the paper's "coupling", as each of its sources computes it, from one measurement of one model.

Text, project page, released code and older code disagree on five points: how the distance from perfect coupling is
formed and normalised (`metrics.variants.VARIANTS`), how a coupling is made of it (`TRANSFORMS`), whether pairs of a
block with itself are in the mean, whether the last block includes the final norm (`boundary` of `measure_depth`), and
how many singular vectors are compared. `measure_depth` holds all that is needed; the functions here set the readings
side by side. `metrics.trajectory` does the same for the scores of trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.stats
import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.measures.random_bases import null_of
from coupling_lib.metrics.nulls import DRAWS, relative_to_null
from coupling_lib.metrics.statistics import mean_interval
from coupling_lib.metrics.variants import TRANSFORMS, VARIANTS

SEVERAL_KS = (5, 10, 30, 50)
"""Numbers of singular vectors in the sources: 10, 30 and 50 in the released code, 5 in an older one."""


@dataclass(frozen=True)
class Choice:
    """One way to settle a point on which the sources disagree."""

    point: str
    """What is disagreed on."""
    reading: str
    """How it is settled here."""
    variant: str
    """Distance, a key of `VARIANTS`."""
    transform: str = "one_minus"
    """Coupling made of it, a key of `TRANSFORMS`."""
    boundary: str = "block"
    """Boundary of the last block, as in `measure_depth`."""
    with_itself: bool = False
    """Whether pairs of a block with itself are in the mean."""


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


_NULL = ("value", "error")


def several_ks(k: int, width: int) -> tuple[int, ...]:
    """Choose the numbers of singular vectors at which readings are compared."""
    if not 2 <= k <= width:
        raise ParameterError(f"k is {k}; readings are compared at k from 2 to {width}, the width; pass -p k 10")
    return tuple(sorted({k, *(other for other in SEVERAL_KS if other <= width)}))


def readings_null(ds: xr.Dataset, n_samples: int = DRAWS, seed: int = 0) -> xr.Dataset:
    """Give every variant for random orthogonal bases with the same singular values: `null_of` of all.

    Args:
        ds: a dataset of `measure_depth`.
        n_samples: number of draws.
        seed: seed of the draws.

    Returns:
        `value`, `error` and `mean_square` `(variant, k, block_1)`.
    """
    return null_of(ds, _variants(ds), n_samples, seed)


def mean_readings(datasets: Mapping[str, xr.Dataset], nulls: Mapping[str, xr.Dataset]) -> xr.Dataset:
    r"""Average every variant over pairs of different blocks and over prompts, and set it in proportion to chance.

    Args:
        datasets: measurements of `measure_depth` by name of the network.
        nulls: the results of `readings_null` by the same names.

    Returns:
        dimensions `(network, variant, k)`: `mean`, `low` and `high` (95 % interval over prompts, NaN for a
        single one), `null` of the variant itself and its standard error `null_error`; and `share`, `share_low`,
        `share_high` of $(\text{value} - \text{null}) / (\text{best} - \text{null})$, 0 at chance and 1 at perfect
        coupling.
    """
    means = xr.concat([_means(ds, nulls[name]) for name, ds in datasets.items()], dim="network")
    return means.assign_coords(network=list(datasets))


def rank_agreement(ds: xr.Dataset, k: int) -> xr.Dataset:
    """Tell how much alike the variants rank the pairs of blocks: Spearman's rank correlation.

    Args:
        ds: a dataset of `measure_depth` with at least three blocks.
        k: number of singular vectors.

    Returns:
        `mean`, `low` and `high` `(variant, other)`: the correlation over ordered pairs of different blocks, mean over
        prompts and 95 % interval (NaN for a single prompt).

    Raises:
        ParameterError: if there are fewer than three blocks, or K was not measured.
    """
    if ds.sizes["block_1"] < 3:
        raise ParameterError(f"the model has {ds.sizes['block_1']} blocks; ranks of pairs need at least three")
    if k not in ds["k"].values:
        raise ParameterError(f"k is {k!r}; measured were {', '.join(map(str, ds['k'].values))}; take one of them")
    names = _variants(ds)
    values = np.stack([_pairs(ds, name).sel(k=k).values for name in names], axis=-1)
    rho = np.stack([scipy.stats.spearmanr(prompt, axis=0).statistic for prompt in values])
    found = dict(zip(("mean", "low", "high"), _interval(rho), strict=True))
    return xr.Dataset(
        {name: (("variant", "other"), part) for name, part in found.items()},
        coords={"variant": names, "other": names},
        attrs=ds.attrs | {"k": k},
    )


def compare_choices(
    measured: Mapping[str, Mapping[str, xr.Dataset]], nulls: Mapping[str, xr.Dataset], k: int
) -> pd.DataFrame:
    """Compute coupling once for every choice of `CHOICES`.

    Args:
        measured: for each boundary, measurements of `measure_depth` by name of the network.
        nulls: for each network the result of `readings_null`; it stands for both boundaries.
        k: number of singular vectors.

    Returns:
        columns point, reading, variant, network, coupling, low, high (95 % interval over prompts, NaN for a
        single one), null, the same for random orthogonal bases, and null_error, its standard error.
    """
    rows = []
    for choice in CHOICES:
        for network, ds in measured[choice.boundary].items():
            mean, low, high = _interval(_coupling(ds, choice, k))
            null = _null_coupling(nulls[network], choice, k)
            rows.append((choice.point, choice.reading, choice.variant, network, *map(float, (mean, low, high)), *null))
    columns = ["point", "reading", "variant", "network", "coupling", "low", "high", "null", "null_error"]
    return pd.DataFrame(rows, columns=columns)


def coupling_by_block(measured: Mapping[str, Mapping[str, xr.Dataset]], variant: str, k: int) -> xr.Dataset:
    """Average the coupling 1 - m of each block with all others, for both boundaries of the last block.

    Args:
        measured: for each boundary, measurements of `measure_depth` by name of the network.
        variant: name of the mismatch m.
        k: number of singular vectors.

    Returns:
        `mean`, `low` and `high` `(boundary, network, block)`: mean over the other blocks, in both roles (the block's
        Jacobian against their vectors, and the reverse), and over prompts; 95 % interval over prompts.
    """
    networks: Sequence[str] = list(next(iter(measured.values())))
    parts = np.array([[_by_block(sets[name], variant, k) for name in networks] for sets in measured.values()])
    dims = ("boundary", "network", "block")
    return xr.Dataset(
        {name: (dims, parts[:, :, i]) for i, name in enumerate(("mean", "low", "high"))},
        coords={"boundary": list(measured), "network": networks, "block": np.arange(parts.shape[-1])},
        attrs={"variant": variant, "k": k},
    )


def _variants(ds: xr.Dataset) -> list[str]:
    return [name for name in VARIANTS if name in ds]


def _pairs(ds: xr.Dataset, variant: str) -> xr.DataArray:
    """One variant at all ordered pairs of different blocks, (prompt, k, pair)."""
    values = ds[variant].transpose("prompt", "k", "block_1", "block_2")
    different = ~np.eye(values.shape[-1], dtype=bool)
    return xr.DataArray(
        values.values[..., different].astype(float), dims=("prompt", "k", "pair"), coords={"k": ds["k"]}
    )


def _interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over the first axis and its bootstrap interval, NaN where a single value gives none."""
    if len(values) > 1:
        return tuple(mean_interval(values))
    absent = np.full_like(values[0], np.nan)
    return values[0], absent, absent


def _means(ds: xr.Dataset, null: xr.Dataset) -> xr.Dataset:
    names = _variants(ds)
    values = np.stack([_pairs(ds, name).mean("pair").values for name in names], axis=1)  # prompt, variant, k
    chance, error = (null[part].sel(variant=names).mean("block_1").transpose("variant", "k").values for part in _NULL)
    share = relative_to_null(torch.from_numpy(values), torch.from_numpy(chance).expand(values.shape)).numpy()
    parts = dict(zip(("mean", "low", "high"), _interval(values), strict=True)) | {"null": chance, "null_error": error}
    parts |= dict(zip(("share", "share_low", "share_high"), _interval(share), strict=True))
    return xr.Dataset(
        {name: (("variant", "k"), part) for name, part in parts.items()}, coords={"variant": names, "k": ds["k"]}
    )


def _coupling(ds: xr.Dataset, choice: Choice, k: int) -> np.ndarray:
    """Each prompt's mean coupling over pairs of blocks, by one choice."""
    values = ds[choice.variant].sel(k=k).transpose("prompt", "block_1", "block_2").values.astype(float)
    chosen = np.ones(values.shape[1:], dtype=bool) if choice.with_itself else ~np.eye(values.shape[1], dtype=bool)
    return TRANSFORMS[choice.transform](values)[:, chosen].mean(axis=1)


def _null_coupling(null: xr.Dataset, choice: Choice, k: int) -> tuple[float, float]:
    """The same for random bases, with its error; a block with itself is perfectly coupled there, too."""
    place = {"variant": choice.variant, "k": k}
    chosen, n_blocks = null.sel(place).mean("block_1"), null.sizes["block_1"]
    coupling, error = TRANSFORMS[choice.transform](chosen["value"].item()), chosen["error"].item()
    if choice.transform == "one_minus_square":
        coupling, error = 1 - chosen["mean_square"].item(), 0.0
    if choice.with_itself:
        coupling += (TRANSFORMS[choice.transform](0.0) - coupling) / n_blocks
        error *= 1 - 1 / n_blocks
    return coupling, error


def _by_block(ds: xr.Dataset, variant: str, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = 1 - ds[variant].sel(k=k).where(ds["block_1"] != ds["block_2"])
    rows = values.mean("block_2").transpose("prompt", "block_1").values
    columns = values.mean("block_1").transpose("prompt", "block_2").values
    return _interval((rows + columns).astype(float) / 2)
