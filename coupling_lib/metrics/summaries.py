"""What a measurement says: couplings of pairs of blocks, and their intervals over prompts."""

import numpy as np
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.statistics import mean_interval


def interval(values: xr.DataArray, over: str = "prompt", gaps: bool = True) -> xr.Dataset:
    """Return `mean` and the ends of its 95 % interval, `low` and `high`; NaN for one prompt, and at allowed `gaps`."""
    if over not in values.dims or not values.sizes[over] or values.dtype.kind not in "fiub":
        message = f"dimensions {values.dims} and dtype {values.dtype}"
        raise ParameterError(f"the values have {message}; expected numbers with one or more along {over!r}")
    values = values.transpose(over, ...).astype(float)
    mean = values.mean(over)
    # Prompts of an absent network or of pairs that do not exist have no interval, and no say in one.
    known = np.isfinite(values).all(over) if gaps else xr.ones_like(mean, dtype=bool)
    low, high = xr.full_like(mean, np.nan), xr.full_like(mean, np.nan)
    if values.sizes[over] > 1:
        ends = mean_interval(values.where(known, 0.0).values)
        low, high = (xr.where(known, mean.copy(data=end), np.nan) for end in (ends.low, ends.high))
    return xr.Dataset({"mean": mean, "low": low, "high": high})


def apart(values: xr.DataArray, first: str = "block_1", second: str = "block_2") -> xr.DataArray:
    """Leave pairs of different blocks, or tokens: NaN where one meets itself, which is coupled by construction."""
    return values.astype(float).where(values[first] != values[second])


def pair_couplings(ds: xr.Dataset, variant: str = "normalized_miscoupling", k: int | None = None) -> xr.DataArray:
    """Return the coupling of pairs of blocks, 1 minus their mismatch; NaN where a block meets itself."""
    mismatch = ds[variant] if k is None else ds[variant].sel(k=k, drop=True)
    return 1 - apart(mismatch)
