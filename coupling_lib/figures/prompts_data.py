r"""What the figures of coupling prompt by prompt show, as numbers: arrays to draw and tables to download.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.prompts.measure_prompts` made. *Coupling* is 1 minus a normalised mismatch, averaged over pairs
of different blocks. Blocks count from 1 in tables.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.figures.depth_data import Datasets, pair_mismatches
from coupling_lib.metrics.statistics import Correlation, correlation, mean_interval

ALONE = "alone"
"""The version of a prompt to which nothing is added."""

QUANTITIES = {
    "steps": "reasoning steps",
    "steps at equal length": "reasoning steps, length held fixed",
    "length": "length in tokens",
    "length within sets": "length in tokens, within data sets",
}
"""What coupling is correlated with, by the short name used in tables and keys."""

_FEWEST = 4


def block_couplings(dataset: xr.Dataset, variant: str, k: int) -> np.ndarray:
    """Averages each block's coupling with all others: its Jacobian with their vectors, and theirs with its."""
    values = 1 - pair_mismatches(dataset, variant, k)
    return (np.nanmean(values, axis=1) + np.nanmean(values, axis=2)) / 2


def prompt_table(datasets: Datasets, variant: str, k: int) -> pd.DataFrame:
    """Tabulates every prompt: what it is like, and its mean coupling over all pairs of different blocks."""
    parts = []
    for name, dataset in datasets.items():
        columns = {key: dataset[key].values for key in ("id", "question", "version", "dataset", "steps")}
        columns |= {"tokens": dataset["n_tokens"].values, "coupling": block_couplings(dataset, variant, k).mean(axis=1)}
        parts.append(pd.DataFrame(columns))
        parts[-1].insert(0, "network", name)
    return pd.concat(parts, ignore_index=True)


def prompts_alone(table: pd.DataFrame) -> pd.DataFrame:
    """Takes the prompts to which nothing was added."""
    return table[table["version"] == ALONE]


def correlations(table: pd.DataFrame, network: str) -> dict[str, Correlation | None]:
    """Correlates coupling with what prompts are like: Spearman's coefficient with its 95 % interval."""
    alone = prompts_alone(table[table["network"] == network])
    counted = alone[alone["steps"].notna()]
    within = alone[["tokens", "coupling"]] - alone.groupby("dataset")[["tokens", "coupling"]].transform("mean")
    found: dict[str, Correlation | None] = {}
    for name, (frame, x, given) in {
        "steps": (counted, "steps", None),
        "steps at equal length": (counted, "steps", "tokens"),
        "length": (alone, "tokens", None),
        "length within sets": (within.round(12), "tokens", None),
    }.items():
        found[name] = None
        if len(frame) >= _FEWEST:
            try:
                held = None if given is None else frame[given]
                found[name] = correlation(frame[x], frame["coupling"], given=held)
            except ParameterError:  # nothing varies
                pass
    return found


def correlation_table(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulates `correlations` of all networks."""
    rows = []
    for network in table["network"].unique():
        for name, found in correlations(table, network).items():
            r, low, high, n = found or (np.nan, np.nan, np.nan, 0)
            rows.append((network, QUANTITIES[name], n, r, low, high))
    return pd.DataFrame(rows, columns=["network", "quantity", "n", "spearman", "low", "high"])


def version_couplings(dataset: xr.Dataset, variant: str, k: int) -> dict[str, np.ndarray]:
    """Takes coupling per block of all questions that were measured in every version, in one order."""
    values = block_couplings(dataset, variant, k)
    versions, questions = dataset["version"].values, dataset["question"].values
    names = list(dict.fromkeys(versions))
    places = {}
    for name in names:
        of_name = np.flatnonzero(versions == name)
        places[name] = dict(zip(questions[of_name], of_name, strict=True))
    shared = [question for question in places[names[0]] if all(question in places[name] for name in names)]
    if len(names) < 2 or not shared:
        raise ParameterError("no prompt was measured in several versions; measure those of prompt_versions as well")
    return {name: values[[places[name][question] for question in shared]] for name in names}


def version_table(datasets: Datasets, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `version_profiles` draws, before questions are averaged."""
    parts = []
    for name, dataset in datasets.items():
        for version, values in version_couplings(dataset, variant, k).items():
            count, blocks = values.shape
            index = pd.MultiIndex.from_product(
                [[name], [version], range(1, count + 1), range(1, blocks + 1)],
                names=["network", "version", "question", "block"],
            )
            parts.append(pd.DataFrame({"coupling": values.ravel()}, index=index).reset_index())
    return pd.concat(parts, ignore_index=True)


def summary_table(datasets: Datasets, variant: str, k: int, null: float) -> pd.DataFrame:
    """Tabulates coupling in a few numbers: means over the questions that were measured in every version."""
    lines: dict[str, dict[str, float]] = {}
    for name, dataset in datasets.items():
        means = {version: values.mean(axis=1) for version, values in version_couplings(dataset, variant, k).items()}
        line = {version: float(values.mean()) for version, values in means.items()}
        for version, values in means.items():
            if version != ALONE:
                difference = values - means[ALONE]
                low, high = mean_interval(difference)[1:] if len(difference) > 1 else (np.nan, np.nan)
                key = f"{version} difference"
                line |= {key: float(difference.mean()), f"{key} low": float(low), f"{key} high": float(high)}
        lines[name] = line
    names = list(dict.fromkeys(key for line in lines.values() for key in line))
    lines["random bases"] = {name: 1 - null for name in names if "difference" not in name}
    return pd.DataFrame.from_dict(lines, orient="index", columns=names)


def remembered(table: pd.DataFrame, summary: pd.DataFrame, null_error: float) -> dict[str, float]:
    """Names the numbers of the figures for the book."""
    values = {}
    for network in table["network"].unique():
        for name, found in correlations(table, network).items():
            if found is not None:
                key = f"prompts-{name.replace(' ', '-')}-{network}"
                values |= {key: found.r, f"{key}-low": found.low, f"{key}-high": found.high}
                values |= {f"{key}-error": (found.high - found.low) / (2 * 1.96), f"{key}-n": found.n}
        for column, value in summary.loc[network].items():
            *words, last = column.split(" ")
            end = f"-{last}" if last in ("low", "high") else ""
            name = "-".join(words if end else [*words, last])
            values[f"prompts-{name}-{network}{end}"] = float(value)
    return values | {"prompts-null": float(summary.loc["random bases", ALONE]), "prompts-null-error": null_error}


def versions_caption(dataset: xr.Dataset) -> str:
    """Says which sentences were added to the questions."""
    note = (
        " The model has no tokenizer; each word stands for one token." if dataset.attrs.get("words_as_tokens") else ""
    )
    return (
        f"The instruction adds {dataset.attrs['instruction_tokens']} tokens, the control sentence "
        f"(“{dataset.attrs['control']}”) {dataset.attrs['control_tokens']}.{note}"
    )
