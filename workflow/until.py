"""Early end of a job: once half the interval of a mean over finished prompts is as narrow as was asked.

The prompts are read in their order, so that a job ends at the same one however they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.errors import CouplingError
from coupling_lib.measures.depth import coupling_of_blocks

FEWEST = 8
"""Minimum number of prompts: a few may agree by accident."""


def number_of(ds: xr.Dataset, of: str | None) -> float:
    """Return one number a prompt: a variable averaged over all but prompts, or the coupling of different blocks."""
    found = coupling_of_blocks(ds) if of is None else ds.get(of)
    if found is None or "prompt" not in found.dims or found.dtype.kind not in "fiub":
        numbers = [name for name, x in ds.data_vars.items() if "prompt" in x.dims and x.dtype.kind in "fiub"]
        raise CouplingError(f"of is {of!r}, which is no variable of numbers of each prompt; "
                            f"give of one of {', '.join(map(str, numbers))}")  # fmt: skip
    value = float(found.astype(float).mean())  # of those that are not NaN
    if not math.isfinite(value):
        raise CouplingError(f"{of} holds no finite number for the prompt {str(ds.prompt.values[0])[:40]!r}; "
                            "give of another variable")  # fmt: skip
    return value


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean; NaN for a single value."""
    if len(values) < 2:
        return math.nan
    found = mean_interval(np.array(values))
    return float(found.high - found.low) / 2


def is_reached(values: Sequence[float], until: float) -> bool:
    """Return whether the interval is narrow enough."""
    return len(values) >= FEWEST and half_width(values) < until


def record(values: Sequence[float], until: float, of: str | None, n_prompts: int) -> dict[str, Any]:
    """Return the number of prompts done and the reason for the end, for a receipt."""
    width, after = half_width(values), f"after {len(values)} of {n_prompts} prompts"
    message = f"half width {width:.3g} of the 95 % interval of the mean {of or coupling_of_blocks.__name__}"
    ended = f"{after}: {message} is below {until:g}" if is_reached(values, until) else f"not early, {after}: {message}"
    return {"stopped": ended, "until": until, "half_width": width}
