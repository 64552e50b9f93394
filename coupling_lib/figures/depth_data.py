r"""What the figures of coupling across depth show, as numbers: arrays to draw and tables to download.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.depth.measure_depth` made. Blocks count from 1 in tables, from 0 in arguments.

*Coupling* is 1 minus a normalised mismatch. Pairs of a block with itself are left out: there A is diagonal by
construction and says nothing about coupling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.errors import ParameterError

Datasets = Mapping[str, xr.Dataset]

MISMATCHES = {
    "normalized_miscoupling": (r"\tilde m", r"\Vert A-\mathrm{Diag}\,A\Vert_F\,/\,\Vert A\Vert_F"),
    "mismatch": (r"m_K", r"\Vert A-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_2"),
    "mismatch_trace": (r"m_{K,1}", r"\Vert A-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_1"),
    "released_norm": (r"m_\mathrm{norm}", r"\Vert\,|A|-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_2"),
    "released_trace": (r"m_\mathrm{trace}", r"\Vert\,|A|-S_{l,K}\Vert_F\,/\,\Vert s_{l,K}\Vert_1"),
}
r"""Symbol and formula of each mismatch whose 1 - m is a coupling; $A=U_{l',K}^\top J_l V_{l',K}$, and $S_{l,K}$
holds the singular values of $J_l$. The unnormalised mis-coupling carries the units of the Jacobian and has none."""


def matrix_table(datasets: Datasets, blocks: Sequence[int], k: int) -> pd.DataFrame:
    """Tabulates what `matrix_grid` draws: one line per row of a matrix, its K entries side by side."""
    counted = [block + 1 for block in blocks]
    names = ["network", "block_jacobian", "block_vectors", "row"]
    index = pd.MultiIndex.from_product([list(datasets), counted, counted, range(1, k + 1)], names=names)
    values = np.concatenate([relative_matrices(dataset, blocks, k).reshape(-1, k) for dataset in datasets.values()])
    return pd.DataFrame(values, index=index, columns=[f"column_{i + 1}" for i in range(k)]).reset_index()


def mismatch_table(datasets: Datasets, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `mismatch_map` draws."""
    rows = []
    for name, dataset in datasets.items():
        values = pair_mismatches(dataset, variant, k).mean(axis=0)
        rows += [(name, i + 1, j + 1, values[i, j]) for i, j in np.argwhere(np.isfinite(values))]
    return pd.DataFrame(rows, columns=["network", "block_jacobian", "block_vectors", variant])


