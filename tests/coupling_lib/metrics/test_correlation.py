"""Correlations and their intervals against SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LinearRegression

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.statistics import correlation, correlation_over, partial_over, squared


@pytest.fixture
def sample():
    """Steps and lengths as integers with ties, and a coupling that depends on both."""
    rng = np.random.default_rng(3)
    steps = rng.integers(2, 7, 40)
    length = 10 * steps + rng.integers(0, 30, 40)
    return steps, length, 0.02 * steps - 0.001 * length + 0.02 * rng.standard_normal(40)


def test_coefficient_is_scipys_and_its_interval_that_of_a_loop_on_fishers_scale(sample):
    steps, _, coupling = sample
    found = correlation(steps, coupling)
    z = np.arctanh(scipy.stats.spearmanr(steps, coupling).statistic)
    kept = [np.arange(40) != row for row in range(40)]
    left = np.arctanh([scipy.stats.spearmanr(steps[rows], coupling[rows]).statistic for rows in kept])
    error = max(np.sqrt(39 / 40 * np.sum((left - z) ** 2)), 1 / np.sqrt(39))
    assert (np.arctanh(found.value), found.error, found.n) == pytest.approx((z, error, 40))
    half = scipy.stats.t.ppf(0.975, found.freedom) * error
    assert (found.low, found.high) == pytest.approx((np.tanh(z - half), np.tanh(z + half)))


def test_partial_correlation_is_that_of_the_residuals(sample):
    variables = [scipy.stats.rankdata(v) for v in sample]
    given = variables[1][:, None]
    left = [v - LinearRegression().fit(given, v).predict(given) for v in (variables[0], variables[2])]
    found = correlation(sample[0], sample[2], given=sample[1])
    assert found.value == pytest.approx(scipy.stats.pearsonr(*left).statistic, abs=1e-12)
    assert found.low < found.value < found.high
    assert abs(found.value - correlation(sample[0], sample[2]).value) > 1e-3


def test_partial_correlation_over_families_is_that_of_the_residuals_without_each(sample):
    x, z, y = (np.asarray(values, dtype=float) for values in sample)
    families = np.arange(40) % 7
    found = partial_over(x, y, z, families)

    def r(rows):
        a, b = (v[rows] - np.polyval(np.polyfit(z[rows], v[rows], 1), z[rows]) for v in (x, y))
        return np.arctanh(np.corrcoef(a, b)[0, 1])

    whole, left = r(np.arange(40)), np.array([r(families != family) for family in range(7)])
    error = max(np.sqrt(6 / 7 * np.sum((left - whole) ** 2)), 1 / np.sqrt(38))
    assert (np.arctanh(found.value), found.error, found.n) == pytest.approx((whole, error, 7))


@pytest.mark.parametrize("shape", ["normal", "exponential"])
def test_the_interval_holds_the_truth_as_often_as_it_says_and_the_bootstraps_does_not(shape):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        x, noise = getattr(rng, shape)(size=(2, 10))
        found = correlation_over(x, 0.7 * x + 0.51**0.5 * noise)
        held += found.low <= 0.7 <= found.high
    assert held / 300 > 0.93  # the percentile bootstrap: .88


def test_whole_groups_decide_where_their_rows_are_alike():
    rng = np.random.default_rng(1)
    groups, wrong = np.repeat(np.arange(8), 8), {"groups": 0, "rows": 0}
    for _ in range(200):
        x, y = 0.9 * rng.normal(size=(2, 8))[:, groups] + 0.45 * rng.normal(size=(2, 64))
        for name, found in (("groups", correlation_over(x, y, groups)), ("rows", correlation_over(x, y))):
            wrong[name] += not found.low <= 0 <= found.high
    assert wrong["groups"] / 200 < 0.1 and wrong["rows"] / 200 > 0.4


def test_a_group_without_which_nothing_varies_is_all_that_there_is():
    found = correlation([0, 0, 0, 1], [1.0, 2.0, 3.0, 5.0])
    assert np.isfinite(found).all() and found.low < 0 < found.value < found.high
    assert correlation_over([0, 0, 0, 1, 0], [1, 1, 1, 2, 1]).low < 0


def test_r_squared_has_the_interval_of_its_correlation_squared():
    rng = np.random.default_rng(2)
    x, noise = rng.normal(size=(2, 12))
    r = correlation_over(x, 2 * x + noise)
    assert squared(r)[:3] == pytest.approx((r.value**2, r.low**2, r.high**2))
    turned, none = correlation_over(x, -2 * x + noise), correlation_over(x, noise)
    assert squared(turned)[:3] == pytest.approx((turned.value**2, turned.high**2, turned.low**2))
    assert squared(none).low == 0 and squared(none).high == max(none.low**2, none.high**2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(x=[1, 2, 3], y=[1, 2, 3]), "at least 4"),
        (dict(x=[1, 2, 3, 4], y=[1, 2, 3]), "one length"),
        (dict(x=[5, 5, 5, 5], y=[1, 2, 3, 4]), "x is constant"),
        (dict(x=[1, 2, 3, 4], y=[1, np.nan, 3, 4]), "y is constant or not finite"),
        (dict(x=[1, 2, 3, 4], y=[1, 3, 2, 4], given=[2, 4, 6, 8]), "predicts x or y exactly"),
    ],
)
def test_what_has_no_correlation_is_refused(arguments, message):
    with pytest.raises(ParameterError, match=message):
        correlation(**arguments)


@pytest.mark.parametrize("over", [correlation_over, lambda x, y: partial_over(x, y, [[1.0]] * len(x))])
def test_a_correlation_of_fewer_than_four_values_is_refused_in_one_line(over):
    with pytest.raises(ParameterError, match=r"^the variables have shapes \[\(3,\)\]; expected lists .* at least 4$"):
        over([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])


def test_a_correlation_over_one_group_alone_is_refused_in_one_line():
    with pytest.raises(ParameterError, match=r"^all 5 rows are of one group; an error over groups needs two or more$"):
        correlation_over([1, 2, 3, 4, 5], [1, 2, 3, 5, 4], ["one"] * 5)
