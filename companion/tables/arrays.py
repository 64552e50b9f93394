"""Labelled arrays: joined, condensed to quartiles, counted from 1, and as named numbers."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr


def quartiles(values: xr.DataArray, over: str | list[str] = "prompt") -> xr.Dataset:
    """Return `median`, `low` and `high`, the lower and the upper quartile."""
    with warnings.catch_warnings():
        # Values that exist for no prompt, such as the expodistance of a stream that does not grow, have no quartiles.
        warnings.filterwarnings("ignore", message="All-NaN slice")
        found = values.quantile([0.25, 0.5, 0.75], over)
    low, median, high = found.drop_vars("quantile").transpose("quantile", ...)
    return xr.Dataset({"median": median, "low": low, "high": high})


def mean_over_directions(coupling: xr.DataArray) -> xr.DataArray:
    """Average the coupling of `block_a` with `block_b` over both directions, each pair once."""
    mean = (coupling + coupling.rename(block_a="block_b", block_b="block_a")) / 2
    return mean.where(mean.block_a < mean.block_b).rename("coupling")


def side_by_side(**networks: xr.Dataset) -> xr.Dataset:
    """Join measurements along a new first dimension `network`, with all their records; attributes that differ go."""
    names = pd.Index(networks, name="network")
    joint = xr.concat(list(networks.values()), names, join="outer", combine_attrs="drop_conflicts")
    return joint.assign_attrs(records=records_of(networks))


def each_network(both: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """Return every network's name and measurement."""
    return [(str(name), both.sel(network=name, drop=True)) for name in both.network.values]


def records_of(found: Any) -> list[Mapping[str, Any]]:
    """Return the records of all measurements in a measure's result, or in a selection of it."""
    if isinstance(found, Mapping) and not isinstance(found, xr.Dataset):
        found = list(found.values())
    if isinstance(found, list):
        return [record for one in found for record in records_of(one)]
    attrs = getattr(found, "attrs", {})
    return attrs.get("records", [attrs] if "model" in attrs else [])


def joined(parts: Mapping[str, xr.DataArray | xr.Dataset], dimension: str) -> xr.DataArray | xr.Dataset:
    """Concatenate arrays or datasets along a new dimension of their names; missing values are NaN."""
    return xr.concat(list(parts.values()), pd.Index(parts, name=dimension), join="outer")


def from_one(data: xr.DataArray | xr.Dataset, *dimensions: str) -> xr.DataArray | xr.Dataset:
    """Number positions from 1 along dimensions of an array or a dataset."""
    return data.assign_coords({name: np.arange(data.sizes[name]) + 1 for name in dimensions})


def cells(table: pd.DataFrame, names: Mapping[str, str]) -> dict[str, float]:
    """Return cells of some columns by name: a column's pattern filled with the row's label, without blanks."""
    return {
        name.format(*np.atleast_1d(row)).replace(" ", "-"): float(line[column])
        for row, line in table.iterrows()
        for column, name in names.items()
    }


def with_ends(name: str, middle: str = "mean") -> dict[str, str]:
    """Return the name patterns of a summary's columns, its middle and the ends of its interval, for `cells`."""
    return {middle: name, "low": f"{name}-low", "high": f"{name}-high"}
