"""Intervals, fits and correlations for the numbers that figures show and verdicts rest on; SciPy does the work.

Prompts, and models of a suite, are what counts as independent; checkpoints of one run and sizes of one family are
not. So whole *groups* are drawn with replacement and the statistic is computed anew, ranks included (the percentile
bootstrap). Below `FEW` values an interval is Student's t.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from coupling_lib.errors import ParameterError, UntrustworthyResultError

Statistic = Callable[[NDArray[np.int64]], float]
"""A number that is computed from the rows of a table, given by their places."""

FEW = 10
"""Below so many values an interval is Student's t: the percentile bootstrap of a few values is too narrow."""


class Interval(NamedTuple):
    """A mean and the ends of its interval, arrays of one shape."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class Effect(NamedTuple):
    """A measured effect with all that a verdict needs to know of it."""

    value: float  #: The estimate.
    low: float  #: Lower end of its 95 % interval.
    high: float  #: Upper end.
    error: float  #: Its standard error.
    n: int  #: Number of independent values behind it: prompts, models, or groups of models.


class LinearFit(NamedTuple):
    """A least-squares line, and how well it holds."""

    slope: float  #: Change of y per unit of x.
    intercept: float  #: y at x = 0.
    r_squared: float  #: Share of the variance of y that the line explains, 0 to 1.
    p_value: float  #: Two-sided p-value of the hypothesis that the slope is 0 (t test with n - 2 degrees of freedom).
    n: int  #: Number of points.
    low: float = np.nan  #: Lower end of the 95 % interval of `r_squared`; `fit_with_interval` gives it.
    high: float = np.nan  #: Its upper end.


class PartialCorrelation(NamedTuple):
    """A correlation with other variables held fixed."""

    r: float  #: Pearson correlation of the residuals, -1 to 1.
    p_value: float  #: Two-sided p-value of r = 0 (t test with n - 2 - q degrees of freedom).


def bootstrap_interval(
    values: ArrayLike, level: float = 0.95, n_resamples: int = 2000, seed: int = 0, axis: int = 0
) -> Interval:
    """Percentile bootstrap interval of a mean."""
    # The percentile method stays defined where all values agree, as on the diagonal of a mismatch: the interval is
    # then that single point.
    values = _finite(values, "values")
    if values.ndim == 0 or values.shape[axis] < 2:
        raise ParameterError(f"values have shape {values.shape!r}; an interval over axis {axis} needs at least two")
    if not 0 < level < 1:
        raise ParameterError(f"level is {level!r}; expected a number between 0 and 1, for example 0.95")
    # SciPy holds a whole batch of resamples at once: about 32 MB, whatever the number of block pairs.
    drawing = {"n_resamples": n_resamples, "batch": max(1, 2**22 // values.size), "rng": np.random.default_rng(seed)}
    taking = {"axis": axis, "confidence_level": level, "method": "percentile", "vectorized": True}
    low, high = scipy.stats.bootstrap((values,), np.mean, **drawing, **taking).confidence_interval
    return Interval(values.mean(axis=axis), np.asarray(low), np.asarray(high))


def mean_interval(values: ArrayLike, axis: int = 0) -> Interval:
    """95 % interval of a mean: Student's t below `FEW` values, the percentile bootstrap from there on."""
    # With n values the bootstrap draws from n points alone. Its interval misses the factor $\sqrt{n/(n-1)}$ and the
    # heavier tails of t: for n = 4 it covers some 80 % instead of 95 %.
    values = _finite(values, "values")
    if values.ndim == 0 or not 2 <= values.shape[axis] < FEW:
        return bootstrap_interval(values, axis=axis)
    return _student(values, axis)


def paired_interval(changed: ArrayLike, unchanged: ArrayLike) -> Interval:
    """Mean difference of pairs with its 95 % interval by Student's t, which is right for few pairs."""
    changed, unchanged = _finite(changed, "changed"), _finite(unchanged, "unchanged")
    if changed.ndim != 1 or changed.shape != unchanged.shape or len(changed) < 2:
        raise ParameterError(
            f"the sides have shapes {changed.shape!r} and {unchanged.shape!r}; two lists of one length, at least 2, fit"
        )
    return _student(changed - unchanged, 0)


