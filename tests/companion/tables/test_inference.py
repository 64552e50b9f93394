"""Effects and their errors, against scipy and against loops written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from skewed import shrunken_skewness

from companion.tables import inference
from companion.tables.inference import Effect, detectable_correlation, effect_of, jackknifed, tail, with_error
from companion.tables.statistics import pearson
from coupling_lib.datasets.statistics import ends, mean_interval
from coupling_lib.errors import ParameterError


def test_interval_without_skewness_is_student():
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) + 7
    found, half = mean_interval(values), scipy.stats.t.ppf(0.975, 4) * scipy.stats.sem(values)
    assert (found.mean, found.low, found.high) == pytest.approx((7, 7 - half, 7 + half))
    assert tail(1.3, 4) == pytest.approx(scipy.stats.t.sf(1.3, 4))


@pytest.mark.parametrize("sign", [1, -1])
def test_interval_end_towards_long_tail_is_hall(sign):
    values = sign * np.random.default_rng(0).gamma(3, size=10)
    lean, error = abs(shrunken_skewness(values)) / np.sqrt(10), scipy.stats.sem(values)
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


def test_detectable_correlation_has_power_of_80_percent():
    error, freedom = 0.2, 30
    size = detectable_correlation(Effect(0.1, np.nan, np.nan, error, 31))
    drawn = np.arctanh(size) + error * scipy.stats.t.rvs(freedom, size=20_000, random_state=0)
    assert np.mean(drawn > scipy.stats.t.ppf(0.975, freedom) * error) == pytest.approx(0.8, abs=0.01)
    assert detectable_correlation(Effect(0.1, np.nan, np.nan, error, 31, freedom=5.0)) > size
    assert detectable_correlation(Effect(0.1, np.nan, np.nan, error, 31), 0.01) > size


@pytest.mark.parametrize("lean", [-0.8, 0.8])
def test_detectable_effect_lies_beyond_the_slower_tail(lean):
    size = inference.detectable(0.2, 11, lean, 0.01) / 0.2
    assert tail(size - scipy.stats.t.ppf(0.8, 11), 11, -abs(lean)) == pytest.approx(0.005)
    assert size > inference.detectable(1, 11, level=0.01)


def test_tail_probability_decreases_with_distance():
    found = [tail(distance, 11, -0.8) for distance in np.linspace(-3, 30, 200)]
    assert (np.diff(found) < 0).all() and found[-1] < 1e-3
    assert all(tail(d, 11, -0.8) > scipy.stats.t.sf(d, 11) for d in (0.5, 2.0, 8.0))


def test_effect_holds_estimate_error_n_and_skewness():
    values = np.random.default_rng(7).exponential(size=24)
    mean, median = effect_of(values), effect_of(values, "median")
    assert (mean.value, mean.error, mean.n) == pytest.approx((values.mean(), scipy.stats.sem(values), 24))
    assert mean.skew == pytest.approx(shrunken_skewness(values))
    assert median.value == np.median(values) and median.n == 24
    for few in (effect_of([2.5]), effect_of([2.5, 1, 2, 9, 3], "median")):
        assert few.value == 2.5 and np.isnan(few[1:4]).all() and few.n in (1, 5)
    with pytest.raises(ParameterError, match="there are no values"):
        effect_of([])
    for wrong in ({"values": [[1.0]]}, {"values": [1.0, 2.0], "statistic": "mode"}):
        with pytest.raises(ParameterError, match="mean or median"):
            effect_of(**wrong)


@pytest.mark.parametrize("n", [6, 8, 24, 25])
def test_median_interval_is_that_of_sign_test(n):
    values = np.random.default_rng(n).lognormal(size=n)
    found = effect_of(values, "median")
    inside = [end for end in values if scipy.stats.binomtest(int((values < end).sum()), n).pvalue > 0.05]
    assert found.low <= min(inside) and found.high >= max(inside)
    assert found.high - found.low == pytest.approx(2 * found.error * scipy.stats.t.ppf(0.975, n - 1))


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(1).normal(size=15)
    found = jackknifed(lambda rows: values[rows].mean(), np.arange(15))
    assert (found.value, found.error, found.n) == pytest.approx((values.mean(), scipy.stats.sem(values), 15))
    assert found.skew == pytest.approx(shrunken_skewness(values))


def test_jackknife_leaves_out_whole_groups():
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
    with pytest.raises(ParameterError, match="all 6 rows are of one group; an error over groups needs two or more"):
        jackknifed(lambda rows: 1.0, np.zeros(6))
    with pytest.raises(ParameterError, match="or a gap; give each of the 3 rows its group"):
        jackknifed(lambda rows: 1.0, [0.0, 1.0, np.nan])


def test_widened_error_adds_in_quadrature():
    effect = effect_of(np.random.default_rng(4).exponential(size=12))
    wide = with_error(effect, 2 * effect.error, 5)
    assert wide.error == pytest.approx(effect.error * np.sqrt(5)) and wide.freedom == 5
    assert wide.skew == pytest.approx(effect.skew / 5**1.5) and wide.low < effect.low
    assert with_error(effect, 0.0, 99)[:4] == pytest.approx(effect[:4]) and with_error(effect, 0.0, 99).freedom == 11
