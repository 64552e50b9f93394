r"""Inference: standard errors, 95 % intervals and tail probabilities, for few, skewed and grouped values.

A mean has the interval of `coupling_lib.datasets.statistics`, wider where values are skewed. Any other statistic has
the error of the jackknife: the independent *groups* (prompts, models, families of models) are left out one at a time,
and the statistic changes by each one's influence. Correlations are judged on Fisher's scale, $\operatorname{artanh} r$,
where their error does not depend on their size. `book/calibration.py` measures the error rates of all of this.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from coupling_lib.datasets.statistics import UPPER_QUANTILE, ends, finite, inverse_hall, skewness, standard_error
from coupling_lib.errors import ParameterError

Statistic = Callable[[NDArray[np.int64]], float]
"""A number computed from the rows of a table, given by their positions."""


class Effect(NamedTuple):
    """A measured effect with all properties that a verdict needs."""

    value: float  #: The estimate.
    low: float  #: Lower end of its 95 % interval.
    high: float  #: Upper end.
    error: float  #: Its standard error; of a correlation, on Fisher's scale.
    n: int  #: Number of independent values behind it: prompts, models, or groups of models.
    skew: float = 0.0  #: `skewness` of the averaged values, or of the groups' influences.
    freedom: float = np.nan  #: Degrees of freedom of its error; n - 1 where it is NaN.


def tail(distance: float, freedom: float, skew: float = 0.0) -> float:
    """Return the probability of at least this distance above the truth; the larger of Student's and Hall's."""
    # Below the truth the skew, skewness over the root of n, has the other sign.
    against, reached = max(0.0, -skew), float(distance)
    if against and distance > 0:
        for _ in range(50):  # Newton; the series rises and bends upward, so that each step stays above the root
            slope = 1 + 2 * against * reached / 3 + 5 * against**2 * reached**2 / 9
            step = (inverse_hall(reached, against) - distance) / slope
            reached -= step
            if step < 1e-12 * distance:
                break
    return float(scipy.special.stdtr(freedom, against / 6 - reached))


def effect_of(values: ArrayLike, statistic: str = "mean") -> Effect:
    """Summarise one value per prompt (or model) as an effect."""
    values = finite(values, "values")
    if values.ndim != 1 or statistic not in ("mean", "median"):
        raise ParameterError(
            f"values have shape {values.shape!r} and statistic is {statistic!r}; a list, mean or median"
        )
    n = len(values)
    if not n:
        raise ParameterError("there are no values; an effect needs one or more")
    # Of five values or fewer even the extremes contain the median in less than 95 % of draws.
    if n < (6 if statistic == "median" else 2):
        return Effect(float(getattr(np, statistic)(values)), np.nan, np.nan, np.nan, n)
    if statistic == "median":
        # The number of values below the median is binomial with probability 1/2, whatever their distribution.
        below = max(0, int(scipy.stats.binom.ppf(1 - UPPER_QUANTILE, n, 0.5)) - 1)
        low, *_, high = np.sort(values)[below : n - below]
        error = (high - low) / 2 / scipy.stats.t.ppf(UPPER_QUANTILE, n - 1)
        return Effect(float(np.median(values)), float(low), float(high), float(error), n)
    value, error, skew = float(values.mean()), float(standard_error(values)), float(skewness(values))
    low, high = ends(value, error, n - 1, skew / n**0.5)
    return Effect(value, float(low), float(high), error, n, skew)


def detectable(error: float, freedom: float, lean: float = 0.0, level: float = 0.05) -> float:
    """Return the effect that is found with a power of 80 %, of the sign that takes more; `lean` as in `tail`."""
    against, quantile = abs(lean), scipy.special.stdtrit(freedom, 1 - level / 2)
    # The distance whose `tail` is half the level; the truth has to lie further out, to reach it so often.
    least = inverse_hall(quantile + against / 6, against)
    return float((least + scipy.special.stdtrit(freedom, 0.8)) * error)


def detectable_correlation(r: Effect, level: float = 0.05) -> float:
    """Return the correlation that an error like this one's detects with a power of 80 %."""
    return float(np.tanh(detectable(r.error, _freedom_of(r), level=level)))


def p_value(r: Effect) -> float:
    """Return the two-sided p-value of no correlation."""
    return 2 * tail(abs(float(_fisher(r.value))) / r.error, _freedom_of(r))


def _freedom_of(effect: Effect) -> float:
    return effect.n - 1 if np.isnan(effect.freedom) else effect.freedom


def with_error(effect: Effect, error: float, freedom: float) -> Effect:
    """Add an error of another source, over which the effect was not measured, to that of an effect."""
    spread = float(np.hypot(effect.error, error))
    skew = effect.skew * (effect.error / spread) ** 3 if spread else 0.0
    freedom = min(effect.n - 1, freedom)
    low, high = ends(effect.value, spread, freedom, skew / effect.n**0.5)
    return Effect(effect.value, float(low), float(high), spread, effect.n, skew, freedom)


def jackknifed(
    statistic: Statistic,
    groups: ArrayLike,
    fisher: bool = False,
    least: float = 0.0,
    left_out: NDArray[np.float64] | None = None,
) -> Effect:
    """Return any statistic of rows with the jackknife error over whole groups, for a correlation on Fisher's scale."""
    groups = checked_groups(groups, np.size(groups))
    names = np.unique(groups)
    n = len(names)
    if n < 2:
        raise ParameterError(f"all {len(groups)} rows are of one group; an error over groups needs two or more")
    scale, back = (_fisher, np.tanh) if fisher else (np.asarray, float)
    whole = np.arange(len(groups))
    value = float(scale(statistic(whole)))
    if left_out is None:  # known already, or computed for each group
        left_out = np.array([statistic(whole[groups != name]) for name in names])
    # If the statistic does not exist without a group, as no variable then varies, it depends on that group alone.
    left = scale(np.nan_to_num(left_out))
    error = max(float(np.sqrt((n - 1) / n * np.sum((left - value) ** 2))), least)
    influence = left.mean() - left
    # On Fisher's scale skewness is negligible.
    freedom, skew = _freedom(influence), 0.0 if fisher else float(skewness(influence))
    low, high = ends(value, error, freedom, skew / n**0.5)
    return Effect(float(back(value)), float(back(low)), float(back(high)), error, n, skew, freedom)


def checked_groups(groups: ArrayLike, n: int) -> NDArray:
    """Return the groups of n rows, refusing those that leave a row out."""
    if np.shape(groups) != (n,) or pd.isna(np.asarray(groups)).any():
        raise ParameterError(f"groups has shape {np.shape(groups)}, or a gap; give each of the {n} rows its group")
    return np.asarray(groups)


def _freedom(influence: NDArray[np.float64]) -> float:
    """Return the degrees of freedom of a sum of squares: those of normal values with an equally uncertain sum."""
    # The fourth power of normal values has a mean of three times their squared variance. With few large influences, as
    # from heavy tails, the error depends on those alone.
    squares, n = influence**2, len(influence)
    fourth = np.sum(squares**2)
    return float(np.clip(3 * np.sum(squares) ** 2 / fourth - 1, min(2, n - 1), n - 1)) if fourth else float(n - 1)


def _fisher(r: ArrayLike) -> NDArray[np.float64]:
    return np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12))
