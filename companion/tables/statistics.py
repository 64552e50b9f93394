"""Correlations and fits with their errors, for the numbers that figures show and verdicts rest on."""

from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from companion.tables.inference import Effect, Statistic, checked_groups, jackknifed
from coupling_lib.datasets.statistics import LinearFit, finite, linear_fit
from coupling_lib.errors import ParameterError, UntrustworthyResultError


class PartialCorrelation(NamedTuple):
    """A correlation with other variables held fixed."""

    r: float  #: Pearson correlation of the residuals, -1 to 1.
    p_value: float  #: Two-sided p-value of r = 0 (t test with n - 2 - q degrees of freedom).


def pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return Pearson's correlation, NaN where a variable is constant."""
    if (x == x[0]).all() or (y == y[0]).all():
        return np.nan
    # Written out, since numpy's own takes three times as long, which matters where each group is left out in turn.
    x, y = x - x.sum() / len(x), y - y.sum() / len(y)
    return min(max(float(x @ y / np.sqrt((x @ x) * (y @ y))), -1.0), 1.0)  # NaN stays NaN


def turning_point(y: ArrayLike) -> int:
    """Return the index at which a line with one bend fits a series best by least squares."""
    y = finite(y, "y")
    if y.ndim != 1 or len(y) < 5:
        raise ParameterError(f"y has shape {y.shape!r}; a line that bends once needs a list of five values or more")
    x = np.arange(len(y))

    def left(bend: int) -> float:
        design = np.column_stack([np.ones(len(y)), x, np.maximum(0, x - bend)])
        return float(np.sum((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2))

    return min(range(2, len(y) - 2), key=left)


def fit_with_interval(x: ArrayLike, y: ArrayLike) -> LinearFit:
    """Fit a line; its R² has the 95 % interval of the correlation, squared."""
    fit = linear_fit(x, y)
    if fit.n < 4 or np.ptp(y) == 0:
        return fit
    low, high = squared(correlation_over(x, y))[1:3]
    return fit._replace(low=low, high=high)


def squared(r: Effect) -> Effect:
    """Return R², the square of a correlation, with its interval; one that contains no correlation begins at 0."""
    low, high = sorted(end**2 for end in (r.low, r.high))
    return r._replace(value=r.value**2, low=0.0 if r.low <= 0 <= r.high else low, high=high)


def correlation_over(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Effect:
    """Return Pearson's correlation of x and y over groups as independent units; by default over rows."""
    x, y = _paired(x=x, y=y)
    left_out = _without_each(x, y, np.empty((len(x), 0))) if groups is None else None
    return _correlated(lambda rows: pearson(x[rows], y[rows]), len(x), groups, left_out=left_out)


def partial_over(x: ArrayLike, y: ArrayLike, given: ArrayLike, groups: ArrayLike | None = None) -> Effect:
    """Return Pearson's correlation of x and y over groups, given the best linear prediction of both from `given`."""
    x, y = _paired(x=x, y=y)
    given = np.column_stack([np.asarray(given, dtype=float)])  # one variable is a column
    partial_correlation(x, y, given)  # refuses undetermined cases

    def r(rows: NDArray[np.int64]) -> float:
        a, b = (residuals(values[rows], given[rows]) for values in (x, y))
        size = np.linalg.norm(a) * np.linalg.norm(b)
        return float(np.clip(a @ b / size, -1, 1)) if size > 1e-9 else np.nan

    left_out = _without_each(x, y, given) if groups is None else None
    return _correlated(r, len(x), groups, given.shape[1], left_out)


def _without_each(x: NDArray[np.float64], y: NDArray[np.float64], given: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlate x and y, `given` held fixed, without each row in turn; NaN where a variable then does not vary."""
    # Leaving a row out subtracts $a_i b_i / (1 - h_i)$ from the sum of products of residuals a and b, with $h_i$ the
    # squared norm of the row's projection onto the design: no fit is repeated.
    U, S, _ = np.linalg.svd(np.column_stack([np.ones(len(x)), given]), full_matrices=False)
    U = U[:, S > len(x) * np.finfo(float).eps * S[0]]
    left = 1 - np.sum(U**2, axis=1)
    weight = np.divide(1, left, out=np.zeros_like(left), where=left > 1e-12)  # an exactly fitted row adds nothing
    a, b = (values - U @ (U.T @ values) for values in (x, y))
    xx, xy, yy = (first @ second - first * second * weight for first, second in ((a, a), (a, b), (b, b)))
    varies = (xx > 1e-12 * (a @ a)) & (yy > 1e-12 * (b @ b))
    return np.where(varies, np.clip(xy / np.sqrt(np.where(varies, xx * yy, 1)), -1, 1), np.nan)


def correlation(x: ArrayLike, y: ArrayLike, given: ArrayLike | None = None) -> Effect:
    """Return Spearman's correlation of x and y, optionally with a third variable held fixed."""
    # It is Pearson's of the ranks, ties sharing their mean rank. With z held fixed it is that of the residuals
    # of the ranks of x and y after their best linear prediction from those of z.
    table = np.array(_paired(x=x, y=y) if given is None else _paired(x=x, y=y, given=given))
    ranks = scipy.stats.rankdata(table, axis=1)
    left_out = np.array([_of_ranks(_ranks_without(place, ranks)) for place in range(table.shape[1])])
    found = _correlated(lambda rows: _of_ranks(ranks), table.shape[1], None, len(table) - 2, left_out)
    if np.isnan(found.value):
        raise ParameterError("given predicts x or y exactly; nothing is left of it to correlate")
    return found


def _correlated(
    r: Statistic, n: int, groups: ArrayLike | None, given: int = 0, left_out: NDArray[np.float64] | None = None
) -> Effect:
    # Without any relation the variance of a correlation of n rows is 1 / (n - 1), whatever their distribution.
    groups = checked_groups(np.arange(n) if groups is None else groups, n)
    found = jackknifed(r, groups, fisher=True, least=1 / np.sqrt(max(1, n - 1 - given)), left_out=left_out)
    if found.n < 6 and abs(found.value) > 1 - 1e-9:
        # A perfect order of so few often arises by chance, and leaves no variation to estimate an error from.
        return found._replace(low=np.nan, high=np.nan, error=np.nan)
    return found


def _paired(**variables: ArrayLike) -> list[NDArray[np.float64]]:
    """Return variables as arrays, and refuse those without a correlation."""
    found = [np.asarray(values, dtype=float) for values in variables.values()]
    shapes = {values.shape for values in found}
    if len(shapes) > 1 or found[0].ndim != 1 or len(found[0]) < 4:
        raise ParameterError(f"the variables have shapes {sorted(shapes)}; expected lists of one length, at least 4")
    for name, values in zip(variables, found, strict=True):
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            raise ParameterError(f"{name} is constant or not finite; a correlation needs finite, different values")
    return found


def _ranks_without(place: int, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank each variable again without one row: higher ranks fall by 1, equal ones by a half."""
    own = ranks[:, [place]]
    return np.delete(ranks - (ranks > own) - 0.5 * (ranks == own), place, axis=1)


def _of_ranks(ranks: NDArray[np.float64]) -> float:
    """Correlate the first two variables' ranks, given the third's if there is one; NaN without residual variation."""
    if (np.ptp(ranks, axis=1) == 0).any():
        return np.nan
    r = np.corrcoef(ranks)
    if len(ranks) == 2:
        return float(r[0, 1])
    left = (1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2)
    # The residual of an exact prediction is rounding.
    return float(np.clip((r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt(left), -1, 1)) if left > 1e-12 else np.nan


def residuals(values: ArrayLike, given: ArrayLike) -> NDArray[np.float64]:
    """Subtract the best linear prediction from `given` from a variable."""
    y = np.asarray(values, dtype=float)
    design = np.column_stack([np.ones(len(y)), np.asarray(given, dtype=float)])
    return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]


def partial_correlation(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> PartialCorrelation:
    """Return Pearson's correlation of x and y after the best linear prediction from `given` is subtracted from both."""
    x, y, given = finite(x, "x"), finite(y, "y"), finite(given, "given")
    given = given.reshape(len(given), -1) if given.ndim else given.reshape(1, 1)
    n, q = given.shape
    if x.shape != (n,) or y.shape != (n,) or n < q + 3:
        raise ParameterError(
            f"x has shape {x.shape!r}, y {y.shape!r} and given {given.shape!r}; expected one length, "
            f"at least {q + 3} with {q} variable(s) held fixed"
        )
    a, b = residuals(x, given), residuals(y, given)
    for name, variable, residual in (("x", x, a), ("y", y, b)):
        # The residual of an exact prediction is rounding, which correlates with anything.
        if np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(variable):
            raise UntrustworthyResultError(f"given predicts {name} exactly; nothing is left of it to correlate")
    r, freedom = float(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1)), n - 2 - q
    t = np.inf if abs(r) == 1 else abs(r) * np.sqrt(freedom / (1 - r**2))
    return PartialCorrelation(r, float(2 * scipy.stats.t.sf(t, freedom)))


def uncoupled(k: ArrayLike) -> NDArray[np.float64]:
    r"""Return coupling by `released_trace` for a flat spectrum and random bases, about $1 - 1/\sqrt K$."""
    return 1 - np.maximum(1, np.asarray(k)) ** -0.5


def width_curve(d: ArrayLike) -> NDArray[np.float64]:
    r"""Return the same for the released code's $K = \lfloor 0.1\,d \rfloor$: the curve of the paper's figure 1a."""
    return uncoupled(np.floor(np.asarray(d) / 10))


def beyond_width(coupling: ArrayLike, d: ArrayLike) -> NDArray[np.float64]:
    r"""Return a coupling with the width divided out, $(1 - c)\sqrt{0.1\,d}$."""
    return (1 - np.asarray(coupling)) * np.sqrt(0.1 * np.asarray(d))
