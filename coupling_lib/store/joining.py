"""Concatenation of measurements of single prompts along the dimension `prompt`."""

from collections.abc import Iterable

import numpy as np
import xarray as xr

from coupling_lib.errors import ParameterError


def join_prompts(datasets: Iterable[xr.Dataset]) -> xr.Dataset:
    """Concatenate measurements of single prompts along `prompt`."""
    # Where entries differ in length, the shorter are padded: numbers with NaN, texts with "". Variables independent
    # of the prompt are the first measurement's, and are not kept of any other.
    first, own, parts = None, [], []
    for ds in datasets:
        if first is None:
            first, own = ds, [name for name, variable in ds.variables.items() if "prompt" in variable.dims]
        for name in own:
            if name not in ds.variables:
                raise ParameterError(f"measurement {len(parts) + 1} has no variable {name!r}, which the first has")
        part = ds[own] if ds is first else ds[own].copy(deep=True)
        # Positions along a dimension without coordinates are distinguished by their number.
        parts.append(part.assign_coords({dim: range(n) for dim, n in part.sizes.items() if dim not in part.coords}))
    if first is None:
        raise ParameterError("there is no measurement to join; measure something first")
    if len(parts) == 1:
        return first
    if not own:
        raise ParameterError("the measurements have no dimension 'prompt' to be joined along; measure one prompt")
    kinds = {name: first[name].dtype.kind for name in own}
    empty = {name: "" if kind in "UOT" else np.nan for name, kind in kinds.items()}
    how = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "combine_attrs": "override"}
    joined = xr.concat(parts, dim="prompt", join="outer", fill_value=empty, **how)
    found = {name: (joined if name in joined else first)[name].variable for name in first.variables}
    coords = {name: found.pop(name) for name in first.coords}
    return xr.Dataset(found, coords, first.attrs)
