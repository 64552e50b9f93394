"""Intervals, fits and correlations for the numbers the figures show; SciPy does the work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from coupling_lib.errors import ParameterError, UntrustworthyResultError


class Interval(NamedTuple):
    """A mean with its interval."""

    mean: NDArray[np.float64]
    """The mean."""
    low: NDArray[np.float64]
    """Lower end, of the same shape."""
    high: NDArray[np.float64]
    """Upper end, of the same shape."""


class Effect(NamedTuple):
    """A measured effect with all that a verdict needs to know of it."""

    value: float
    """The estimate."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end."""
    error: float
    """Its standard error."""
    n: int
    """Number of independent values behind it: prompts, models, or groups of models."""


class LinearFit(NamedTuple):
    """A least-squares line."""

    slope: float
    """Change of y per unit of x."""
    intercept: float
    """y at x = 0."""
    r_squared: float
    """Share of the variance of y that the line explains, 0 to 1."""
    p_value: float
    """Two-sided p-value of the hypothesis that the slope is 0 (t test with n - 2 degrees of freedom)."""


class PartialCorrelation(NamedTuple):
    """A correlation with other variables held fixed."""

    r: float
    """Pearson correlation of the residuals, -1 to 1."""
    p_value: float
    """Two-sided p-value of r = 0 (t test with n - 2 - q degrees of freedom)."""


def bootstrap_interval(
    values: ArrayLike, level: float = 0.95, n_resamples: int = 2000, seed: int = 0, axis: int = 0
) -> Interval:
    """Percentile bootstrap interval of a mean."""
    # The values along `axis` (one per prompt, say) are drawn again with replacement, `n_resamples` times; the
    # interval holds the middle `level` of the means obtained. The percentile method is taken because it stays defined
    # where all values agree, as on the diagonal of a mismatch: the interval is then that single point.
    values = _finite(values, "values")
    if values.ndim == 0 or values.shape[axis] < 2:
        raise ParameterError(f"values have shape {values.shape!r}; an interval over axis {axis} needs at least two")
    if not 0 < level < 1:
        raise ParameterError(f"level is {level!r}; expected a number between 0 and 1, for example 0.95")
    result = scipy.stats.bootstrap(
        (values,),
        np.mean,
        axis=axis,
        confidence_level=level,
        n_resamples=n_resamples,
        method="percentile",
        vectorized=True,
        # SciPy holds a whole batch of resamples at once: about 32 MB, whatever the number of block pairs.
        batch=max(1, 2**22 // values.size),
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return Interval(values.mean(axis=axis), np.asarray(low), np.asarray(high))


FEW = 10
"""Below so many values an interval is Student's t: the percentile bootstrap of a few values is too narrow."""


def mean_interval(values: ArrayLike, axis: int = 0) -> Interval:
    """95 % interval of a mean: Student's t below `FEW` values, the percentile bootstrap from there on."""
    # With n values the bootstrap draws from n points alone. Its interval misses the factor $\sqrt{n/(n-1)}$ and the
    # heavier tails of t: for n = 4 it covers some 80 % instead of 95 %.
    values = _finite(values, "values")
    if values.ndim == 0 or not 2 <= values.shape[axis] < FEW:
        return bootstrap_interval(values, axis=axis)
    n = values.shape[axis]
    mean, half = values.mean(axis=axis), scipy.stats.t.ppf(0.975, n - 1) * scipy.stats.sem(values, axis=axis)
    return Interval(mean, np.asarray(mean - half), np.asarray(mean + half))


def effect_of(values: ArrayLike, statistic: str = "mean") -> Effect:
    """Condense one value per prompt (or model) to an effect."""
    values = _finite(values, "values")
    if values.ndim != 1 or statistic not in ("mean", "median"):
        raise ParameterError(
            f"values have shape {values.shape!r} and statistic is {statistic!r}; a list, mean or median"
        )
    n = len(values)
    if n < 2:
        return Effect(float(values[0]), np.nan, np.nan, np.nan, n)
    if statistic == "median":
        found = scipy.stats.bootstrap((values,), np.median, method="percentile", n_resamples=4000, rng=0)
        return Effect(float(np.median(values)), *map(float, found.confidence_interval), float(found.standard_error), n)
    return Effect(*map(float, mean_interval(values)), float(scipy.stats.sem(values)), n)


def paired_interval(changed: ArrayLike, unchanged: ArrayLike, level: float = 0.95) -> Interval:
    """Mean difference of pairs with its interval by Student's t, which is right for few pairs."""
    changed, unchanged = _finite(changed, "changed"), _finite(unchanged, "unchanged")
    if changed.ndim != 1 or changed.shape != unchanged.shape or len(changed) < 2:
        raise ParameterError(
            f"the sides have shapes {changed.shape!r} and {unchanged.shape!r}; two lists of one length, at least 2, fit"
        )
    differences = changed - unchanged
    half = scipy.stats.t.ppf(0.5 + level / 2, len(differences) - 1) * scipy.stats.sem(differences)
    mean = differences.mean()
    return Interval(np.asarray(mean), np.asarray(mean - half), np.asarray(mean + half))


def linear_fit(x: ArrayLike, y: ArrayLike) -> LinearFit:
    """Least-squares line y = slope x + intercept."""
    x, y = _finite(x, "x"), _finite(y, "y")
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3:
        raise ParameterError(f"x has shape {x.shape!r} and y {y.shape!r}; expected two lists of one length, at least 3")
    if np.ptp(x) == 0:
        raise ParameterError(f"x is {x[0]!r} at all {len(x)} points; a line needs different abscissae")
    fit = scipy.stats.linregress(x, y)
    return LinearFit(float(fit.slope), float(fit.intercept), float(fit.rvalue**2), float(fit.pvalue))


def partial_correlation(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> PartialCorrelation:
    """Pearson correlation of x and y after the best linear prediction from `given` is taken out of both."""
    x, y, given = _finite(x, "x"), _finite(y, "y"), _finite(given, "given")
    given = given.reshape(len(given), -1) if given.ndim else given.reshape(1, 1)
    n, q = given.shape
    if x.shape != (n,) or y.shape != (n,) or n < q + 3:
        raise ParameterError(
            f"x has shape {x.shape!r}, y {y.shape!r} and given {given.shape!r}; expected one length, "
            f"at least {q + 3} with {q} variable(s) held fixed"
        )
    design = np.column_stack([np.ones(n), given])
    residuals = []
    for name, variable in (("x", x), ("y", y)):
        residual = variable - design @ np.linalg.lstsq(design, variable, rcond=None)[0]
        # What is left of an exact prediction is rounding, and rounding correlates with anything.
        if np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(variable):
            raise UntrustworthyResultError(f"given predicts {name} exactly; nothing is left of it to correlate")
        residuals.append(residual)
    a, b = residuals
    r = float(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1))
    freedom = n - 2 - q
    t = np.inf if abs(r) == 1 else abs(r) * np.sqrt(freedom / (1 - r**2))
    return PartialCorrelation(r, float(2 * scipy.stats.t.sf(t, freedom)))


def _finite(values: ArrayLike, name: str) -> NDArray[np.float64]:
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise UntrustworthyResultError(
            f"{name} holds {int((~np.isfinite(values)).sum())} NaN or infinite of {values.size} entries"
        )
    return values
