"""What the figures of trajectories show, as numbers: tables to draw and to download.

*Models* is a mapping from a model's name to its measurements, as
`coupling_lib.measures.trajectories.compare_trajectories` gives it; *networks* is one model's: a mapping from
"untrained" and "trained" to a data set of `measure_trajectories`. Medians and quartiles are over prompts; prompts for
which a score does not exist are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

Networks = Mapping[str, xr.Dataset]
Models = Mapping[str, Networks]

SCORES = {
    "line_shape_score": "line-shape score",
    "expodistance": "expodistance",
    "equidistance": "CoV of step lengths",
}
"""Scores of a whole trajectory, and how an axis says them."""

PROFILES = {
    "norm": "level",
    "relative_step": "block",
    "window_line_shape_score": "centre",
    "entropy_normed": "level",
    "entropy": "level",
}
"""Quantities that are drawn against depth, and the dimension that depth is."""


def quartiles(values: np.ndarray) -> dict[str, np.ndarray]:
    """Gives median and quartiles along the last axis, over the values that exist."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="All-NaN slice")
        low, middle, high = np.nanquantile(values.astype(float), (0.25, 0.5, 0.75), axis=-1)
    return {"median": middle, "low": low, "high": high}


def score_table(models: Models) -> pd.DataFrame:
    """Tabulates what `scores_by_model` draws: every prompt's scores."""
    parts = []
    for model, networks in models.items():
        for network, dataset in networks.items():
            count = dataset.sizes["prompt"]
            head = {"model": model, "network": network, "prompt": np.arange(1, count + 1)}
            scores = {name: dataset[name].values for name in SCORES}
            parts.append(pd.DataFrame(head | {"blocks": dataset.sizes["block"]} | scores))
    return pd.concat(parts, ignore_index=True)


def profile_table(networks: Networks) -> pd.DataFrame:
    """Tabulates what `profiles` draws: quantities against depth."""
    parts = []
    for network, dataset in networks.items():
        lengths = dataset["step_length"]
        dataset = dataset.assign(relative_step=lengths / lengths.mean("block"))
        for quantity, dimension in PROFILES.items():
            if quantity in dataset:
                depth = dataset[dimension].values + (dimension != "level")
                values = dataset[quantity].transpose(dimension, "prompt").values.astype(float)
                head = {"network": network, "quantity": quantity, "depth": depth}
                parts.append(pd.DataFrame(head | quartiles(values)))
    return pd.concat(parts, ignore_index=True)


def path_ranges(n_blocks: int) -> dict[str, range]:
    """Splits a model's depth as the panels of its principal components do."""
    half = n_blocks // 2
    ranges = {"all blocks": range(n_blocks + 1)}
    if half:
        ranges[f"shallow: blocks 1-{half}"] = range(half + 1)
        ranges[f"deep: blocks {half + 1}-{n_blocks}"] = range(half, n_blocks + 1)
    return ranges


def path_table(networks: Networks) -> pd.DataFrame:
    """Tabulates what `principal_components` draws: where the tokens of the first prompt are at each level."""
    names = ["network", "token", "text", "level", "component_1", "component_2"]
    parts = [pd.DataFrame(columns=names)]
    for network, dataset in networks.items():
        if "path" not in dataset:
            continue
        levels, tokens = dataset.sizes["level"], dataset.sizes["position"]
        level, token = np.divmod(np.arange(levels * tokens), tokens)
        path = dataset["path"].transpose("level", "position", "component").values.reshape(levels * tokens, 2)
        texts = dataset["path_token"].values[token]
        columns = {"network": network, "token": token + 1, "text": texts, "level": level}
        parts.append(pd.DataFrame(columns | {"component_1": path[:, 0], "component_2": path[:, 1]}))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def profile_caption(networks: Networks) -> str:
    """Says what `profiles` shows, and why a panel is missing where one is."""
    attributes = next(iter(networks.values())).attrs
    text = (
        "Medians over prompts against depth, with quartiles. Level 0 is the embedding, level l what leaves block l. "
        f"Line-shape scores are of {attributes['window']} neighbouring blocks, with that number as numerator. "
    )
    if attributes["entropy_missing"]:
        return f"{text}Entropy is left out: {attributes['entropy_missing']}."
    return text + (
        "Entropy is that of softmax(W x) with the unembedding W: solid lines take the state x after the model's final "
        "norm, dashed lines as it is."
    )


def quoted(networks: Networks) -> dict[str, float]:
    """Gives the numbers that prose about trajectories quotes."""
    found = {}
    for network, dataset in networks.items():
        for name in SCORES:
            key = f"{name.replace('_', '-')}-{network}"
            for end, value in quartiles(dataset[name].values).items():
                found[key if end == "median" else f"{key}-{end}"] = float(value)
    return found


def readings_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Tabulates the scores in every reading: how much depends on which states and which formula are taken."""
    medians = dataset["readings"].median("prompt").transpose("reading", "states")
    table = medians.to_pandas().loc[dataset["reading"].values, dataset["states"].values]
    return table.rename_axis(index=None, columns=None)


def summary_table(models: Models) -> pd.DataFrame:
    """Tabulates the scores in a few numbers."""
    lines = [
        {"model": model, "network": network, "score": label} | quartiles(dataset[name].values)
        for model, networks in models.items()
        for network, dataset in networks.items()
        for name, label in SCORES.items()
    ]
    return pd.DataFrame(lines).set_index(["model", "network", "score"])
