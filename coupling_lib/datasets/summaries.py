"""Summaries of a measurement: couplings of pairs of blocks, intervals over prompts, and the mean of their null."""

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.errors import ParameterError, shown


class Chance(float):
    """Expected value without coupling: a float with its standard error."""

    error: float
    """Standard error, 0 in closed form."""

    def __new__(cls, value: float, error: float) -> "Chance":
        """Return a value with its standard error."""
        made = super().__new__(cls, value)
        made.error = float(error)
        return made

    def __getnewargs__(self) -> tuple[float, float]:
        """Return the arguments that recreate a copy."""
        return float(self), self.error


def interval(values: xr.DataArray, over: str = "prompt", gaps: bool = True) -> xr.Dataset:
    """Return the `mean` and its 95 % interval, `low` and `high`; NaN for one prompt, and at gaps if `gaps` is True."""
    if over not in values.dims or not values.sizes[over] or values.dtype.kind not in "fiub":
        message = f"dimensions {values.dims} and dtype {values.dtype}"
        raise ParameterError(f"the values have {message}; expected numbers with one or more along {over!r}")
    values = values.transpose(over, ...).astype(float)
    mean = values.mean(over)
    # Prompts of an absent network, and pairs that do not exist, have no interval and do not enter one.
    known = np.isfinite(values).all(over) if gaps else xr.ones_like(mean, dtype=bool)
    low, high = xr.full_like(mean, np.nan), xr.full_like(mean, np.nan)
    if values.sizes[over] > 1:
        ends = mean_interval(values.where(known, 0.0).values)
        low, high = (xr.where(known, mean.copy(data=end), np.nan) for end in (ends.low, ends.high))
    return xr.Dataset({"mean": mean, "low": low, "high": high})


def off_diagonal(values: xr.DataArray, first: str = "block_1", second: str = "block_2") -> xr.DataArray:
    """Set pairs of a block, or token, with itself to NaN: they are coupled by construction."""
    return values.astype(float).where(values[first] != values[second])


def pair_couplings(ds: xr.Dataset, variant: str = "normalized_miscoupling", k: int | None = None) -> xr.DataArray:
    """Return the coupling of pairs of blocks, 1 minus their mismatch; NaN where a block meets itself."""
    if ds.sizes["block_1"] < 2:
        raise ParameterError("the model has 1 block; coupling across depth needs two or more, take a deeper model")
    mismatch = ds[variant] if k is None else ds[variant].sel(k=k, drop=True)
    return 1 - off_diagonal(mismatch)


def mean_couplings(ds: xr.Dataset, variant: str = "normalized_miscoupling", k: int | None = None) -> xr.DataArray:
    """Return each prompt's mean coupling over ordered pairs of different blocks."""
    return pair_couplings(ds, variant, k).mean(("block_1", "block_2"))


def block_couplings(ds: xr.Dataset, variant: str = "normalized_miscoupling", k: int | None = None) -> xr.DataArray:
    """Return the mean coupling of each `block` with all others: of its Jacobian with their vectors, and vice versa."""
    coupling = pair_couplings(ds, variant, k)
    jacobian = coupling.mean("block_2").rename(block_1="block")
    return (coupling.mean("block_1").rename(block_2="block") + jacobian) / 2


def depth_summary(ds: xr.Dataset, variant: str) -> xr.Dataset:
    """Return the mean coupling, 1 - m, over prompts with a 95 % interval; each prompt has the same weight.

    Args:
        ds: a dataset of `measure_depth`.
        variant: name of the mismatch m, a key of `metrics.variants.VARIANTS`.

    Returns:
        `mean`, `low` and `high` `(pairs, k)`, over ordered pairs of different blocks ("all pairs") and over pairs one
        block apart ("neighbours"); the ends are NaN for a single prompt.

    Raises:
        ParameterError: if the model has a single block, or the variant was not measured.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_depth(cl.load_model("nano-neox"), ["It was the best of times"], ks=(10,))
        >>> means = depth_summary(ds, "normalized_miscoupling")["mean"].sel(k=10)
        >>> bool(means.sel(pairs="neighbours") > means.sel(pairs="all pairs"))
        True
    """
    measured = [str(name) for name in ds["variant"].values if name in ds]
    if variant not in measured:
        raise ParameterError(f"the variant {shown(variant)} is unknown; choose from {', '.join(measured)}")
    every = mean_couplings(ds, variant)
    if {ds.sizes["block_1"], ds.sizes["block_2"]} == {ds.sizes.get("distance")}:
        neighbours = 1 - ds["by_distance"].sel(variant=variant, distance=1, drop=True).astype(float)
    else:  # for a dataset of some of the measured blocks
        near = abs(ds["block_1"] - ds["block_2"]) == 1
        neighbours = pair_couplings(ds, variant).where(near).mean(("block_1", "block_2"))
    both = xr.concat([every, neighbours], pd.Index(["all pairs", "neighbours"], name="pairs"))
    summary = interval(both.transpose("prompt", "pairs", "k", ..., missing_dims="ignore"), gaps=False)
    return summary.assign_attrs(ds.attrs | {"variant": variant})


def chance(null: xr.Dataset) -> Chance:
    """Return the mean of a null and of its error over all dimensions, for instance blocks."""
    return Chance(float(null["value"].mean()), float(null["error"].mean()))
