"""Intervals on data of known truth, against scipy and by how often they hold, and lines."""

import math

import numpy as np
import pytest
import scipy.stats
from refusals import refused
from skewed import shrunken_skewness

from coupling_lib.datasets.statistics import linear_fit, mean_interval, skewness
from coupling_lib.errors import ParameterError, UntrustworthyResultError


def test_skewness_equals_scipy_where_small_along_any_axis():
    values = np.random.default_rng(0).normal(size=(9, 400))
    shown = scipy.stats.skew(values, bias=False)
    np.testing.assert_allclose(skewness(values), shrunken_skewness(values))
    little, much = np.abs(shown) < 1 / 3, np.abs(shown) > 1
    np.testing.assert_allclose(skewness(values)[little], shown[little])
    assert (np.abs(skewness(values)[much]) == pytest.approx(3)) and 40 < much.sum() < little.sum()
    np.testing.assert_allclose(skewness(-values.T, axis=1), -skewness(values))
    assert skewness(np.full((5, 2), 0.3)).tolist() == [0, 0] and skewness(np.array([1.0, 1.0, 1.0, 4.0])) == 0
    assert mean_interval(np.full((6, 2), 0.25)).low.tolist() == mean_interval(np.full((6, 2), 0.25)).high.tolist()
    values = np.random.default_rng(5).exponential(size=(3, 12))
    across, alone = mean_interval(values, axis=1), [mean_interval(row) for row in values]
    assert across.low.tolist() == pytest.approx([float(one.low) for one in alone])
    refused(ParameterError, "at least two", mean_interval, [1.0])
    refused(UntrustworthyResultError, "1 NaN", mean_interval, [1.0, float("nan")])


def covered(mean: float, values: np.ndarray) -> float:
    """How often an interval holds the mean."""
    found = mean_interval(values)
    return np.mean((found.low <= mean) & (mean <= found.high))


@pytest.mark.parametrize("n", [12, 24, 48])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("values", "settings", "mean"),
    [("exponential", {}, 1), ("lognormal", {"sigma": 1}, math.exp(0.5)), ("lognormal", {"sigma": 0.7}, math.exp(0.245)),
     ("gamma", {"shape": 0.5}, 0.5), ("weibull", {"a": 0.7}, math.gamma(1 + 1 / 0.7)), ("normal", {}, 0),
     ("standard_t", {"df": 3}, 0), ("uniform", {}, 0.5)],
)  # fmt: skip
def test_mean_intervals_cover_the_mean_of_skewed_values(values, settings, mean, sign, n):
    draws = getattr(np.random.default_rng(6), values)(**settings, size=(n, 10_000))
    assert 0.94 < covered(sign * mean, sign * draws) < 0.985


def test_mean_intervals_of_few_values_cover_less():
    mean = math.exp(0.5)
    for n, coverage in [(5, 0.91), (6, 0.918), (8, 0.931)]:
        draws = np.random.default_rng(8).lognormal(size=(n, 20_000))
        assert covered(mean, draws) == pytest.approx(coverage, abs=0.006)
    rng = np.random.default_rng(9)
    mixture = rng.normal(size=(12, 20_000)) + 5 * (rng.random((12, 20_000)) < 0.1)
    assert covered(0.5, mixture) == pytest.approx(0.918, abs=0.006)
    draws = np.random.default_rng(6).lognormal(size=(12, 10_000))
    half = scipy.stats.t.ppf(0.975, 11) * scipy.stats.sem(draws)
    assert np.mean(np.abs(draws.mean(axis=0) - mean) <= half) == pytest.approx(0.845, abs=0.01)


def test_linear_fit_equals_scipy():
    x, y = np.random.default_rng(4).normal(size=(2, 25))
    slope, intercept = np.polyfit(x, y, 1)
    explained = 1 - (y - slope * x - intercept).var() / y.var()
    wanted = (slope, intercept, explained, scipy.stats.linregress(x, y).pvalue, 25)
    assert linear_fit(x, y)[:5] == pytest.approx(wanted)
    refused(ParameterError, "at least 3", linear_fit, [1, 2], [1, 2])
    refused(ParameterError, "different abscissae", linear_fit, [2, 2, 2], [1, 2, 3])
