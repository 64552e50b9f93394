"""What the figures of precision show, as numbers: arrays to draw and tables to download.

All functions take the data set that `coupling_lib.measures.precision.measure_precision` makes; its first precision is
the reference. Blocks, prompts and ranks count from 1 in tables. *Coupling* is 1 minus the normalised mis-coupling;
pairs of a block with itself are left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.metrics.statistics import mean_interval

QUANTITIES = {
    "value_error": "singular values: relative error",
    "angle": "vectors: principal angle (degrees)",
    "coupling_error": "coupling: absolute error",
}
"""Errors that are told apart by their source, with their labels."""


def narrow_precisions(ds: xr.Dataset) -> list[str]:
    """Gives the precisions that are compared with the reference."""
    return [str(name) for name in ds["precision"].values[1:]]


def all_value_errors(ds: xr.Dataset) -> xr.DataArray:
    """Computes the relative error of every singular value of every prompt, from narrow weights."""
    values = ds["singular_values"].astype(float)
    return np.abs(values / values.isel(precision=0, drop=True) - 1)


def kept_share(ds: xr.Dataset) -> xr.DataArray:
    """Computes the share of the reference's top directions that a narrow precision's top directions span."""
    return (np.cos(np.deg2rad(ds["angle"].sel(source="weights"))) ** 2).mean("order")


def value_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulates what `value_errors` draws, before medians are taken over prompts."""
    errors = all_value_errors(ds).sel(precision=narrow_precisions(ds)).transpose("precision", "prompt", "block", "rank")
    return _tabulated(errors.values, narrow_precisions(ds), ("prompt", "block", "rank"), "relative_error")


def angle_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulates what `vector_errors` draws, before medians are taken over prompts."""
    angles = ds["angle"].sel(source="weights", precision=narrow_precisions(ds))
    parts = []
    for side in ("U", "V"):
        values = angles.sel(side=side).transpose("precision", "example", "block", "order").values
        part = _tabulated(values, narrow_precisions(ds), ("prompt", "block", "order"), "degrees")
        part.insert(1, "vectors", side)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def pair_table(ds: xr.Dataset) -> pd.DataFrame:
    """What `pair_scatter` draws: the coupling of every ordered pair of different blocks, mean over prompts."""
    coupling = 1 - _mismatch(ds).mean(axis=1)
    rows = []
    for number, name in enumerate(narrow_precisions(ds), start=1):
        pairs = np.argwhere(np.isfinite(coupling[0]))
        rows += [(name, i + 1, j + 1, coupling[0, i, j], coupling[number, i, j]) for i, j in pairs]
    return pd.DataFrame(rows, columns=["precision", "block_jacobian", "block_vectors", "reference", "coupling"])


def coupling_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulates what `mean_coupling` draws."""
    per_pair = 1 - _mismatch(ds)
    per_prompt = np.nanmean(per_pair, axis=(2, 3))
    means = per_pair.mean(axis=1)
    different = np.isfinite(means[0])
    rows = []
    for number, name in enumerate(ds["precision"].values):
        alike = np.corrcoef(means[0][different], means[number][different])[0, 1]
        rows.append((str(name), *_interval(per_prompt[number]), *_interval(per_prompt[number] - per_prompt[0]), alike))
    columns = ["coupling", "low", "high", "difference", "difference_low", "difference_high", "correlation"]
    return pd.DataFrame(rows, columns=["precision", *columns])


def source_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulates what `error_sources` draws."""
    rows = []
    for quantity in QUANTITIES:
        values = ds[quantity]
        if quantity == "coupling_error":
            values = values.where(~np.eye(ds.sizes["block_1"], dtype=bool))
        for name in ds["precision"].values:
            for source in ds["source"].values:
                chosen = values.sel(precision=name, source=source).values
                chosen = chosen[np.isfinite(chosen)]
                quartiles = np.quantile(chosen, (0.5, 0.25, 0.75)) if len(chosen) else (np.nan,) * 3
                rows.append((quantity, str(name), str(source), *map(float, quartiles)))
    columns = ["quantity", "precision", "source", "median", "lower_quartile", "upper_quartile"]
    return pd.DataFrame(rows, columns=columns)


def summary_table(ds: xr.Dataset, null: float) -> pd.DataFrame:
    """Condenses a measurement to one line per precision."""
    table = coupling_table(ds).set_index("precision")
    values = 100 * all_value_errors(ds).median(("prompt", "block", "rank")).to_series()
    kept = 100 * kept_share(ds).mean(("side", "example", "block")).to_series()
    lost = -100 * table["difference"] / (table["coupling"].iloc[0] - (1 - null))
    columns = ["coupling", "difference", "difference_low", "difference_high"]
    parts = {"values %": values, "kept %": kept, **{name: table[name] for name in columns}, "lost %": lost}
    return pd.concat({**parts, "correlation": table["correlation"]}, axis=1)


def quotable(summary: pd.DataFrame) -> dict[str, float]:
    """Names the numbers that prose may quote."""
    found = {}
    for column in summary.columns:
        quantity, _, end = column.removesuffix(" %").partition("_")
        for row in summary.index:
            found["-".join(part for part in (quantity, row, end) if part)] = float(summary.loc[row, column])
    return found


def _mismatch(ds: xr.Dataset) -> np.ndarray:
    """Array (precision, prompt, block_1, block_2), not a number where a block meets itself."""
    order = ("precision", "prompt", "block_1", "block_2")
    values = ds["normalized_miscoupling"].transpose(*order).values.astype(float)
    values[..., *np.diag_indices(values.shape[-1])] = np.nan
    return values


def _interval(values: np.ndarray) -> tuple[float, float, float]:
    if len(values) < 2:
        return float(values[0]), np.nan, np.nan
    return tuple(map(float, mean_interval(values)))


def _tabulated(values: np.ndarray, names: list[str], columns: tuple[str, ...], value: str) -> pd.DataFrame:
    counts = [range(1, size + 1) for size in values.shape[1:]]
    index = pd.MultiIndex.from_product([names, *counts], names=["precision", *columns])
    return pd.DataFrame({value: values.ravel()}, index=index).reset_index()
