"""Correlations and their intervals against SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LinearRegression

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.statistics import correlation


@pytest.fixture
def sample():
    """Steps and lengths as integers with ties, and a coupling that depends on both."""
    rng = np.random.default_rng(3)
    steps = rng.integers(2, 7, 40)
    length = 10 * steps + rng.integers(0, 30, 40)
    return steps, length, 0.02 * steps - 0.001 * length + 0.02 * rng.standard_normal(40)


def test_coefficient_and_interval_are_scipys(sample):
    steps, _, coupling = sample
    found = correlation(steps, coupling)
    assert found.value == pytest.approx(scipy.stats.spearmanr(steps, coupling).statistic, abs=1e-12)
    wanted = scipy.stats.bootstrap(
        (steps, coupling), lambda a, b: scipy.stats.spearmanr(a, b).statistic, paired=True, vectorized=False,
        method="percentile", n_resamples=1000, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=0.05)
    assert found.low < found.value < found.high and found.n == 40
    assert found.error == pytest.approx((found.high - found.low) / 3.92)


def test_partial_correlation_is_that_of_the_residuals(sample):
    variables = [scipy.stats.rankdata(v) for v in sample]
    given = variables[1][:, None]
    left = [v - LinearRegression().fit(given, v).predict(given) for v in (variables[0], variables[2])]
    found = correlation(sample[0], sample[2], given=sample[1])
    assert found.value == pytest.approx(scipy.stats.pearsonr(*left).statistic, abs=1e-12)
    assert found.low < found.value < found.high
    assert abs(found.value - correlation(sample[0], sample[2]).value) > 1e-3


def test_interval_holds_the_true_value_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held, true = 0, 6 / np.pi * np.arcsin(0.5 / 2)
    for seed in range(200):
        x, y = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=40).T
        found = correlation(x, y, n_resamples=300, seed=seed)
        held += found.low <= true <= found.high
    assert 0.87 <= held / 200 <= 0.98


def test_interval_repeats_and_survives_constant_resamples():
    x, y = [0, 0, 0, 1], [1.0, 2.0, 3.0, 5.0]  # x is constant in a third of the resamples
    first = correlation(x, y, seed=4)
    assert first == correlation(x, y, seed=4) and np.isfinite(first).all()


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
