"""Summaries of labelled arrays over prompts: the one place where an interval or a quartile is taken for a figure."""

import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.statistics import mean_interval


def interval(values: xr.DataArray, over: str = "prompt", gaps: bool = True) -> xr.Dataset:
    """Give `mean`, `low` and `high`, the ends of its 95 % interval; NaN for a single prompt, and at allowed `gaps`."""
    if over not in values.dims or not values.sizes[over] or values.dtype.kind not in "fiub":
        said = f"dimensions {values.dims} and dtype {values.dtype}"
        raise ParameterError(f"the values have {said}; expected numbers with one or more along {over!r}")
    values = values.transpose(over, ...).astype(float)
    mean = values.mean(over)
    # Prompts of an absent network or of pairs that do not exist have no interval, and no say in one.
    known = np.isfinite(values).all(over) if gaps else xr.ones_like(mean, dtype=bool)
    low, high = xr.full_like(mean, np.nan), xr.full_like(mean, np.nan)
    if values.sizes[over] > 1:
        ends = mean_interval(values.where(known, 0.0).values)
        low, high = (xr.where(known, mean.copy(data=end), np.nan) for end in (ends.low, ends.high))
    return xr.Dataset({"mean": mean, "low": low, "high": high})


def quartiles(values: xr.DataArray, over: str | list[str] = "prompt") -> xr.Dataset:
    """Give `median`, `low` and `high`, the lower and the upper quartile."""
    with warnings.catch_warnings():
        # What no prompt has, such as the expodistance of a stream that does not grow, has no quartiles either.
        warnings.filterwarnings("ignore", message="All-NaN slice")
        found = values.quantile([0.25, 0.5, 0.75], over)
    low, median, high = found.drop_vars("quantile").transpose("quantile", ...)
    return xr.Dataset({"median": median, "low": low, "high": high})


def apart(values: xr.DataArray, first: str = "block_1", second: str = "block_2") -> xr.DataArray:
    """Leave pairs of different blocks, or tokens: NaN where one meets itself, which is coupled by construction."""
    return values.astype(float).where(values[first] != values[second])


def pair_couplings(ds: xr.Dataset, variant: str = "normalized_miscoupling", k: int | None = None) -> xr.DataArray:
    """Give the coupling of pairs of blocks, 1 minus their mismatch; NaN where a block meets itself."""
    mismatch = ds[variant] if k is None else ds[variant].sel(k=k, drop=True)
    return 1 - apart(mismatch)


def both_ways(coupling: xr.DataArray) -> xr.DataArray:
    """Average the coupling of `block_a` with `block_b` over both directions, each pair once."""
    mean = (coupling + coupling.rename(block_a="block_b", block_b="block_a")) / 2
    return mean.where(mean.block_a < mean.block_b).rename("coupling")


def side_by_side(**networks: xr.Dataset) -> xr.Dataset:
    """Join measurements of several networks along a first dimension `network`; attributes they do not share go."""
    names = pd.Index(networks, name="network")
    return xr.concat(list(networks.values()), names, join="outer", combine_attrs="drop_conflicts")


def joined(parts: Mapping[str, xr.DataArray | xr.Dataset], dimension: str) -> xr.DataArray | xr.Dataset:
    """Put arrays or data sets behind one another along a new dimension of their names; what one lacks is NaN."""
    return xr.concat(list(parts.values()), pd.Index(parts, name=dimension), join="outer")


def from_one(data: xr.DataArray | xr.Dataset, *dimensions: str) -> xr.DataArray | xr.Dataset:
    """Count from 1 along dimensions of an array or a data set."""
    return data.assign_coords({name: np.arange(data.sizes[name]) + 1 for name in dimensions})


def cells(table: pd.DataFrame, names: Mapping[str, str]) -> dict[str, float]:
    """Name the cells of some columns: a column's pattern is filled with what its row is called, without blanks."""
    rows = [(*np.atleast_1d(row), line) for row, line in table.iterrows()]
    return {
        name.format(*row).replace(" ", "-"): float(line[column])
        for *row, line in rows
        for column, name in names.items()
    }


def with_ends(name: str, middle: str = "mean") -> dict[str, str]:
    """Name the columns of a summary, its middle and the ends of its interval, for `cells`."""
    return {middle: name, "low": f"{name}-low", "high": f"{name}-high"}
