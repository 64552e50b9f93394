"""Effects and their errors, against scipy and against loops written out."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from refusals import refused
from skewed import shrunken_skewness

from companion.tables import inference
from companion.tables.inference import Effect, detectable_correlation, effect_of, jackknifed, tail, with_error
from companion.tables.statistics import pearson
from coupling_lib.datasets.statistics import ends, mean_interval
from coupling_lib.errors import ParameterError


@pytest.mark.parametrize("sign", [1, -1])
def test_interval_ends_are_of_student_and_hall(sign):
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) + 7  # without skewness
    assert mean_interval(values) == pytest.approx((7, *scipy.stats.t.interval(0.95, 4, 7, scipy.stats.sem(values))))
    assert tail(1.3, 4) == pytest.approx(scipy.stats.t.sf(1.3, 4))
    values = sign * np.random.default_rng(0).gamma(3, size=10)
    lean, error = abs(shrunken_skewness(values)) / np.sqrt(10), scipy.stats.sem(values)
    quantile, found = scipy.stats.t.ppf(0.975, 9), mean_interval(values)
    long, short = (found.high - values.mean(), values.mean() - found.low)[::sign]
    assert short == pytest.approx(error * quantile) and 0.3 < lean < 1
    assert tail(long / error, 9, -lean) == pytest.approx(0.025) == tail(short / error, 9, lean)
    # For little skewness it is the root of Hall's transformation.
    small = 0.02
    root = scipy.optimize.brentq(lambda t: ((1 - small * t / 3) ** 3 - 1) / -small - small / 6 - quantile, 0, 9)
    assert float(ends(0.0, 1.0, 9, small)[1]) == pytest.approx(root, abs=1e-4)


def test_detectable_correlation_has_power_of_80_percent():
    of = Effect(0.1, np.nan, np.nan, 0.2, 31)
    size = detectable_correlation(of)
    drawn = np.arctanh(size) + 0.2 * scipy.stats.t.rvs(30, size=20_000, random_state=0)
    assert np.mean(drawn > scipy.stats.t.ppf(0.975, 30) * 0.2) == pytest.approx(0.8, abs=0.01)
    assert detectable_correlation(of._replace(freedom=5.0)) > size < detectable_correlation(of, 0.01)


@pytest.mark.parametrize("lean", [-0.8, 0.8])
def test_detectable_effect_lies_beyond_a_falling_tail(lean):
    size = inference.detectable(0.2, 11, lean, 0.01) / 0.2
    assert tail(size - scipy.stats.t.ppf(0.8, 11), 11, -abs(lean)) == pytest.approx(0.005)
    assert size > inference.detectable(1, 11, level=0.01)
    found = [tail(distance, 11, -0.8) for distance in np.linspace(-3, 30, 200)]
    assert (np.diff(found) < 0).all() and found[-1] < 1e-3
    assert all(tail(d, 11, -0.8) > scipy.stats.t.sf(d, 11) for d in (0.5, 2.0, 8.0))


def test_effect_holds_estimate_error_n_and_skewness():
    values = np.random.default_rng(7).exponential(size=24)
    mean, median = effect_of(values), effect_of(values, "median")
    expected = (values.mean(), scipy.stats.sem(values), 24, shrunken_skewness(values))
    assert (mean.value, mean.error, mean.n, mean.skew) == pytest.approx(expected)
    assert (median.value, median.n) == (np.median(values), 24)
    for n, few in ((1, effect_of([2.5])), (5, effect_of([2.5, 1, 2, 9, 3], "median"))):
        assert (few.value, few.n) == (2.5, n) and np.isnan(few[1:4]).all()
    refused(ParameterError, "there are no values", effect_of, [])
    refused(ParameterError, "mean or median", effect_of, [[1.0]])
    refused(ParameterError, "mean or median", effect_of, [1.0, 2.0], "mode")


@pytest.mark.parametrize("n", [6, 8, 24, 25])
def test_median_interval_is_that_of_sign_test(n):
    values = np.random.default_rng(n).lognormal(size=n)
    found = effect_of(values, "median")
    inside = [end for end in values if scipy.stats.binomtest(int((values < end).sum()), n).pvalue > 0.05]
    assert found.low <= min(inside) and found.high >= max(inside)
    assert found.high - found.low == pytest.approx(2 * found.error * scipy.stats.t.ppf(0.975, n - 1))


def test_jackknife_leaves_out_rows_or_whole_groups():
    values = np.random.default_rng(1).normal(size=15)
    found = jackknifed(lambda rows: values[rows].mean(), np.arange(15))
    expected = (values.mean(), scipy.stats.sem(values), 15, shrunken_skewness(values))
    assert (found.value, found.error, found.n, found.skew) == pytest.approx(expected)
    groups, (x, y) = np.array(list("aabbbbcddde")), np.random.default_rng(2).normal(size=(2, 11))
    found = jackknifed(lambda rows: pearson(x[rows], y[rows]), groups, fisher=True)
    kept = [groups >= "a", *(groups != group for group in "abcde")]
    z, *left = (np.arctanh(np.corrcoef(x[rows], y[rows])[0, 1]) for rows in kept)
    squares = (np.array(left) - np.mean(left)) ** 2
    freedom = np.clip(3 * squares.sum() ** 2 / (squares**2).sum() - 1, 2, 4)
    error = np.sqrt(4 / 5 * np.sum((np.array(left) - z) ** 2))
    assert (found.error, found.freedom, found.n) == pytest.approx((error, freedom, 5))
    half = scipy.stats.t.ppf(0.975, freedom) * error
    assert (found.low, found.high) == pytest.approx((np.tanh(z - half), np.tanh(z + half)))
    message = "all 6 rows are of one group; an error over groups needs two or more"
    refused(ParameterError, message, jackknifed, lambda rows: 1.0, np.zeros(6))
    message = "or a gap; give each of the 3 rows its group"
    refused(ParameterError, message, jackknifed, lambda rows: 1.0, [0.0, 1.0, np.nan])


def test_widened_error_adds_in_quadrature():
    effect = effect_of(np.random.default_rng(4).exponential(size=12))
    wide, same = with_error(effect, 2 * effect.error, 5), with_error(effect, 0.0, 99)
    expected = (effect.error * np.sqrt(5), 5, effect.skew / 5**1.5)
    assert (wide.error, wide.freedom, wide.skew) == pytest.approx(expected) and wide.low < effect.low
    assert (*same[:4], same.freedom) == pytest.approx((*effect[:4], 11))
