"""Errors and intervals on data of known truth: against scipy, against loops written out, and by how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.inference import effect_of, ends, jackknifed, mean_interval, skewness, tail, widened
from coupling_lib.metrics.statistics import pearson


def test_without_skewness_the_interval_and_the_probability_are_student_s():
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) + 7
    found, half = mean_interval(values), scipy.stats.t.ppf(0.975, 4) * scipy.stats.sem(values)
    assert (found.mean, found.low, found.high) == pytest.approx((7, 7 - half, 7 + half))
    assert tail(1.3, 4) == pytest.approx(scipy.stats.t.sf(1.3, 4))


def told(values):
    """Take scipy's skewness for what few values show of it."""
    shown, root = scipy.stats.skew(values, bias=False), np.sqrt(len(values))
    return np.sign(shown) * root * np.maximum(np.abs(shown) / root, np.minimum(1, 9 * shown**2 / root**2))


def test_skewness_is_scipy_s_or_more_and_nothing_where_nothing_varies():
    values = np.random.default_rng(0).normal(size=(9, 400))
    shown = scipy.stats.skew(values, bias=False)
    np.testing.assert_allclose(skewness(values), told(values))
    little, much = np.abs(shown) < 1 / 3, np.abs(shown) > 1
    np.testing.assert_allclose(skewness(values)[little], shown[little])
    assert (np.abs(skewness(values)[much]) == pytest.approx(3)) and 40 < much.sum() < little.sum()
    np.testing.assert_allclose(skewness(-values.T, axis=1), -skewness(values))
    assert skewness(np.full((5, 2), 0.3)).tolist() == [0, 0] and skewness(np.array([1.0, 1.0, 1.0, 4.0])) == 0
    assert mean_interval(np.full((6, 2), 0.25)).low.tolist() == mean_interval(np.full((6, 2), 0.25)).high.tolist()


@pytest.mark.parametrize("n", [8, 12, 16, 24])
@pytest.mark.parametrize("width", [0.55, 0.72, 1.0])
def test_lognormal_values_show_a_third_of_the_root_of_their_lean(n, width):
    values = np.random.default_rng(n).lognormal(sigma=width, size=(n, 20_000))
    seen = np.median(scipy.stats.skew(values, bias=False)) / np.sqrt(n)
    lean = float(scipy.stats.lognorm(width).stats("s")) / np.sqrt(n)
    assert (3 * seen) ** 2 == pytest.approx(lean, rel=0.36)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_end_on_the_side_of_the_long_tail_is_hall_s_and_the_other_student_s(sign):
    values = sign * np.random.default_rng(0).gamma(3, size=10)
    lean, error = abs(told(values)) / np.sqrt(10), scipy.stats.sem(values)
    assert 0.3 < lean < 1
    quantile, mean = scipy.stats.t.ppf(0.975, 9), values.mean()
    found = mean_interval(values)
    long, short = (found.high - mean, mean - found.low)[::sign]
    assert short == pytest.approx(error * quantile)
    assert tail(long / error, 9, -lean) == pytest.approx(0.025) == tail(short / error, 9, lean)
    # For little skewness it is the root of Hall's transformation.
    small = 0.02
    root = scipy.optimize.brentq(lambda t: ((1 - small * t / 3) ** 3 - 1) / -small - small / 6 - quantile, 0, 9)
    assert float(ends(0.0, 1.0, 9, small)[1]) == pytest.approx(root, abs=1e-4)


def test_the_further_out_the_less_likely_however_skewed():
    found = [tail(distance, 11, -0.8) for distance in np.linspace(-3, 30, 200)]
    assert (np.diff(found) < 0).all() and found[-1] < 1e-3
    assert all(tail(d, 11, -0.8) > scipy.stats.t.sf(d, 11) for d in (0.5, 2.0, 8.0))


def test_any_axis_may_be_the_one_of_the_values_and_one_value_has_no_interval():
    values = np.random.default_rng(5).exponential(size=(3, 12))
    across, alone = mean_interval(values, axis=1), [mean_interval(row) for row in values]
    assert across.low.tolist() == pytest.approx([float(one.low) for one in alone])
    with pytest.raises(ParameterError, match="at least two"):
        mean_interval([1.0])
    with pytest.raises(UntrustworthyResultError, match="1 NaN"):
        mean_interval([1.0, float("nan")])


@pytest.mark.parametrize("n", [12, 24, 48])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("values", "truth"),
    [("exponential", {}), ("lognormal", {"sigma": 1.0}), ("lognormal", {"sigma": 0.7}), ("gamma", {"shape": 0.5}),
     ("weibull", {"a": 0.7}), ("normal", {}), ("standard_t", {"df": 3}), ("uniform", {})],
)  # fmt: skip
def test_a_mean_is_covered_whatever_the_shape_of_the_values(values, truth, sign, n):
    means = {"exponential": 1, "gamma": 0.5, "weibull": math.gamma(1 + 1 / 0.7), "uniform": 0.5}
    mean = sign * means.get(values, math.exp(truth.get("sigma", 0) ** 2 / 2) if values == "lognormal" else 0)
    found = mean_interval(sign * getattr(np.random.default_rng(6), values)(**truth, size=(n, 10_000)))
    assert 0.94 < np.mean((found.low <= mean) & (mean <= found.high)) < 0.985


