r"""Intervals of means of few, skewed values, and lines through points.

Student's t gives a mean of few skewed values too short an interval on the side of their long tail. Hall's
transformation (1992) corrects that, $h(t) = ((1 + a t / 3)^3 - 1) / a + a / 6$ with $a$, the skewness over the root of
the number of values. It is used where it makes an interval wider, and never where it makes one narrower.

The skewness of few values underestimates that of their distribution: $a$ is at most 1 in a sample. Samples of lognormal
values of $a$ have about $b = \sqrt a / 3$. So a sample's $b$ is replaced by $(3 b)^2$ where that
is larger, up to 1. The rule was chosen on lognormal values, for their errors, and on normal ones, for its cost. Then
it was tested on exponential, gamma and Weibull values of many shapes, on their mirror images, on uniform values, on
Student's t and on mixtures. At 5 % it errs in at most 6 % of the draws of 12 values or more (6.3 % where the skewness
is 6.6), in 7 % where 8 values are lognormal, and in 9 % where 5 are. No rule can allow for a rare large value that was
not drawn: where one value in ten lies five deviations above the others, 12 values err in 8 %.
"""

from typing import NamedTuple

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from coupling_lib.errors import ParameterError, UntrustworthyResultError

UPPER_QUANTILE = 0.975
"""Level of the upper quantile of a 95 % interval, which leaves 2.5 % on either side."""


class Interval(NamedTuple):
    """A mean and the ends of its interval, arrays of one shape."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class LinearFit(NamedTuple):
    """A least-squares line, and its fit."""

    slope: float  #: Change of y per unit of x.
    intercept: float  #: y at x = 0.
    r_squared: float  #: Share of the variance of y that the line explains, 0 to 1.
    p_value: float  #: Two-sided p-value of the hypothesis that the slope is 0 (t test with n - 2 degrees of freedom).
    n: int  #: Number of points.
    low: float = np.nan  #: Lower end of the 95 % interval of `r_squared`, where one was computed.
    high: float = np.nan  #: Its upper end.


def mean_interval(values: ArrayLike, axis: int = 0) -> Interval:
    """Return the 95 % interval of a mean: either end by Student's t or Hall's transformation, the wider of the two."""
    values = finite(values, "values")
    if values.ndim == 0 or values.shape[axis] < 2:
        raise ParameterError(f"values have shape {values.shape!r}; an interval over axis {axis} needs at least two")
    n, mean = values.shape[axis], values.mean(axis=axis)
    low, high = ends(mean, standard_error(values, axis), n - 1, skewness(values, axis) / n**0.5)
    return Interval(np.asarray(mean), np.asarray(low), np.asarray(high))


def standard_error(values: NDArray[np.float64], axis: int = 0) -> NDArray[np.float64]:
    """Return the standard error of a mean."""
    return values.std(axis=axis, ddof=1) / values.shape[axis] ** 0.5


def ends(value: ArrayLike, error: ArrayLike, freedom: ArrayLike, skew: ArrayLike = 0.0) -> tuple[ArrayLike, ArrayLike]:
    """Return the ends of a 95 % interval by Student's and by Hall's distribution, the wider on either side."""
    quantile = scipy.special.stdtrit(freedom, UPPER_QUANTILE)

    def far(against: ArrayLike) -> ArrayLike:
        return inverse_hall(quantile + against / 6, against)

    return value - far(np.maximum(0, -skew)) * error, value + far(np.maximum(0, skew)) * error


def inverse_hall(u: ArrayLike, skew: ArrayLike) -> ArrayLike:
    """Invert Hall's transformation, by the series of its inverse: the cube root jumps at few, very skewed values."""
    return u + skew * u**2 / 3 + 5 * skew**2 * u**3 / 27


def skewness(values: NDArray[np.float64], axis: int = 0) -> NDArray[np.float64]:
    """Return the corrected skewness of few values; 0 where they do not vary or are fewer than five."""
    n = values.shape[axis]
    centred = values - values.mean(axis=axis, keepdims=True)
    variance, third = (centred**2).mean(axis=axis), (centred**3).mean(axis=axis)
    varies = variance > (1e-12 * np.abs(values).max(axis=axis)) ** 2
    if n < 5:
        return np.zeros(variance.shape)
    skew = np.where(varies, third, 0) / np.where(varies, variance, 1) ** 1.5 * np.sqrt(n - 1) / (n - 2)
    shown = np.abs(skew)
    return np.sign(skew) * np.sqrt(n) * np.maximum(shown, np.minimum((3 * shown) ** 2, 1))


def finite(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return values as an array, and refuse NaN and infinite ones."""
    values = np.asarray(values, dtype=np.float64)
    if wrong := int((~np.isfinite(values)).sum()):
        raise UntrustworthyResultError(f"{name} holds {wrong} NaN or infinite of {values.size} entries")
    return values


def linear_fit(x: ArrayLike, y: ArrayLike) -> LinearFit:
    """Fit the least-squares line y = slope x + intercept."""
    x, y = finite(x, "x"), finite(y, "y")
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3:
        raise ParameterError(f"x has shape {x.shape!r} and y {y.shape!r}; expected two lists of one length, at least 3")
    if np.ptp(x) == 0:
        raise ParameterError(f"x is {x[0]!r} at all {len(x)} points; a line needs different abscissae")
    fit = scipy.stats.linregress(x, y)
    return LinearFit(float(fit.slope), float(fit.intercept), float(fit.rvalue**2), float(fit.pvalue), len(x))
