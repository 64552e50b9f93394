r"""What the figures of linear dynamics show, as numbers: one table per figure, to draw and to download.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.dynamics.measure_dynamics` made. Level l is the state $x^l$, 0 the embedding; blocks, ranks and
directions count from 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.figures.curves import Summary, mean_interval, quartiles

Datasets = Mapping[str, xr.Dataset]

GROWTH = {
    "singular": r"$\prod(1+\sigma)$: predicted from singular values",
    "along": r"$\prod|1+u^\top J\,u|$: predicted along $u$",
    "response": r"$|u^\top\prod(I+J)\,u|$: linearised network",
    "state": r"$|u^\top x^l|\,/\,|u^\top x^0|$: the state itself",
    "null": r"linearised network, random bases",
}
"""Kinds of growth along a direction, and how figures name them."""


def carried_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates how well products of I + J_l carry states, from the embedding on and up to the last block."""
    parts = []
    for name, dataset in datasets.items():
        for quantity, short in (("cosine", "cosine"), ("norm ratio", "norm_ratio")):
            carried = dataset[f"carried_{short}"].transpose("prompt", "start", "level").values
            null = dataset[f"null_{short}"].transpose("prompt", "level").values
            routes = {"from embedding": carried[:, 0], "to last": carried[:, :, -1], "random bases": null}
            for route, values in routes.items():
                keys = {"network": name, "route": route, "level": np.arange(values.shape[1]), "quantity": quantity}
                parts.append(_rows(keys, mean_interval(values), "mean"))
    return pd.concat(parts, ignore_index=True)


def reading_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates how well each reading of the linearised network agrees with the last state."""
    parts = []
    for name, dataset in datasets.items():
        for quantity, short in (("cosine", "cosine"), ("norm ratio", "norm_ratio")):
            values = dataset[f"end_{short}"].transpose("prompt", "reading").values
            keys = {"network": name, "reading": dataset["reading"].values, "quantity": quantity}
            parts.append(_rows(keys, mean_interval(values), "mean"))
    return pd.concat(parts, ignore_index=True)


def remainder_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates how much of a block is linear, and where the last state comes from."""
    parts = []
    for name, dataset in datasets.items():
        linear = dataset["linear_norm_ratio"].transpose("prompt", "block").values
        share = dataset["contribution"].transpose("prompt", "level").values
        for quantity, values, first in (("linear part", linear, 1), ("share of last state", share, 0)):
            keys = {"network": name, "quantity": quantity, "level": np.arange(values.shape[1]) + first}
            parts.append(_rows(keys, mean_interval(values), "mean"))
    return pd.concat(parts, ignore_index=True)


def growth_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates growth along the shared directions, as natural logarithms."""
    parts = []
    for name, dataset in datasets.items():
        for kind in GROWTH:
            values = dataset[f"growth_{kind}"].transpose("prompt", "direction", "level").values
            for direction in range(values.shape[1]):
                keys = {"network": name, "kind": kind, "direction": direction + 1, "level": np.arange(values.shape[2])}
                parts.append(_rows(keys, quartiles(values[:, direction]), "median"))
    return pd.concat(parts, ignore_index=True)


def left_right_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates the cosine of each left singular vector with its right one, with its sign."""
    parts = []
    for name, dataset in datasets.items():
        values = dataset["left_right_cosine"].mean("prompt").transpose("block", "rank").values
        block, rank = np.indices(values.shape) + 1
        columns = {"network": name, "block": block.ravel(), "rank": rank.ravel(), "cosine": values.ravel()}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def null_error(dataset: xr.Dataset) -> float:
    """Gives the standard error of the cosine that random bases carry to the last level, mean over prompts."""
    errors = dataset["null_cosine_error"].isel(level=-1).values
    return float(np.sqrt(np.sum(errors**2)) / len(errors))


def summary_table(datasets: Datasets) -> pd.DataFrame:
    """Tabulates linear dynamics in a few numbers: means over prompts."""
    lines = {}
    for name, dataset in datasets.items():
        end = dataset["end_cosine"].transpose("prompt", "reading")
        product = mean_interval(end.sel(reading="product").values)
        per_block = [growth_per_block(dataset, kind) for kind in ("singular", "response")]
        lines[name] = [
            *map(float, product),
            float(dataset["null_cosine"].isel(level=-1).mean()),
            float(end.sel(reading="released").mean()),
            float(dataset["contribution"].isel(level=0).mean()),
            float(dataset["left_right_cosine"].mean()),
            *per_block,
        ]
    columns = ["product", "low", "high", "random", "released", "share", "u.v", "predicted", "growth"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def growth_per_block(dataset: xr.Dataset, kind: str) -> float:
    """Gives the growth along the first shared direction per block: the median over prompts, as a factor."""
    total = dataset[f"growth_{kind}"].isel(level=-1, direction=0).median("prompt")
    return float(np.exp(total / dataset.sizes["block"]))


def _rows(keys: dict, summary: Summary, middle: str) -> pd.DataFrame:
    return pd.DataFrame(keys | {middle: summary.middle, "low": summary.low, "high": summary.high})