@pytest.mark.parametrize(("n", "coverage"), [(5, 0.91), (6, 0.918), (8, 0.931)])
def test_a_mean_of_fewer_lognormal_values_is_covered_less(n, coverage):
    found, mean = mean_interval(np.random.default_rng(8).lognormal(size=(n, 20_000))), math.exp(0.5)
    assert np.mean((found.low <= mean) & (mean <= found.high)) == pytest.approx(coverage, abs=0.006)


def test_no_rule_sees_the_rare_large_value_that_was_not_drawn():
    rng = np.random.default_rng(9)
    found = mean_interval(rng.normal(size=(12, 20_000)) + 5 * (rng.random((12, 20_000)) < 0.1))
    assert np.mean((found.low <= 0.5) & (found.high >= 0.5)) == pytest.approx(0.918, abs=0.006)


def test_a_mean_of_skewed_values_is_covered_where_student_s_interval_is_not():
    draws = np.random.default_rng(6).lognormal(size=(12, 10_000))
    half, mean = scipy.stats.t.ppf(0.975, 11) * scipy.stats.sem(draws), math.exp(0.5)
    assert np.mean(np.abs(draws.mean(axis=0) - mean) <= half) == pytest.approx(0.845, abs=0.01)


def test_an_effect_holds_estimate_interval_error_n_and_skewness():
    values = np.random.default_rng(7).exponential(size=24)
    mean, median = effect_of(values), effect_of(values, "median")
    assert (mean.value, mean.error, mean.n) == pytest.approx((values.mean(), scipy.stats.sem(values), 24))
    assert mean.skew == pytest.approx(told(values))
    assert median.value == np.median(values) and median.n == 24
    alone = effect_of([2.5])
    assert alone.value == 2.5 and np.isnan(alone[1:4]).all() and alone.n == 1
    for wrong in ({"values": [[1.0]]}, {"values": [1.0, 2.0], "statistic": "mode"}):
        with pytest.raises(ParameterError, match="mean or median"):
            effect_of(**wrong)


@pytest.mark.parametrize("n", [5, 8, 24, 25])
def test_the_interval_of_a_median_is_that_of_the_sign_test(n):
    values = np.random.default_rng(n).lognormal(size=n)
    found = effect_of(values, "median")
    inside = [end for end in values if scipy.stats.binomtest(int((values < end).sum()), n).pvalue > 0.05]
    assert found.low <= min(inside) and found.high >= max(inside)
    assert found.high - found.low == pytest.approx(2 * found.error * scipy.stats.t.ppf(0.975, n - 1))


def test_the_jackknife_of_a_mean_has_its_standard_error():
    values = np.random.default_rng(1).normal(size=15)
    found = jackknifed(lambda rows: values[rows].mean(), np.arange(15))
    assert (found.value, found.error, found.n) == pytest.approx((values.mean(), scipy.stats.sem(values), 15))
    assert found.skew == pytest.approx(told(values))


def test_whole_groups_are_left_out_one_at_a_time():
    rng = np.random.default_rng(2)
    groups = np.array(list("aabbbbcddde"))
    x, y = rng.normal(size=(2, 11))
    found = jackknifed(lambda rows: pearson(x[rows], y[rows]), groups, fisher=True)
    z = np.arctanh(np.corrcoef(x, y)[0, 1])
    left = np.array([np.arctanh(np.corrcoef(x[groups != g], y[groups != g])[0, 1]) for g in "abcde"])
    assert found.error == pytest.approx(np.sqrt(4 / 5 * np.sum((left - z) ** 2)))
    squares = (left - left.mean()) ** 2
    freedom = np.clip(3 * squares.sum() ** 2 / (squares**2).sum() - 1, 2, 4)
    assert found.freedom == pytest.approx(freedom) and found.n == 5
    half = scipy.stats.t.ppf(0.975, freedom) * found.error
    assert (found.low, found.high) == pytest.approx((np.tanh(z - half), np.tanh(z + half)))


def test_one_group_alone_has_no_error():
    with pytest.raises(ParameterError, match="all 6 rows are of one group; an error over groups needs two or more"):
        jackknifed(lambda rows: 1.0, np.zeros(6))


def test_an_error_of_another_origin_is_added_and_takes_its_own_freedom():
    effect = effect_of(np.random.default_rng(4).exponential(size=12))
    wide = widened(effect, 2 * effect.error, 5)
    assert wide.error == pytest.approx(effect.error * np.sqrt(5)) and wide.freedom == 5
    assert wide.skew == pytest.approx(effect.skew / 5**1.5) and wide.low < effect.low
    assert widened(effect, 0.0, 99)[:4] == pytest.approx(effect[:4]) and widened(effect, 0.0, 99).freedom == 11