def _student(values: NDArray[np.float64], axis: int) -> Interval:
    mean = values.mean(axis=axis)
    half = scipy.stats.t.ppf(0.975, values.shape[axis] - 1) * scipy.stats.sem(values, axis=axis)
    return Interval(np.asarray(mean), np.asarray(mean - half), np.asarray(mean + half))


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


def bootstrap_error(
    statistic: Statistic, groups: ArrayLike, n_resamples: int = 2000, seed: int = 0, fewest: int = 1
) -> tuple[float, float, float]:
    """95 % percentile interval and standard error of any statistic of rows over resampled groups."""
    # Resamples of fewer than `fewest` different groups, and those whose statistic is NaN, say nothing and are left out.
    groups = np.asarray(groups)
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(len(members), size=len(members)) for _ in range(n_resamples))
    if fewest > 1:
        drawn = (chosen for chosen in drawn if len(set(chosen.tolist())) >= fewest)
    alone = np.concatenate(members) if len(members) == len(groups) else None
    rows = (np.concatenate([members[i] for i in chosen]) if alone is None else alone[chosen] for chosen in drawn)
    found = np.array([statistic(chosen) for chosen in rows])
    found = found[np.isfinite(found)]
    if not len(found):
        return np.nan, np.nan, np.nan
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high), float(found.std(ddof=1))


def pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's correlation, NaN where a variable is constant."""
    if (x == x[0]).all() or (y == y[0]).all():
        return np.nan
    # Written out, since numpy's own takes three times as long, which counts in thousands of resamples.
    x, y = x - x.sum() / len(x), y - y.sum() / len(y)
    return min(max(float(x @ y / np.sqrt((x @ x) * (y @ y))), -1.0), 1.0)  # NaN stays NaN


def linear_fit(x: ArrayLike, y: ArrayLike) -> LinearFit:
    """Least-squares line y = slope x + intercept."""
    x, y = _finite(x, "x"), _finite(y, "y")
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3:
        raise ParameterError(f"x has shape {x.shape!r} and y {y.shape!r}; expected two lists of one length, at least 3")
    if np.ptp(x) == 0:
        raise ParameterError(f"x is {x[0]!r} at all {len(x)} points; a line needs different abscissae")
    fit = scipy.stats.linregress(x, y)
    return LinearFit(float(fit.slope), float(fit.intercept), float(fit.rvalue**2), float(fit.pvalue), len(x))


