r"""What the figures of coupling across tokens show, as numbers: arrays to draw, labels, and tables to download.

A *comparison* is one data set of `coupling_lib.measures.tokens.measure_tokens`; `Datasets` maps networks ("untrained",
"trained", ...) to comparisons, `Reports` maps networks to several comparisons by name. Blocks and token positions
count from 1 in tables.

*Coupling* is 1 minus a normalised mismatch. Means are over pairs of different tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

from coupling_lib.figures.depth_data import Datasets, symbol_and_formula
from coupling_lib.metrics.statistics import mean_interval

Reports = Mapping[str, Mapping[str, xr.Dataset]]

KIND_NAMES = {"self": "self", "input": "fixed input", "output": "fixed output"}
"""Each kind of comparison, as figures and tables write it."""

_LONGEST = 9


def token_label(text: str) -> str:
    """Writes a token so that every character of it can be seen."""
    shown = "".join(_visible(character) for character in text)
    if len(shown) > _LONGEST:
        shown = shown[: _LONGEST - 1] + "…"
    return shown.replace("$", r"\$")


def token_labels(dataset: xr.Dataset) -> list[str]:
    """Labels the tokens that are compared in the first prompt."""
    first = dataset.isel(prompt=0)
    count = n_tokens(dataset)
    texts, positions = first["text"].values[:count].astype(str), first["position"].values[:count]
    return [token_label(text) or str(position + 1) for text, position in zip(texts, positions, strict=True)]


def comparison_name(dataset: xr.Dataset) -> str:
    """Says what a comparison compares, its fixed token that of the first prompt."""
    kind = str(dataset.attrs["kind"])
    if kind == "self":
        return f"{KIND_NAMES[kind]}: each token's $J_{{tt}}$"
    first = dataset.isel(prompt=0)
    text = token_label(str(first["fixed_text"].values))
    token = f"token {int(first['fixed_position']) + 1}" + (f" ({text})" if text else "")
    return f"{KIND_NAMES[kind]}: {token}, " + {"input": "$J_{t_1t}$", "output": "$J_{tt_2}$"}[kind]


def blocks_name(dataset: xr.Dataset) -> str:
    """Says which blocks a comparison compares."""
    first, second = dataset.attrs["block"] + 1, dataset.attrs["other"] + 1
    return f"block {first}" if first == second else f"blocks {first} and {second}"


def grid_caption(dataset: xr.Dataset) -> str:
    """Captions the figure that `token_grids` draws."""
    kind = str(dataset.attrs["kind"])
    what = "Self-coupling" if kind == "self" else f"Context coupling with a {KIND_NAMES[kind]} token"
    return (
        f"{what}, {blocks_name(dataset)}. Left: coupling matrices of pairs of tokens of one prompt, relative to the "
        "largest singular value of the row's Jacobian. Right: normalised mis-coupling of the same pairs. One scale for "
        "all models on each side."
    )


def n_tokens(dataset: xr.Dataset) -> int:
    """Counts the tokens compared in the first prompt."""
    return int((dataset["position"].isel(prompt=0) >= 0).sum())


def relative_token_matrices(dataset: xr.Dataset) -> np.ndarray:
    """Takes the coupling matrices of the first prompt, relative to each Jacobian's largest singular value."""
    count = n_tokens(dataset)
    largest = dataset["singular_values"].isel(prompt=0, rank=0)
    matrices = np.abs(dataset["matrix"] / largest).transpose("token_1", "token_2", "row", "column")
    return matrices.values[:count, :count]


def token_mismatches(dataset: xr.Dataset, variant: str) -> np.ndarray:
    """Takes one mismatch out of a comparison."""
    symbol_and_formula(variant)
    values = dataset[variant].transpose("prompt", "token_1", "token_2").values.astype(float)
    if dataset.attrs["block"] == dataset.attrs["other"]:
        values[:, *np.diag_indices(values.shape[-1])] = np.nan
    return values


