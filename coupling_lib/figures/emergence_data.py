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
    """Gives coupling at each step and for each pair of blocks.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        Array (step, prompt, block_1, block_2), not a number on the diagonal.
    """
    return np.stack([1 - pair_mismatches(dataset.sel(step=step), variant, k) for step in dataset["step"].values])


def coupling_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `coupling_over_training` draws.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m, the one whose null was simulated; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        Columns step, coupling (mean over pairs and prompts), low and high (95 % interval over prompts; not a
        number for a single prompt), random_bases and random_bases_error (its standard error), and progress (validation
        loss or benchmark accuracy).
    """
    values = np.nanmean(coupling_by_step(dataset, variant, k), axis=(2, 3))
    return pd.DataFrame(
        {"step": dataset["step"].values}
        | _interval(values, "coupling")
        | {"random_bases": _null_coupling(dataset, k), "random_bases_error": dataset["null_error"].sel(k=k).values}
        | {"progress": dataset["progress"].values}
    )


def locality_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates coupling against the distance between blocks, at each step.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        Columns step, distance (blocks apart, from 1), coupling, low, high and random_bases.
    """
    parts = []
    for step, values, null in zip(
        dataset["step"].values, coupling_by_step(dataset, variant, k), _null_coupling(dataset, k), strict=True
    ):
        distances = coupling_by_distance(values).T
        head = {"step": step, "distance": np.arange(1, len(distances) + 1)}
        parts.append(pd.DataFrame(head | _interval(distances, "coupling") | {"random_bases": null}))
    return pd.concat(parts, ignore_index=True)


def near_and_far_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates the coupling of neighbours, and of blocks at least half the depth apart, at each step.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        Columns pairs ("neighbours" or "half the depth or more apart"), step, coupling, low and high.
    """
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
    """Chooses three steps to be drawn as graphs: the first, the most coupled one between, and the last.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        The measurement at each of them by its name, "step 1000"; two if there are no more.
    """
    steps = dataset["step"].values
    means = np.nanmean(coupling_by_step(dataset, variant, k), axis=(1, 2, 3))
    between = [1 + int(np.argmax(means[1:-1]))] if len(steps) > 2 else []
    return {f"step {steps[at]}": dataset.isel(step=at) for at in (0, *between, len(steps) - 1)}


def graph_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `graphs_over_training` draws.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        Columns network ("step 1000"), block_a, block_b (from 1, each pair once) and coupling.
    """
    return adjacency_table(graph_steps(dataset, variant, k), variant, k)


def drawn_windows(dataset: xr.Dataset) -> dict[str, int]:
    """Chooses the windows that are followed over training: the shallowest, the middle and the deepest.

    Args:
        dataset: A measurement.

    Returns:
        The window's middle block, counted from 0, by what it is called: its blocks, counted from 1.
    """
    centres, width = dataset["centre"].values, int(dataset.attrs["window"])
    chosen = dict.fromkeys((centres[0], centres[(len(centres) - 1) // 2], centres[-1]))
    return {f"blocks {c - width // 2 + 1}-{c - width // 2 + width}": int(c) for c in chosen}


def score_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Tabulates line-shape score and expodistance against training, of the whole depth and of three windows.

    Args:
        dataset: A measurement.

    Returns:
        Columns score, blocks ("all" or the window's), step, median, low and high (quartiles over prompts; prompts
        whose score does not exist are left out).
    """
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
    """Tabulates norm, and line-shape score and expodistance in windows, against depth at each step.

    Args:
        dataset: A measurement.

    Returns:
        Columns quantity, step, depth (level from 0 for the norm; the window's middle block, from 1, for the scores),
        median, low and high (quartiles over prompts).
    """
    parts = []
    for quantity, (dimension, _) in PROFILES.items():
        depth = dataset[dimension].values + (dimension == "centre")
        for step in dataset["step"].values:
            values = dataset[quantity].sel(step=step).transpose(dimension, "prompt").values
            head = {"quantity": quantity, "step": step, "depth": depth}
            parts.append(pd.DataFrame(head | quartiles(values)))
    return pd.concat(parts, ignore_index=True)


def summary_table(dataset: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Tabulates emergence in a few numbers per step.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        One line per step: coupling with its interval and that of random bases, the medians of line-shape score and
        expodistance over prompts, and the progress of training.
    """
    table = coupling_table(dataset, variant, k).set_index("step").drop(columns="random_bases_error")
    for at, score in enumerate(SCORES):
        table.insert(4 + at, SCORES[score], dataset[score].median("prompt").values)
    return table.rename(columns={"random_bases": "random bases", "progress": progress_word(dataset)})


def quoted(dataset: xr.Dataset, variant: str, k: int) -> dict[str, float]:
    """Gives the numbers that prose about emergence quotes.

    Args:
        dataset: A measurement.
        variant: Name of the mismatch m; the coupling is 1 - m.
        k: Number of singular vectors.

    Returns:
        By name: of the first, the most coupled ("peak") and the last step its number, coupling, interval, coupling of
        random bases with its standard error, progress, and the medians of the scores.
    """
    table = coupling_table(dataset, variant, k)
    found = {}
    for word, at in {"first": 0, "peak": int(table.coupling.argmax()), "last": len(table) - 1}.items():
        line = table.iloc[at]
        found |= {f"{word}-{name.replace('_', '-')}": float(line[name]) for name in table.columns}
        for score in SCORES:
            found[f"{word}-{score.replace('_', '-')}"] = float(dataset[score].isel(step=at).median())
    return found


def progress_word(dataset: xr.Dataset) -> str:
    """Gives what the progress of training is called, without its unit.

    Args:
        dataset: A measurement.

    Returns:
        "validation loss", "zero-shot accuracy", or "progress" where nothing is known.
    """
    return str(dataset.attrs.get("progress_label", "")).split(" (")[0] or "progress"


def _interval(values: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Mean over the last axis, prompts, with its bootstrap interval."""
    mean = values.mean(axis=-1)
    absent = np.full_like(mean, np.nan)
    low, high = mean_interval(values, axis=-1)[1:] if values.shape[-1] > 1 else (absent, absent)
    return {name: mean, "low": low, "high": high}


def _null_coupling(dataset: xr.Dataset, k: int) -> np.ndarray:
    return 1 - dataset["null"].sel(k=k).values
