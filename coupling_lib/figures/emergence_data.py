r"""What the figures of emergence show, as numbers: arrays to draw and tables to download.

All functions take the data set that `coupling_lib.measures.emergence.measure_emergence` made: the measurements of
depth and trajectories with one more dimension, the step of training. *Coupling* is 1 minus a normalised mismatch,
averaged over pairs of different blocks; intervals are over prompts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.figures.depth_data import adjacency_table, coupling_by_distance, pair_mismatches
from coupling_lib.figures.trajectories_data import quartiles
from coupling_lib.metrics.statistics import mean_interval

SCORES = {"line_shape_score": "line-shape score", "expodistance": "expodistance"}
"""Scores that are followed over training, and how an axis says them."""

PROFILES = {
    "norm": ("level", r"norm $\Vert x^l\Vert_2$"),
    "window_line_shape_score": ("centre", "line-shape score"),
    "window_expodistance": ("centre", "expodistance"),
}
"""Quantities that are drawn against depth: the dimension that depth is, and the axis's label."""


def coupling_by_step(dataset: xr.Dataset, variant: str, k: int) -> np.ndarray:
    """Gives coupling at each step and for each pair of blocks."""
    return np.stack([1 - pair_mismatches(dataset.sel(step=step), variant, k) for step in dataset["step"].values])


def coupling_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `coupling_over_training` draws."""
    values = np.nanmean(coupling_by_step(dataset, variant, k), axis=(2, 3))
    return pd.DataFrame(
        {"step": dataset["step"].values}
        | _interval(values, "coupling")
        | {"random_bases": _null_coupling(dataset, k), "random_bases_error": dataset["null_error"].sel(k=k).values}
        | {"progress": dataset["progress"].values}
    )


def locality_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates coupling against the distance between blocks, at each step."""
    parts = []
    for step, values, null in zip(
        dataset["step"].values, coupling_by_step(dataset, variant, k), _null_coupling(dataset, k), strict=True
    ):
        distances = coupling_by_distance(values).T
        head = {"step": step, "distance": np.arange(1, len(distances) + 1)}
        parts.append(pd.DataFrame(head | _interval(distances, "coupling") | {"random_bases": null}))
    return pd.concat(parts, ignore_index=True)


def near_and_far_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates the coupling of neighbours, and of blocks at least half the depth apart, at each step."""
    couplings = coupling_by_step(dataset, variant, k)
    index = np.arange(couplings.shape[-1])
    apart = np.abs(index[:, None] - index)
    groups = {"neighbours": apart == 1, "half the depth or more apart": apart >= max(1, len(index) // 2)}
    parts = []
    for name, chosen in groups.items():
        means = couplings[:, :, chosen].mean(axis=-1)
        parts.append(pd.DataFrame({"pairs": name, "step": dataset["step"].values} | _interval(means, "coupling")))
    return pd.concat(parts, ignore_index=True)


def graph_steps(dataset: xr.Dataset, variant: str, k: int) -> dict[str, xr.Dataset]:
    """Chooses three steps to be drawn as graphs: the first, the most coupled one between, and the last."""
    steps = dataset["step"].values
    means = np.nanmean(coupling_by_step(dataset, variant, k), axis=(1, 2, 3))
    between = [1 + int(np.argmax(means[1:-1]))] if len(steps) > 2 else []
    return {f"step {steps[at]}": dataset.isel(step=at) for at in (0, *between, len(steps) - 1)}


def graph_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `graphs_over_training` draws."""
    return adjacency_table(graph_steps(dataset, variant, k), variant, k)


def drawn_windows(dataset: xr.Dataset) -> dict[str, int]:
    """Chooses the windows that are followed over training: the shallowest, the middle and the deepest."""
    centres, width = dataset["centre"].values, int(dataset.attrs["window"])
    chosen = dict.fromkeys((centres[0], centres[(len(centres) - 1) // 2], centres[-1]))
    return {f"blocks {c - width // 2 + 1}-{c - width // 2 + width}": int(c) for c in chosen}


def score_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Tabulates line-shape score and expodistance against training, of the whole depth and of three windows."""
    parts = []
    for score in SCORES:
        values = {"all": dataset[score].transpose("step", "prompt")}
        for name, centre in drawn_windows(dataset).items():
            values[name] = dataset[f"window_{score}"].sel(centre=centre).transpose("step", "prompt")
        for blocks, each in values.items():
            head = {"score": score, "blocks": blocks, "step": dataset["step"].values}
            parts.append(pd.DataFrame(head | quartiles(each.values)))
    return pd.concat(parts, ignore_index=True)


def profile_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Tabulates norm, and line-shape score and expodistance in windows, against depth at each step."""
    parts = []
    for quantity, (dimension, _) in PROFILES.items():
        depth = dataset[dimension].values + (dimension == "centre")
        for step in dataset["step"].values:
            values = dataset[quantity].sel(step=step).transpose(dimension, "prompt").values
            head = {"quantity": quantity, "step": step, "depth": depth}
            parts.append(pd.DataFrame(head | quartiles(values)))
    return pd.concat(parts, ignore_index=True)


def summary_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates emergence in a few numbers per step."""
    table = coupling_table(dataset, variant, k).set_index("step").drop(columns="random_bases_error")
    for at, score in enumerate(SCORES):
        table.insert(4 + at, SCORES[score], dataset[score].median("prompt").values)
    return table.rename(columns={"random_bases": "random bases", "progress": progress_word(dataset)})


def quoted(dataset: xr.Dataset, variant: str, k: int) -> dict[str, float]:
    """Gives the numbers that prose about emergence quotes."""
    table = coupling_table(dataset, variant, k)
    found = {}
    for word, at in {"first": 0, "peak": int(table.coupling.argmax()), "last": len(table) - 1}.items():
        line = table.iloc[at]
        found |= {f"{word}-{name.replace('_', '-')}": float(line[name]) for name in table.columns}
        for score in SCORES:
            found[f"{word}-{score.replace('_', '-')}"] = float(dataset[score].isel(step=at).median())
    return found


def progress_word(dataset: xr.Dataset) -> str:
    """Gives what the progress of training is called, without its unit."""
    return str(dataset.attrs.get("progress_label", "")).split(" (")[0] or "progress"


def _interval(values: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Mean over the last axis, prompts, with its bootstrap interval."""
    mean = values.mean(axis=-1)
    absent = np.full_like(mean, np.nan)
    low, high = mean_interval(values, axis=-1)[1:] if values.shape[-1] > 1 else (absent, absent)
    return {name: mean, "low": low, "high": high}


def _null_coupling(dataset: xr.Dataset, k: int) -> np.ndarray:
    return 1 - dataset["null"].sel(k=k).values
