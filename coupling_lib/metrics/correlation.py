r"""Correlation of two measured quantities, alone or with a third held fixed, with a bootstrap interval.

The pairs are drawn again with replacement and the coefficient is computed anew, ranks included: the percentile
bootstrap of pairs. Spearman's coefficient is Pearson's of the ranks, ties sharing their mean rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from coupling_lib.errors import ParameterError

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
