r"""What the figures of one vision transformer show, as numbers.

*Networks* map a name ("untrained", "trained") to a data set of `coupling_lib.measures.vision` or
`coupling_lib.measures.depth`. *Coupling* is 1 minus a normalised mismatch, mean over pairs of different blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.figures.curves import mean_interval
from coupling_lib.figures.depth_data import pair_mismatches


def relations_table(networks: Mapping[str, xr.Dataset], variant: str) -> pd.DataFrame:
    """Tabulates coupling at pairs of tokens, image by image."""
    rows = []
    for network, dataset in networks.items():
        different = ~np.eye(dataset.sizes["block_1"], dtype=bool)
        for relation in dataset.relation.values:
            values = 1 - dataset[variant].sel(relation=relation).transpose("prompt", "block_1", "block_2").values
            rows += [(network, relation, i, float(v[different].mean())) for i, v in enumerate(values, start=1)]
    return pd.DataFrame(rows, columns=["network", "relation", "image", "coupling"])


def drop_path_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Tabulates coupling with stochastic depth off and on."""
    rows = []
    for image, (off, on) in enumerate(zip(dataset["off"].values, dataset["on"].values, strict=True), start=1):
        rows.append((image, "off", 0, 1 - off))
        rows += [(image, "on", draw, 1 - value) for draw, value in enumerate(on, start=1)]
    return pd.DataFrame(rows, columns=["image", "drop_path", "draw", "coupling"])


def summary_table(networks: Mapping[str, xr.Dataset], variant: str, k: int, null: float) -> pd.DataFrame:
    """Tabulates coupling of a single model in a few numbers: means over images, of each one's mean over pairs."""
    lines = {
        name: map(float, mean_interval(np.nanmean(1 - pair_mismatches(dataset, variant, k), axis=(1, 2))))
        for name, dataset in networks.items()
    }
    lines["random bases"] = [1 - null, np.nan, np.nan]
    table = {name: list(values) for name, values in lines.items()}
    return pd.DataFrame.from_dict(table, orient="index", columns=["coupling", "low", "high"])


def quoted(
    summary: pd.DataFrame,
    relations: Mapping[str, xr.Dataset],
    nulls: xr.Dataset,
    dropped: xr.Dataset,
    variant: str,
    null_error: float,
) -> dict[str, float]:
    """Gives the numbers that prose about one model quotes."""
    found = {"model-null": summary.loc["random bases", "coupling"], "model-null-error": null_error}
    for network in relations:
        row = summary.loc[network]
        found |= {f"model-{network}": row.coupling, f"model-{network}-low": row.low, f"model-{network}-high": row.high}
    means = relations_table(relations, variant).groupby(["relation", "network"]).coupling.mean()
    for (relation, network), value in means.items():
        found[f"{relation.replace(' ', '-')}-{network}"] = value
    for relation in nulls.relation.values:
        key, chance = f"{str(relation).replace(' ', '-')}-null", nulls.sel(relation=relation).mean()
        found |= {key: 1 - float(chance["value"]), f"{key}-error": float(chance["error"])}
    for state, part in drop_path_table(dropped).groupby("drop_path"):
        interval = mean_interval(part.groupby("image").coupling.mean().to_numpy())
        key = f"drop-path-{state}"
        found |= {key: interval.middle, f"{key}-low": interval.low, f"{key}-high": interval.high}
    return {name: float(value) for name, value in found.items()}
