"""Which prompts of a set a sweep measures: one shard of them, or as many as a narrow interval takes."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from coupling_lib.errors import ParameterError, shown
from coupling_lib.metrics.inference import mean_interval

Summary = Callable[[xr.Dataset], xr.DataArray]

FEWEST = 8
"""Prompts that are measured at least before an interval may end a sweep: of a few, some agree by accident."""


def parse_shard(shard: str) -> tuple[int, int]:
    """Read "i/n", the i-th of n shards, counted from 1."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard) if isinstance(shard, str) else None
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise ParameterError(f"shard is {shown(shard)}; it must be a text i/n with i from 1 to n, such as '2/3'")
    return number, count


def parts(given: Sequence[Any]) -> list[int]:
    """Number the prompts; a text that comes twice has the number of its first, or two machines would measure it."""
    first: dict[Any, int] = {}
    return [first.setdefault(x if isinstance(x, str) else place, len(first)) for place, x in enumerate(given)]


def in_shard(given: Sequence[Any], shard: str | None) -> list[tuple[int, Any]]:
    """Give the prompts of a shard, each with its place in the whole set."""
    number, count = (1, 1) if shard is None else parse_shard(shard)
    numbered = zip(enumerate(given), parts(given), strict=True)
    return [placed for placed, part in numbered if part % count == number - 1]


def summarised(by: Summary) -> Callable[[Any], Any]:
    """Give a measure its main number of each prompt, which `sweep` watches where `until` is given."""

    def mark(function: Any) -> Any:
        function.summary = by
        return function

    return mark


class Until:
    """Follow the interval of a mean over prompts, and say when it is narrow enough."""

    # The rule looks at the prompts in their order, so that it ends at the same one however they were measured.

    def __init__(self, until: float, of: str | Summary | None, measure: Any, shard: str | None, n_prompts: int):
        number = isinstance(until, int | float | np.number) and not isinstance(until, bool)
        if not number or not 0 < until < float("inf"):
            raise ParameterError(f"until is {until!r}; it must be a number above 0, the half width to reach, as 0.01")
        if shard is not None:
            raise ParameterError(f"until needs all prompts in one sweep, and shard is {shard!r}; leave one of them out")
        self.until, self.n_prompts = float(until), n_prompts
        self.of = getattr(measure, "summary", None) if of is None else of
        if self.of is None:
            name = getattr(measure, "__name__", type(measure).__name__)
            lack = f"until needs to know of which number, and {name} has no main one"
            raise ParameterError(f"{lack}; give of= the name of one of its variables, or a function of the data set")
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
        """Say, for a measurement's attributes, how far the sweep went and why it ended."""
        name = self.of if isinstance(self.of, str) else getattr(self.of, "__name__", "of")
        after = f"after {len(self.values)} of {self.n_prompts} prompts"
        width = f"half width {self.half_width:.3g} of the 95 % interval of the mean {name}"
        ended = f"{after}: {width} is below {self.until:g}" if self._reached else f"not early, {after}: {width}"
        return {"stopped": ended, "until": self.until, "half_width": self.half_width}

    def _value(self, ds: xr.Dataset) -> float:
        numbers = [name for name, x in ds.data_vars.items() if "prompt" in x.dims and x.dtype.kind in "fiub"]
        choice = f"give of= one of {', '.join(map(str, numbers))}, or a function of the data set"
        if isinstance(self.of, str):
            if self.of not in numbers:
                raise ParameterError(f"of is {self.of!r}, which is no variable of numbers of each prompt; {choice}")
            found = ds[self.of].astype(float)
        elif callable(self.of):
            found = self.of(ds)
        else:
            raise ParameterError(f"of is {self.of!r}; {choice}")
        present = np.asarray(found, dtype=float)
        present = present[~np.isnan(present)]
        value = float(present.mean()) if present.size else float("nan")
        if not np.isfinite(value):
            raise ParameterError(f"of gives {value} for the prompt {str(ds.prompt.values[0])[:40]!r}; {choice}")
        return value