def adjacency_table(datasets: Datasets, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `adjacency_graph` draws."""
    rows = []
    for name, dataset in datasets.items():
        values = symmetric_coupling(dataset, variant, k)
        rows += [(name, i + 1, j + 1, values[i, j]) for i, j in np.argwhere(np.triu(np.ones_like(values), 1))]
    return pd.DataFrame(rows, columns=["network", "block_a", "block_b", "coupling"])


def distribution_table(datasets: Datasets, variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `coupling_distribution` draws, before prompts are averaged."""
    rows = []
    for name, dataset in datasets.items():
        coupling = 1 - pair_mismatches(dataset, variant, k)
        by_distance = distance_couplings(dataset, variant, k)
        for number, (values, distances) in enumerate(zip(coupling, by_distance, strict=True), start=1):
            rows.append((name, number, "all", np.nanmean(values)))
            rows += [(name, number, distance, value) for distance, value in enumerate(distances, start=1)]
    return pd.DataFrame(rows, columns=["network", "prompt", "distance", "coupling"])


def models_table(models: Mapping[str, Datasets], variant: str, k: int) -> pd.DataFrame:
    """Tabulates what `models_figure` draws: maps and curves, mean over prompts."""
    parts = []
    for name, datasets in models.items():
        part = mismatch_table(datasets, variant, k)
        part.insert(0, "model", name)
        parts.append(part)
    table = pd.concat(parts, ignore_index=True)
    table["distance"] = (table["block_jacobian"] - table["block_vectors"]).abs()
    table["coupling"] = 1 - table.pop(variant)
    return table


def summary_table(summaries: Mapping[str, xr.Dataset], k: int, null: float) -> pd.DataFrame:
    """Tabulates coupling in a few numbers: means over prompts, of each prompt's mean over pairs of blocks."""
    lines = {}
    for name, summary in summaries.items():
        chosen = summary.sel(k=k)
        every = [chosen[end].sel(pairs="all pairs").item() for end in ("mean", "low", "high")]
        lines[name] = [*every, chosen["mean"].sel(pairs="neighbours").item()]
    lines["random bases"] = [1 - null, np.nan, np.nan, 1 - null]
    return pd.DataFrame.from_dict(lines, orient="index", columns=["all pairs", "low", "high", "neighbours"])


def distance_word(variant: str) -> str:
    """Says what a distance is called: *mis-coupling* looks beside the diagonal, *mismatch* at singular values."""
    return "mis-coupling" if "miscoupling" in variant else "mismatch"


def symbol_and_formula(variant: str) -> tuple[str, str]:
    """Gives how a mismatch is written in labels."""
    if variant not in MISMATCHES:
        raise ParameterError(f"variant is {variant!r}; it must be one of {', '.join(MISMATCHES)} to be drawn")
    return MISMATCHES[variant]


def coupling_label(variant: str, k: int) -> str:
    """Gives the label of an axis of coupling."""
    return rf"coupling $1-{symbol_and_formula(variant)[0]}$  $(K={k})$"


def pair_mismatches(dataset: xr.Dataset, variant: str, k: int) -> np.ndarray:
    """Takes one mismatch out of a measurement, without the pairs of a block with itself."""
    symbol_and_formula(variant)
    if k not in dataset["k"].values:
        raise ParameterError(f"k is {k!r}; measured were {', '.join(map(str, dataset['k'].values))}; take one of them")
    values = dataset[variant].sel(k=k).transpose("prompt", "block_1", "block_2").values.astype(float)
    if values.shape[-1] < 2:
        raise ParameterError("the model has 1 block; coupling across depth needs two or more, take a deeper model")
    values[:, *np.diag_indices(values.shape[-1])] = np.nan
    return values


def symmetric_coupling(dataset: xr.Dataset, variant: str, k: int) -> np.ndarray:
    """Averages coupling over prompts and over both directions of each pair."""
    coupling = 1 - pair_mismatches(dataset, variant, k).mean(axis=0)
    return (coupling + coupling.T) / 2


def distance_couplings(dataset: xr.Dataset, variant: str, k: int) -> np.ndarray:
    """Takes the coupling of pairs of blocks that are equally far apart, in both directions, out of a measurement."""
    apart = dataset["by_distance"].sel(variant=variant, k=k).isel(distance=slice(1, None))
    return 1 - apart.transpose("prompt", "distance").values.astype(float)


def coupling_by_distance(coupling: np.ndarray) -> np.ndarray:
    """Averages over pairs of blocks that are equally far apart, in both directions."""
    count = coupling.shape[-1]
    index = np.arange(count)
    distance = np.abs(index[:, None] - index)
    return np.stack([coupling[:, distance == apart].mean(axis=1) for apart in range(1, count)], axis=1)


def relative_matrices(dataset: xr.Dataset, blocks: Sequence[int], k: int) -> np.ndarray:
    """Takes the coupling matrices of the first prompt, relative to each Jacobian's largest singular value."""
    if k > dataset.sizes["row"]:
        raise ParameterError(f"k is {k!r}; matrices were measured up to {dataset.sizes['row']}; take a smaller k")
    chosen = dataset["matrix"].isel(block_1=list(blocks), block_2=list(blocks), row=slice(k), column=slice(k))
    largest = dataset["singular_values"].isel(prompt=0, block_1=list(blocks), rank=0)
    return np.abs(chosen / largest).transpose("block_1", "block_2", "row", "column").values
