"""Where a job may end early: once half the interval of a mean over finished prompts is as narrow as was asked.

The prompts are looked at in their order, so that a job ends at the same one however they were measured.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from coupling_lib.errors import CouplingError
from coupling_lib.measures.depth import coupling_of_blocks
from coupling_lib.metrics.inference import mean_interval

FEWEST = 8
"""Prompts that are measured at least: of a few, some agree by accident."""


class Until:
    """Follow the interval of a mean over prompts: of a variable, or of coupling across depth."""

    def __init__(self, until: float, of: str | None, n_prompts: int):
        self.until, self.of, self.n_prompts = until, of, n_prompts
        self.values: list[float] = []

    def enough(self, ds: xr.Dataset) -> bool:
        """Take one more prompt, and say whether the interval is narrow enough now."""
        self.values.append(self._value(ds))
        return self._reached

    @property
    def _reached(self) -> bool:
        return len(self.values) >= FEWEST and self.half_width < self.until

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of the mean; NaN for a single prompt."""
        if len(self.values) < 2:
            return float("nan")
        found = mean_interval(np.array(self.values))
        return float(found.high - found.low) / 2

    def record(self) -> dict[str, str | float]:
        """Say for a receipt how far the job went, and why it ended."""
        after = f"after {len(self.values)} of {self.n_prompts} prompts"
        name = self.of or coupling_of_blocks.__name__
        width = f"half width {self.half_width:.3g} of the 95 % interval of the mean {name}"
        ended = f"{after}: {width} is below {self.until:g}" if self._reached else f"not early, {after}: {width}"
        return {"stopped": ended, "until": self.until, "half_width": self.half_width}

    def _value(self, ds: xr.Dataset) -> float:
        if self.of is None:
            found = coupling_of_blocks(ds)
        else:
            numbers = [name for name, x in ds.data_vars.items() if "prompt" in x.dims and x.dtype.kind in "fiub"]
            if self.of not in numbers:
                raise CouplingError(f"of is {self.of!r}, which is no variable of numbers of each prompt; "
                                    f"give of one of {', '.join(map(str, numbers))}")  # fmt: skip
            found = ds[self.of]
        present = np.asarray(found, dtype=float)
        present = present[~np.isnan(present)]
        if not (present.size and np.isfinite(value := float(present.mean()))):
            raise CouplingError(f"{self.of} holds no finite number for the prompt {str(ds.prompt.values[0])[:40]!r}; "
                                "give of another variable")  # fmt: skip
        return value