def turning_point(y: ArrayLike) -> int:
    """Place in a series, from 0, at which a line that bends once fits it best by least squares."""
    y = _finite(y, "y")
    if y.ndim != 1 or len(y) < 5:
        raise ParameterError(f"y has shape {y.shape!r}; a line that bends once needs a list of five values or more")
    x = np.arange(len(y))

    def left(bend: int) -> float:
        design = np.column_stack([np.ones(len(y)), x, np.maximum(0, x - bend)])
        return float(np.sum((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2))

    return min(range(2, len(y) - 2), key=left)


def fit_with_interval(x: ArrayLike, y: ArrayLike, n_resamples: int = 4000, seed: int = 0) -> LinearFit:
    """Fit a line, and give its R² the 95 % interval over resampled points."""
    # The lower end lies above 0 even without any relation, because $R^2$ is never negative and no sample has a
    # correlation of exactly 0: the p-value speaks about that. Below `FEW` points the percentile bootstrap is too
    # narrow. The interval is then that of the correlation, Student's t on Fisher's scale, squared: from 0 if it
    # contains 0.
    fit = linear_fit(x, y)
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if 3 < fit.n < FEW:
        ends = fisher_interval(np.sign(fit.slope) * fit.r_squared**0.5, fit.n, scipy.stats.t.ppf(0.975, fit.n - 2))
        low, high = sorted(end**2 for end in ends)
        return fit._replace(low=0.0 if ends[0] <= 0 <= ends[1] else low, high=high)
    every = np.arange(fit.n)
    low, high, _ = bootstrap_error(lambda rows: pearson(x[rows], y[rows]) ** 2, every, n_resamples, seed)
    return fit._replace(low=low, high=high)


def fisher_interval(r: float, n: int, quantile: float, largest: float = 1 - 1e-12) -> tuple[float, float]:
    """Interval of a correlation of n pairs on Fisher's scale, `quantile` standard errors to each side."""
    z, half = np.arctanh(np.clip(r, -largest, largest)), quantile / np.sqrt(n - 3) if n > 3 else np.nan
    return float(np.tanh(z - half)), float(np.tanh(z + half))


def correlation(
    x: ArrayLike, y: ArrayLike, given: ArrayLike | None = None, n_resamples: int = 2000, seed: int = 0
) -> Effect:
    """Spearman's correlation of x and y, perhaps with a third variable held fixed, over resampled pairs."""
    # It is Pearson's of the ranks, ties sharing their mean rank. With z held fixed it is the correlation of what is
    # left of the ranks of x and y after their best linear prediction from those of z.
    variables = [np.asarray(variable, dtype=float) for variable in ((x, y) if given is None else (x, y, given))]
    shapes = {variable.shape for variable in variables}
    if len(shapes) > 1 or variables[0].ndim != 1 or len(variables[0]) < 4:
        raise ParameterError(f"the variables have shapes {sorted(shapes)}; expected lists of one length, at least 4")
    for name, variable in zip(("x", "y", "given"), variables, strict=False):
        if not np.isfinite(variable).all() or np.ptp(variable) == 0:
            raise ParameterError(f"{name} is constant or not finite; a correlation needs finite, different values")
    table, n = np.array(variables), len(variables[0])
    drawn = np.random.default_rng(seed).integers(n, size=(n_resamples, n))
    r, *resampled = _coefficients(table[:, np.vstack([np.arange(n), drawn])])
    if np.isnan(r):
        raise ParameterError("given predicts x or y exactly; nothing is left of it to correlate")
    low, high = np.quantile(np.asarray(resampled)[np.isfinite(resampled)], (0.025, 0.975))
    return Effect(float(r), float(low), float(high), float(high - low) / (2 * 1.96), n)


def _coefficients(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank correlation of two variables, given the third if there is one: (variables, samples, n) to (samples,)."""
    constant = (np.ptp(samples, axis=-1) == 0).any(axis=0)
    values = scipy.stats.rankdata(samples, axis=-1)
    values -= values.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        values /= np.linalg.norm(values, axis=-1, keepdims=True)
        r = np.einsum("isn,jsn->ijs", values, values)
        if len(samples) == 2:
            return np.where(constant, np.nan, r[0, 1])
        left = (1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2)
        partial = np.clip((r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt(left), -1, 1)
    # What is left of an exact prediction is rounding.
    return np.where(constant | (left <= 1e-12), np.nan, partial)


def cleared(values: ArrayLike, given: ArrayLike) -> NDArray[np.float64]:
    """Take the best linear prediction from `given` out of a variable."""
    y = np.asarray(values, dtype=float)
    design = np.column_stack([np.ones(len(y)), np.asarray(given, dtype=float)])
    return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]


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
    a, b = cleared(x, given), cleared(y, given)
    for name, variable, residual in (("x", x, a), ("y", y, b)):
        # What is left of an exact prediction is rounding, and rounding correlates with anything.
        if np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(variable):
            raise UntrustworthyResultError(f"given predicts {name} exactly; nothing is left of it to correlate")
    r, freedom = float(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1)), n - 2 - q
    t = np.inf if abs(r) == 1 else abs(r) * np.sqrt(freedom / (1 - r**2))
    return PartialCorrelation(r, float(2 * scipy.stats.t.sf(t, freedom)))


def width_curve(d: ArrayLike) -> NDArray[np.float64]:
    r"""Coupling without any coupling, $1 - 1/\sqrt{\lfloor 0.1\,d \rfloor}$, which the paper's figure 1a lies on."""
    # The released code's `trace` normalisation is about $1/\sqrt K$ for a flat spectrum and random bases.
    return 1 - np.maximum(1, np.floor(np.asarray(d) / 10)) ** -0.5


def beyond_width(coupling: ArrayLike, d: ArrayLike) -> NDArray[np.float64]:
    r"""What is left of a coupling when the width has been divided out, $(1 - c)\sqrt{0.1\,d}$."""
    return (1 - np.asarray(coupling)) * np.sqrt(0.1 * np.asarray(d))


def _finite(values: ArrayLike, name: str) -> NDArray[np.float64]:
    values = np.asarray(values, dtype=np.float64)
    if wrong := int((~np.isfinite(values)).sum()):
        raise UntrustworthyResultError(f"{name} holds {wrong} NaN or infinite of {values.size} entries")
    return values
