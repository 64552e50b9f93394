r"""How sure a correlation over few points is: $R^2$ of a line with its bootstrap interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.statistics import FEW, linear_fit


class FitInterval(NamedTuple):
    """A least-squares line and how well it holds."""

    slope: float
    """Change of y per unit of x."""
    intercept: float
    """y at x = 0."""
    r_squared: float
    """Share of the variance of y that the line explains, 0 to 1."""
    low: float
    """Lower end of the bootstrap interval of `r_squared`."""
    high: float
    """Its upper end."""
    p_value: float
    """Two-sided p-value of the hypothesis that the slope is 0 (t test)."""
    n: int
    """Number of points."""


def fit_with_interval(
    x: ArrayLike, y: ArrayLike, level: float = 0.95, n_resamples: int = 4000, seed: int = 0
) -> FitInterval:
    """Fit a line and resample its points."""
    # Pairs $(x_i, y_i)$ are drawn again with replacement; the interval holds the middle `level` of the $R^2$
    # obtained. Its lower end lies above 0 even without any relation, because $R^2$ is never negative and no sample
    # has a correlation of exactly 0: the p-value speaks about that. Below `statistics.FEW` points the percentile
    # bootstrap is too narrow. The interval is then that of the correlation, Student's t on Fisher's scale, squared:
    # from 0 if it contains 0.
    if not 0 < level < 1:
        raise ParameterError(f"level is {level!r}; expected a number between 0 and 1, for example 0.95")
    fit = linear_fit(x, y)
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    drawn = np.random.default_rng(seed).integers(len(x), size=(n_resamples, len(x)))
    dx, dy = (v[drawn] - v[drawn].mean(axis=1, keepdims=True) for v in (x, y))
    spread = (dx**2).sum(axis=1) * (dy**2).sum(axis=1)
    # A resample that drew a single point again and again has no line.
    usable = spread > 1e-24 * max(np.ptp(x) * np.ptp(y), 1e-300) ** 2
    r_squared = (dx * dy).sum(axis=1)[usable] ** 2 / spread[usable]
    low, high = np.quantile(r_squared, ((1 - level) / 2, (1 + level) / 2)) if usable.any() else (np.nan, np.nan)
    if 3 < len(x) < FEW:
        low, high = _few(float(np.sign(fit.slope)) * fit.r_squared**0.5, len(x), level)
    return FitInterval(fit.slope, fit.intercept, fit.r_squared, float(low), float(high), fit.p_value, len(x))


def _few(r: float, n: int, level: float) -> tuple[float, float]:
    """Interval of a squared correlation over few points."""
    z = np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12))
    half = scipy.stats.t.ppf(0.5 + level / 2, n - 2) / np.sqrt(n - 3)
    low, high = np.tanh([z - half, z + half])
    return (0.0 if low <= 0 <= high else float(min(low**2, high**2))), float(max(low**2, high**2))