def prompt_couplings(dataset: xr.Dataset, variant: str) -> np.ndarray:
    """Averages coupling over all ordered pairs of different tokens."""
    values = token_mismatches(dataset, variant)
    values[:, *np.diag_indices(values.shape[-1])] = np.nan
    return 1 - np.nanmean(values, axis=(1, 2))


def matrix_table(datasets: Datasets, variant: str) -> pd.DataFrame:
    """Tabulates what `token_grids` draws: one line per row of a matrix, its K entries side by side."""
    parts = []
    for name, dataset in datasets.items():
        values = relative_token_matrices(dataset)
        count, k = len(values), values.shape[-1]
        places = dataset["position"].isel(prompt=0).values[:count] + 1
        index = pd.MultiIndex.from_product(
            [[name], places, places, range(1, k + 1)], names=["network", "token_jacobian", "token_vectors", "row"]
        )
        table = pd.DataFrame(values.reshape(-1, k), index, [f"column_{i + 1}" for i in range(k)]).reset_index()
        table.insert(3, variant, token_mismatches(dataset, variant)[0, :count, :count].ravel().repeat(k))
        parts.append(table)
    return pd.concat(parts, ignore_index=True).round(3)


def prompt_table(reports: Reports, variant: str) -> pd.DataFrame:
    """Tabulates what `token_summary` draws, before prompts are averaged."""
    rows = [
        (name, KIND_NAMES[dataset.attrs["kind"]], dataset.attrs["block"] + 1, dataset.attrs["other"] + 1, number, value)
        for name, report in reports.items()
        for dataset in report.values()
        for number, value in enumerate(prompt_couplings(dataset, variant), start=1)
    ]
    return pd.DataFrame(rows, columns=["network", "kind", "block_jacobian", "block_vectors", "prompt", "coupling"])


def summary_table(reports: Reports, variant: str, nulls: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Tabulates coupling in a few numbers: means over prompts, of each prompt's mean over pairs of different tokens."""
    table = pd.DataFrame(index=list(nulls))
    for name, report in reports.items():
        ends = [mean_and_interval(prompt_couplings(dataset, variant)) for dataset in report.values()]
        values = pd.DataFrame(ends, index=list(report), columns=[name, f"{name} low", f"{name} high"])
        table = table.join(values)
    table["random bases"] = [1 - float(null["value"].mean()) for null in nulls.values()]
    table["random bases error"] = [float(null["error"].mean()) for null in nulls.values()]
    return table


def remembered(table: pd.DataFrame, **groups: list[str]) -> dict[str, float]:
    """Names the numbers of a summary for the book."""
    return {
        f"tokens-{group}-{name.split()[0]}-{column.replace(' ', '-')}": float(table.loc[name, column])
        for group, names in groups.items()
        for name in names
        for column in table.columns
    }


def named_couplings(report: Mapping[str, xr.Dataset], variant: str, **groups: list[str]) -> dict[str, np.ndarray]:
    """Takes each comparison's coupling, one value per prompt, by what the book calls the comparison."""
    return {
        f"{group}-{name.split()[0]}": prompt_couplings(report[name], variant)
        for group, names in groups.items()
        for name in names
    }


def null_coupling(null: xr.Dataset) -> tuple[float, float, float]:
    """Condenses the mismatch of random orthogonal bases."""
    low, high = np.quantile(1 - null["draws"].values, (0.025, 0.975))
    return 1 - float(null["value"].mean()), float(low), float(high)


def mean_and_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Averages over prompts."""
    if len(values) < 2:
        return float(values[0]), np.nan, np.nan
    interval = mean_interval(values)
    return float(interval.mean), float(interval.low), float(interval.high)


@cache
def _font() -> FT2Font:
    return font_manager.get_font(font_manager.findfont("DejaVu Sans"))


def _visible(character: str) -> str:
    if character == " ":
        return "␣"
    if character.isprintable() and _font().get_char_index(ord(character)):
        return character
    return character.encode("unicode_escape").decode("ascii")
