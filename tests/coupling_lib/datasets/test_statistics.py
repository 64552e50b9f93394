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


@pytest.mark.parametrize("n", [8, 12, 16, 24])
@pytest.mark.parametrize("width", [0.55, 0.72, 1.0])
def test_skewness_of_lognormal_samples_underestimates_the_truth(n, width):
    values = np.random.default_rng(n).lognormal(sigma=width, size=(n, 20_000))
    seen = np.median(scipy.stats.skew(values, bias=False)) / np.sqrt(n)
    lean = float(scipy.stats.lognorm(width).stats("s")) / np.sqrt(n)
    assert (3 * seen) ** 2 == pytest.approx(lean, rel=0.36)


@pytest.mark.parametrize("n", [12, 24, 48])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("values", "truth"),
    [("exponential", {}), ("lognormal", {"sigma": 1.0}), ("lognormal", {"sigma": 0.7}), ("gamma", {"shape": 0.5}),
     ("weibull", {"a": 0.7}), ("normal", {}), ("standard_t", {"df": 3}), ("uniform", {})],
)  # fmt: skip
def test_mean_intervals_cover_the_mean_of_skewed_values(values, truth, sign, n):
    means = {"exponential": 1, "gamma": 0.5, "weibull": math.gamma(1 + 1 / 0.7), "uniform": 0.5}
    mean = sign * means.get(values, math.exp(truth.get("sigma", 0) ** 2 / 2) if values == "lognormal" else 0)
    found = mean_interval(sign * getattr(np.random.default_rng(6), values)(**truth, size=(n, 10_000)))
    assert 0.94 < np.mean((found.low <= mean) & (mean <= found.high)) < 0.985


def test_mean_intervals_of_few_values_cover_less():
    for n, coverage in [(5, 0.91), (6, 0.918), (8, 0.931)]:
        found, mean = mean_interval(np.random.default_rng(8).lognormal(size=(n, 20_000))), math.exp(0.5)
        assert np.mean((found.low <= mean) & (mean <= found.high)) == pytest.approx(coverage, abs=0.006)
    rng = np.random.default_rng(9)
    found = mean_interval(rng.normal(size=(12, 20_000)) + 5 * (rng.random((12, 20_000)) < 0.1))
    assert np.mean((found.low <= 0.5) & (found.high >= 0.5)) == pytest.approx(0.918, abs=0.006)
    draws = np.random.default_rng(6).lognormal(size=(12, 10_000))
    half, mean = scipy.stats.t.ppf(0.975, 11) * scipy.stats.sem(draws), math.exp(0.5)
    assert np.mean(np.abs(draws.mean(axis=0) - mean) <= half) == pytest.approx(0.845, abs=0.01)


def test_linear_fit_equals_scipy():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=25), rng.normal(size=25)
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    fit, wanted = linear_fit(x, y), scipy.stats.linregress(x, y)
    assert (fit.slope, fit.intercept, fit.p_value, fit.n) == pytest.approx((slope, intercept, wanted.pvalue, 25))
    assert fit.r_squared == pytest.approx(1 - residual.var() / y.var())
    refused(ParameterError, "at least 3", linear_fit, [1, 2], [1, 2])
    refused(ParameterError, "different abscissae", linear_fit, [2, 2, 2], [1, 2, 3])
