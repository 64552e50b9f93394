"""Measurements of single prompts put together: one data set over the dimension `prompt`, or one long table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.errors import ParameterError


def join_prompts(datasets: Iterable[xr.Dataset]) -> xr.Dataset:
    """Put measurements of single prompts behind one another along `prompt`."""
    # A variable with the dimension `prompt` gets an entry per measurement. Where its other dimensions differ in
    # length, as with the number of tokens, the shorter entries are filled up: numbers with NaN, texts with "". A
    # variable without that dimension is the first measurement's (a coordinate of a dimension that was filled up: the
    # longest). The data sets are read one after another, and of all but the first only what depends on the prompt is
    # kept.
    first: xr.Dataset | None = None
    parts: dict[str, list[xr.Variable]] = {}
    longest: dict[str, xr.Variable] = {}
    count = 0
    for ds in datasets:
        count += 1
        if first is None:
            first = ds
            parts = {name: [] for name, variable in ds.variables.items() if "prompt" in variable.dims}
        for name, entries in parts.items():
            if name not in ds.variables:
                raise ParameterError(f"measurement {count} has no variable {name!r}, which the first has")
            # A copy of its own, so that nothing else of the data set stays in memory.
            entries.append(ds.variables[name].copy(deep=True) if count > 1 else ds.variables[name])
        for name, variable in ds.variables.items():
            if name in ds.coords and variable.ndim == 1 and "prompt" not in variable.dims:
                if name not in longest or variable.size > longest[name].size:
                    longest[name] = variable
    if first is None:
        raise ParameterError("there is no measurement to join; measure something first")
    if count == 1:
        return first
    if not parts:
        raise ParameterError("the measurements have no dimension 'prompt' to be joined along; measure one prompt")
    joined = {}
    for name in first.variables:
        joined[name] = _stack(parts.pop(name)) if name in parts else longest.get(name, first.variables[name])
    coordinates = {name: joined.pop(name) for name in first.coords}
    return xr.Dataset(joined, coordinates, first.attrs)


def long_table(ds: xr.Dataset, variables: Sequence[str] | None = None) -> pd.DataFrame:
    """Write a data set as a table with one number a row."""
    names = [name for name, variable in ds.data_vars.items() if variable.dtype.kind in "fiub"]
    for name in variables or ():
        if name not in names:
            raise ParameterError(f"the variable {name!r} does not exist; choose from {', '.join(map(str, names))}")
    tables = []
    for name in variables or names:
        variable = ds[name]
        places = np.indices(variable.shape).reshape(variable.ndim, variable.size)
        columns: dict[str, object] = {"variable": name}
        for dim, at in zip(variable.dims, places, strict=True):
            columns[str(dim)] = ds[dim].values[at] if dim in ds.coords else at
        tables.append(pd.DataFrame(columns | {"value": _numbers(variable)}))
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"variable": [], "value": []})
    dims = [column for column in table.columns if column not in ("variable", "value")]
    return table[["variable", *dims, "value"]]


def _numbers(variable: xr.DataArray) -> np.ndarray:
    """List the values; true and false become 1 and 0, as beside other numbers nothing else can be written."""
    values = variable.values.reshape(-1)
    return values.astype(np.int8) if values.dtype.kind == "b" else values


def _stack(entries: list[xr.Variable]) -> xr.Variable:
    """Concatenate along `prompt`, filling up what is shorter in another dimension."""
    dims = entries[0].dims
    axis = dims.index("prompt")
    values = [entry.transpose(*dims).values for entry in entries]
    full = np.max([value.shape for value in values], axis=0)
    for number, value in enumerate(values):
        missing = [(0, 0 if i == axis else int(full[i] - size)) for i, size in enumerate(value.shape)]
        if any(after for _, after in missing):
            values[number] = _filled(value, missing)
    return xr.Variable(dims, np.concatenate(values, axis=axis), entries[0].attrs)


def _filled(value: np.ndarray, missing: list[tuple[int, int]]) -> np.ndarray:
    if value.dtype.kind in "UOT":
        return np.pad(value.astype(object), missing, constant_values="").astype(value.dtype)
    if value.dtype.kind != "f":
        value = value.astype(np.float64)  # whole numbers have no way to say that nothing is there
    return np.pad(value, missing, constant_values=np.nan)
