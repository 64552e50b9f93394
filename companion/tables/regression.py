r"""What one quantity says about another over a few dozen models: fits, cross-validation, intervals, corrections.

Models of a suite are not independent draws: checkpoints come from one run, sizes from one family. So everything here
takes *groups*, which are left out whole.
"""

from collections.abc import Mapping
from typing import Self

import numpy as np
import scipy.optimize
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.inference import Effect, jackknifed
from coupling_lib.metrics.statistics import partial_correlation


class ExponentialRegression(RegressorMixin, BaseEstimator):
    r"""Least squares for $y = a + b\, e^{c z}$, with $z$ the single input scaled to mean 0 and deviation 1."""

    # For every $c$ of a grid the best $a$ and $b$ are a linear fit; the best $c$ is then refined between its
    # neighbours. $c = 0$ stands for the straight line, the limit of the family, so that it never fits worse.

    def __init__(self, steepest: float = 3.0) -> None:
        self.steepest = steepest

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit a, b and c."""
        x, y = np.asarray(X, dtype=float).reshape(-1), np.asarray(y, dtype=float)
        self.centre_, self.scale_ = x.mean(), x.std() or 1.0
        z = (x - self.centre_) / self.scale_
        grid = np.linspace(-self.steepest, self.steepest, 61)
        errors = [self._solve(z, y, c)[1] for c in grid]
        best = int(np.argmin(errors))
        around = (grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)])
        found = scipy.optimize.minimize_scalar(lambda c: self._solve(z, y, c)[1], bounds=around, method="bounded")
        self.rate_ = float(found.x) if found.fun < errors[best] else float(grid[best])
        self.coef_ = self._solve(z, y, self.rate_)[0]
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Give the fitted curve."""
        z = (np.asarray(X, dtype=float).reshape(-1) - self.centre_) / self.scale_
        return self.coef_[0] + self.coef_[1] * self._basis(z, self.rate_)

    @staticmethod
    def _basis(z: NDArray[np.float64], c: float) -> NDArray[np.float64]:
        """(exp(c z) - 1) / c, which is z at c = 0."""
        return z if abs(c) < 1e-9 else np.expm1(c * z) / c

    def _solve(self, z: NDArray[np.float64], y: NDArray[np.float64], c: float) -> tuple[NDArray[np.float64], float]:
        design = np.column_stack([np.ones_like(z), self._basis(z, c)])
        coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
        return coefficients, float(np.square(y - design @ coefficients).sum())


FITS: dict[str, BaseEstimator] = {
    "linear": make_pipeline(StandardScaler(), LinearRegression()),
    "exponential": ExponentialRegression(),
}
"""Shapes of a dependence; each is fitted by least squares."""


def r_squared(X: ArrayLike, y: ArrayLike) -> float:
    """Share of the variance of y that a linear fit to X explains."""
    X, y = _columns(X, y)
    return float(LinearRegression().fit(X, y).score(X, y))


def held_out_squares(
    X: ArrayLike, y: ArrayLike, fit: str = "linear", n_seeds: int = 1, n_folds: int = 10
) -> NDArray[np.float64]:
    """Squared errors of predictions for points that the fit has not seen, in folds drawn at random, several times."""
    X, y = _columns(X, y)
    if fit not in FITS:
        raise ParameterError(f"fit is {fit!r}; expected one of {', '.join(FITS)}")
    folds = [KFold(min(n_folds, len(y)), shuffle=True, random_state=seed) for seed in range(n_seeds)]
    return np.array([np.square(y - cross_val_predict(FITS[fit], X, y, cv=cv)) for cv in folds])


def held_out_r_squared(X: ArrayLike, y: ArrayLike, groups: ArrayLike) -> float:
    """R² of predictions for whole groups that the fit has not seen."""
    X, y = _columns(X, y)
    groups = np.asarray(groups)
    if len(set(groups.tolist())) < 2:
        raise ParameterError(
            f"groups holds only {groups.tolist()[0]!r}; leaving one group out needs two different ones"
        )
    return float(r2_score(y, cross_val_predict(FITS["linear"], X, y, cv=LeaveOneGroupOut(), groups=groups)))


def lead_over(own: ArrayLike, rival: ArrayLike, y: ArrayLike, groups: ArrayLike, signed: bool = False) -> Effect:
    """How much better one variable explains y than a rival, as a difference of two R², with an error over groups."""
    table = np.array([own, rival, y], dtype=float)

    def lead(rows: NDArray[np.int64]) -> float:
        if np.ptp(table[1, rows]) == 0:
            return np.nan
        r = np.corrcoef(table[:, rows])[2, :2]
        return float((np.sign(r[0]) if signed else 1) * r[0] ** 2 - r[1] ** 2)

    return jackknifed(lead, groups)


def given_all_others(variables: Mapping[str, ArrayLike], y: ArrayLike) -> dict[str, tuple[float, float]]:
    """Partial correlation of each variable with y, all the other variables held fixed."""
    others = {name: [x for key, x in variables.items() if key != name] for name in variables}
    return {name: tuple(partial_correlation(x, y, np.column_stack(others[name]))) for name, x in variables.items()}


def corrected(p_values: ArrayLike, method: str = "holm") -> NDArray[np.float64]:
    """Correct p-values for the number of hypotheses tried."""
    p = np.asarray(p_values, dtype=float)
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
