r"""Intervals, fits and correlations for the numbers the figures show; SciPy does the work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

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


METHODS = ("spearman", "pearson")


class Correlation(NamedTuple):
    """A coefficient of correlation with its bootstrap interval."""

    r: float
    """Coefficient, -1 to 1."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    n: int
    """Number of pairs."""


def correlation(
    x: ArrayLike,
    y: ArrayLike,
    method: str = "spearman",
    given: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Correlation:
    """Correlation of x and y, or their partial correlation with a third variable held fixed."""
    # With z held fixed it is the correlation of what is left of x and y after their best linear prediction from z,
    # $$r_{xy \cdot z} = \frac{r_{xy} - r_{xz} r_{yz}}{\sqrt{(1 - r_{xz}^2)(1 - r_{yz}^2)}}.$$
    # Resamples in which a variable is constant have no coefficient and are left out.
    if method not in METHODS or not 0 < level < 1:
        raise ParameterError(
            f"method is {method!r} and level {level!r}; expected spearman or pearson, and a number between 0 and 1"
        )
    variables = [np.asarray(variable, dtype=float) for variable in ((x, y) if given is None else (x, y, given))]
    shapes = {variable.shape for variable in variables}
    if len(shapes) > 1 or variables[0].ndim != 1 or len(variables[0]) < 4:
        raise ParameterError(f"the variables have shapes {sorted(shapes)}; expected lists of one length, at least 4")
    for name, variable in zip(("x", "y", "given"), variables, strict=False):
        if not np.isfinite(variable).all() or np.ptp(variable) == 0:
            raise ParameterError(f"{name} is constant or not finite; a correlation needs finite, different values")
    n = len(variables[0])
    drawn = np.random.default_rng(seed).integers(n, size=(n_resamples, n))
    r = _coefficient([variable[None] for variable in variables], method)[0]
    if np.isnan(r):
        raise ParameterError("given predicts x or y exactly; nothing is left of it to correlate")
    resampled = _coefficient([variable[drawn] for variable in variables], method)
    low, high = np.nanquantile(resampled, ((1 - level) / 2, (1 + level) / 2))
    return Correlation(float(r), float(low), float(high), n)


def _coefficient(variables: list[NDArray[np.float64]], method: str) -> NDArray[np.float64]:
    """Coefficients of many samples, variables (samples, n); not a number where one cannot be told."""
    if method == "spearman":
        variables = [rankdata(variable, axis=1) for variable in variables]
    centred = [variable - variable.mean(axis=1, keepdims=True) for variable in variables]
    x, y, *given = centred
    r = _cosine(x, y)
    if given:
        r_x, r_y = _cosine(x, given[0]), _cosine(y, given[0])
        left = (1 - r_x**2) * (1 - r_y**2)
        # What is left of an exact prediction is rounding.
        r = (r - r_x * r_y) / np.sqrt(np.where(left > 1e-12, left, np.nan))
    return np.clip(r, -1, 1)


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / np.where(lengths > 0, lengths, np.nan)


def width_curve(d: ArrayLike) -> NDArray[np.float64]:
    r"""Coupling without any coupling, $1 - 1/\sqrt{\lfloor 0.1\,d \rfloor}$."""
    return 1 - np.maximum(1, np.floor(np.asarray(d) / 10)) ** -0.5


def beyond_width(coupling: ArrayLike, d: ArrayLike) -> NDArray[np.float64]:
    r"""What is left of a coupling when the width has been divided out, $(1 - c)\sqrt{0.1\,d}$."""
    return (1 - np.asarray(coupling)) * np.sqrt(0.1 * np.asarray(d))
