r"""Prediction of one quantity by another over a few dozen models: fits, cross-validation, intervals, corrections.

Models of a suite are not independent draws: checkpoints come from one run, sizes from one family. So all functions
accept *groups*, which are left out whole.
"""

from collections.abc import Mapping

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from companion.tables.inference import Effect, jackknifed
from companion.tables.statistics import partial_correlation
from coupling_lib.datasets.statistics import ends
from coupling_lib.errors import ParameterError

FITS = ("linear", "exponential")
"""Shapes of a dependence on one variable; each is fitted by least squares."""

STEEPEST = 3.0
"""Largest rate of an exponential, per standard deviation of its variable."""

_LINE = make_pipeline(StandardScaler(), LinearRegression())


def predicted(
    x: ArrayLike, y: ArrayLike, at: ArrayLike, fit: str = "linear", seen: ArrayLike | None = None
) -> NDArray[np.float64]:
    r"""Predict y at other x by a line or $y = a + b\, e^{c z}$, $z$ being x scaled to mean 0 and deviation 1."""
    # `seen` tells, fit by fit, which points it uses; all fits are computed together.
    if fit not in FITS:
        raise ParameterError(f"fit is {fit!r}; expected one of {', '.join(FITS)}")
    x, y, at = (np.asarray(values, dtype=float) for values in (x, y, at))
    weight = np.ones((1, len(x))) if seen is None else np.asarray(seen, dtype=float)
    n = weight.sum(axis=1, keepdims=True)
    centre, height = weight @ x[:, None] / n, weight @ y[:, None] / n
    scale = np.sqrt((weight * (x - centre) ** 2).sum(axis=1, keepdims=True) / n)
    scale[scale == 0] = 1
    z = (x - centre) / scale

    def solved(rates: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Return the mean of the curve at each rate, factor b, and the sum of squares that the fit explains."""
        curve = _exponential(z[:, None], rates[..., None])
        middle = (weight[:, None] * curve).sum(axis=2) / n
        apart = weight[:, None] * (curve - middle[..., None])
        along, size = apart @ (y - y.mean()), (apart * curve).sum(axis=2)
        factor = np.divide(along, size, out=np.zeros_like(along), where=size > 0)
        return middle, factor, factor * along

    rate, reach = np.zeros((len(weight), 1)), STEEPEST
    for tries in (61, *[13] * 6) if fit == "exponential" else ():  # between the neighbours of the best so far
        tried = np.clip(rate + reach * np.linspace(-1, 1, tries), -STEEPEST, STEEPEST)
        rate = np.take_along_axis(tried, solved(tried)[2].argmax(axis=1)[:, None], axis=1)
        reach *= 2 / (tries - 1)
    middle, factor, _ = solved(rate)
    return height + factor * (_exponential((at - centre) / scale, rate) - middle)


def _exponential(z: NDArray[np.float64], rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute (exp(c z) - 1) / c, which is z at c = 0: the line is one of the exponentials, and never fits better."""
    flat = np.abs(rate) < 1e-9
    return np.where(flat, z, np.expm1(rate * z) / np.where(flat, 1, rate))


def r_squared(X: ArrayLike, y: ArrayLike) -> float:
    """Return the share of the variance of y that a linear fit to X explains."""
    X, y = _columns(X, y)
    return float(LinearRegression().fit(X, y).score(X, y))


def drawn_folds(n: int, n_seeds: int = 1, n_folds: int = 10) -> NDArray[np.int64]:
    """Draw the fold of each of n points at random, several times."""
    found = np.empty((n_seeds, n), dtype=np.int64)
    for seed, folds in enumerate(found):
        for name, (_, own) in enumerate(KFold(min(n_folds, n), shuffle=True, random_state=seed).split(folds)):
            folds[own] = name
    return found


def held_out_squares(x: ArrayLike, y: ArrayLike, folds: ArrayLike, fit: str = "linear") -> NDArray[np.float64]:
    """Return squared errors of predictions for held-out points, for each draw of the folds."""
    y, every = np.asarray(y, dtype=float), np.arange(len(y))

    def squares(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        names, own = np.unique(drawn, return_inverse=True)
        return np.square(y - predicted(x, y, x, fit, drawn != names[:, None])[own, every])

    return np.array([squares(drawn) for drawn in np.asarray(folds)])


def held_out_r_squared(X: ArrayLike, y: ArrayLike, groups: ArrayLike) -> float:
    """Return R² of predictions for whole held-out groups."""
    X, y = _columns(X, y)
    groups = np.asarray(groups)
    if len(set(groups.tolist())) < 2:
        raise ParameterError(
            f"groups holds only {groups.tolist()[0]!r}; leaving one group out needs two different ones"
        )
    if np.ptp(y) == 0:
        return np.nan  # there is nothing to explain
    return float(r2_score(y, cross_val_predict(_LINE, X, y, cv=LeaveOneGroupOut(), groups=groups)))


def lead_over(own: ArrayLike, rival: ArrayLike, y: ArrayLike, groups: ArrayLike, signed: bool = False) -> Effect:
    """Return the difference of two R², of a variable and of a rival for y, with its interval over groups."""
    table = np.array([own, rival, y], dtype=float)
    # It lies between -1 and 1, with signs between -2 and 1. Mapped to (-1, 1), it is judged on Fisher's scale.
    middle, half = (-0.5, 1.5) if signed else (0.0, 1.0)

    def lead(rows: NDArray[np.int64]) -> float:
        if np.ptp(table[1, rows]) == 0:
            return np.nan
        r = np.corrcoef(table[:, rows])[2, :2]
        return float(((np.sign(r[0]) if signed else 1) * r[0] ** 2 - r[1] ** 2 - middle) / half)

    found = jackknifed(lead, groups, fisher=True)
    value, scaled = middle + half * found.value, np.arctanh(np.clip(found.value, -1 + 1e-12, 1 - 1e-12))
    # Two slopes are fitted, so that n - 3 replaces n - 1, as in the variance of residuals: without that,
    # intervals are too short.
    error = found.error * ((found.n - 1) / max(1, found.n - 3)) ** 0.5
    low, high = middle + half * np.tanh(ends(scaled, error, found.freedom))
    # The returned error is in the effect's own unit, with the same ratio to its distance from 0.
    from_none = scaled - np.arctanh(-middle / half)
    error *= value / from_none if from_none else half * (1 - (middle / half) ** 2)
    return found._replace(value=value, low=float(low), high=float(high), error=float(error))


def given_all_others(variables: Mapping[str, ArrayLike], y: ArrayLike) -> dict[str, tuple[float, float]]:
    """Return the partial correlation of each variable with y, all others held fixed; none if there is one only."""
    if len(variables) < 2:
        return {}
    others = {name: [x for key, x in variables.items() if key != name] for name in variables}
    return {name: tuple(partial_correlation(x, y, np.column_stack(others[name]))) for name, x in variables.items()}


def corrected(p_values: ArrayLike, method: str = "holm") -> NDArray[np.float64]:
    """Correct p-values for the number of hypotheses tested."""
    p = np.array(p_values, dtype=float)
    if (tried := ~np.isnan(p)).sum() < len(p):  # tests without a p-value are not counted
        p[tried] = corrected(p[tried], method)
        return p
    if method == "bh":
        return scipy.stats.false_discovery_control(p)
    if method != "holm":
        raise ParameterError(f"method is {method!r}; expected 'holm' or 'bh'")
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(stepped, 1)[np.argsort(order)]


def _columns(X: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    X = X.reshape(len(X), -1)
    if len(X) != len(y) or y.ndim != 1 or not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise ParameterError(f"X has shape {X.shape!r} and y {y.shape!r}; expected one length and finite numbers")
    return X, y
