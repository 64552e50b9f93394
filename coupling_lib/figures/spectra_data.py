r"""What the figures of spectra show, as numbers: one table per figure, to draw and to download.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.spectra.measure_spectra` made. Blocks and ranks count from 1 in tables.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.figures.curves import mean_interval, quartiles

Datasets = Mapping[str, xr.Dataset]


def top_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates the largest singular values against depth."""
    return _long(datasets, "singular_values", ("block", "rank"))


def whole_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates the whole spectrum of the blocks that were measured in full."""
    return _long(datasets, "spectrum", ("whole", "index"))


def inverse_table(datasets: Datasets, fits: Datasets) -> pd.DataFrame:
    r"""Tabulates $1/\sigma_1$ against depth, with the line through it."""
    parts = []
    for name, dataset in datasets.items():
        summary = mean_interval(1 / dataset["singular_values"].isel(rank=0).transpose("prompt", "block").values)
        depth = np.arange(1, dataset.sizes["block"] + 1)
        line = float(fits[name].intercept.mean()) + float(fits[name].slope.mean()) * depth
        line = np.where(depth > fits[name].attrs["first_block"], line, np.nan)
        columns = {"network": name, "block": depth, "mean": summary.middle, "low": summary.low, "high": summary.high}
        parts.append(pd.DataFrame(columns | {"line": line}))
    return pd.concat(parts, ignore_index=True)


def alignment_table(datasets: Datasets, nulls: Datasets) -> pd.DataFrame:
    """Tabulates stable rank and agreement of left and right vectors against depth."""
    parts = []
    for name, dataset in datasets.items():
        for quantity, (values, null) in agreement_arrays(dataset, nulls[name]).items():
            error = 0 * null if quantity != "exchanged coupling" else exchanged_errors(nulls[name])
            summary = mean_interval(values)
            columns = {"network": name, "block": np.arange(1, values.shape[1] + 1), "quantity": quantity}
            columns |= {"mean": summary.middle, "low": summary.low, "high": summary.high, "null": null}
            columns["null_error"] = error
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def agreement_arrays(dataset: xr.Dataset, null: xr.Dataset) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Takes what the figure of left and right vectors draws out of one measurement."""
    count = dataset.sizes["block"]
    exchanged = 1 - null["exchanged_miscoupling"].mean("sample").values
    return {
        "stable rank": (_values(dataset, "stable_rank"), np.full(count, np.nan)),
        "alignment": (_values(dataset, "left_right_alignment"), np.full(count, float(null["left_right_alignment"]))),
        "exchanged coupling": (1 - _values(dataset, "exchanged_miscoupling"), exchanged),
    }


def exchanged_errors(null: xr.Dataset) -> np.ndarray:
    """Gives the standard error of each block's mean exchanged mis-coupling of random bases."""
    draws = null["exchanged_miscoupling"]
    return (draws.std("sample", ddof=1) / draws.sizes["sample"] ** 0.5).values


def summary_table(datasets: Datasets, fits: Datasets, nulls: Datasets) -> pd.DataFrame:
    """Tabulates spectra in a few numbers: means over blocks, then over prompts."""
    lines = {}
    for name, dataset in datasets.items():
        arrays = {
            quantity: values.mean(axis=1) for quantity, (values, _) in agreement_arrays(dataset, nulls[name]).items()
        }
        alignment, fit = mean_interval(arrays["alignment"]), mean_interval(fits[name]["r_squared"].values)
        exchanged = arrays["exchanged coupling"].mean()
        lines[name] = [arrays["stable rank"].mean(), *map(float, alignment), exchanged, *map(float, fit)]
        random = [np.nan, float(nulls[name]["left_right_alignment"]), np.nan, np.nan]
        random += [1 - float(nulls[name]["exchanged_miscoupling"].mean()), np.nan, np.nan, np.nan]
    lines["random bases"] = random
    columns = ["stable rank", "alignment", "low", "high", "exchanged", "R2", "R2 low", "R2 high"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def _values(dataset: xr.Dataset, name: str) -> np.ndarray:
    return dataset[name].transpose("prompt", "block").values.astype(float)


def _long(datasets: Datasets, variable: str, dims: tuple[str, str]) -> pd.DataFrame:
    parts = []
    for name, dataset in datasets.items():
        summary = quartiles(dataset[variable].transpose("prompt", *dims).values)
        blocks = dataset[dims[0]].values + 1
        index = pd.MultiIndex.from_product([[name], blocks, range(1, dataset.sizes[dims[1]] + 1)])
        frame = pd.DataFrame(
            {"median": summary.middle.ravel(), "low": summary.low.ravel(), "high": summary.high.ravel()},
            index=index.set_names(["network", "block", "rank"]),
        )
        parts.append(frame.reset_index())
    return pd.concat(parts, ignore_index=True)
