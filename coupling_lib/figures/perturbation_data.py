"""What the figures of perturbations show, as numbers: one table per figure, to draw and to download.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.perturbation.measure_perturbation` made. Draws are averaged within each prompt, and
intervals cover prompts and draws together: prompts are drawn again with replacement, and each brings its draws along.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.figures.curves import mean_interval

Datasets = Mapping[str, xr.Dataset]

CARRIERS = {"network": "network", "linear": "linearised", "random": "linearised, random bases"}
"""What carries a perturbation, and how figures name it."""


def level_table(datasets: Datasets, variable: str) -> pd.DataFrame:
    """Tabulates a quantity by carrier, noise level and level."""
    parts = []
    for name, dataset in datasets.items():
        values = dataset[variable].mean("draw").transpose("prompt", "carrier", "noise", "level")
        summary = mean_interval(values.values)
        keys = [values[dim].values for dim in ("carrier", "noise", "level")]
        index = pd.MultiIndex.from_product([[name], *keys], names=["network", "carrier", "noise", "level"])
        columns = {"mean": summary.middle.ravel(), "low": summary.low.ravel(), "high": summary.high.ravel()}
        parts.append(pd.DataFrame(columns, index=index).reset_index())
    return pd.concat(parts, ignore_index=True)


def first_and_last_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates the cosine with the clean state after the first and after the last block, by noise level."""
    table = level_table(datasets, "cosine")
    ends = {1: "first", table.level.max(): "last"}
    table = table[table.level.isin(ends)]
    return table.assign(block=table.level.map(ends)).reset_index(drop=True)


def error_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates how far the linearisation is from the network after the last block, by noise level."""
    parts = []
    for name, dataset in datasets.items():
        values = dataset["linear_error"].isel(level=-1).mean("draw").transpose("prompt", "noise").values
        summary = mean_interval(values)
        columns = {"network": name, "noise": dataset["noise"].values}
        parts.append(pd.DataFrame(columns | {"mean": summary.middle, "low": summary.low, "high": summary.high}))
    return pd.concat(parts, ignore_index=True)


def amplification_and_error_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates amplification at the smallest noise level, and the error of the linearisation after the last block."""
    amplification = level_table(datasets, "amplification")
    amplification = amplification[amplification.noise == amplification.noise.min()]
    errors = error_table(datasets).assign(carrier="linear", level=amplification.level.max())
    parts = [amplification.assign(quantity="amplification"), errors.assign(quantity="error")]
    table = pd.concat(parts, ignore_index=True)
    return table[["quantity", *(name for name in table.columns if name != "quantity")]]


def summary_table(datasets: Datasets, noise: float) -> pd.DataFrame:
    """Tabulates one noise level in a few numbers."""
    table = level_table(datasets, "cosine")
    table = table[np.isclose(table.noise, noise)]
    lines = {}
    for (name, carrier), rows in table.groupby(["network", "carrier"], sort=False):
        rows = rows.sort_values("level")
        mean = rows["mean"].values
        lines[name, carrier] = [mean[0], mean[1], mean[-1], rows.low.values[-1], rows.high.values[-1]]
    columns = ["embedding", "first block", "last block", "low", "high"]
    frame = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    frame.index = pd.MultiIndex.from_tuples(frame.index, names=["network", "carrier"])
    return frame
