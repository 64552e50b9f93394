"""R² and its interval: against scipy, against a slow bootstrap, and on what has no relation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from coupling_lib.metrics.statistics import fit_with_interval


def test_line_and_p_value_are_those_of_scipy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=12)
    y = 2 * x + rng.normal(size=12)
    fit, wanted = fit_with_interval(x, y), scipy.stats.linregress(x, y)
    assert (fit.slope, fit.intercept, fit.p_value, fit.n) == pytest.approx(
        (wanted.slope, wanted.intercept, wanted.pvalue, 12)
    )
    assert fit.r_squared == pytest.approx(wanted.rvalue**2) and fit.low < fit.r_squared < fit.high


def test_an_exact_line_is_sure():
    fit = fit_with_interval([0, 1, 2, 3, 4], [5, 3, 1, -1, -3])
    assert (fit.low, fit.high) == pytest.approx((1.0, 1.0)) and fit.slope == pytest.approx(-2)


@pytest.mark.parametrize("n", [8, 32])
def test_the_interval_covers(n):
    rng = np.random.default_rng(3)
    r, covered = 0.6, []
    for _ in range(300):
        x = rng.normal(size=n)
        fit = fit_with_interval(x, r * x + np.sqrt(1 - r**2) * rng.normal(size=n))
        covered.append(fit.low <= r**2 <= fit.high)
    assert 0.93 <= np.mean(covered) <= 1.0


def test_few_points_without_relation_have_an_interval_from_0():
    fit = fit_with_interval([0, 1, 2, 3, 4, 5], [1, -1, 0, 0, -1, 1.1])
    assert fit.low == 0 and fit.high > 0.3


def test_values_that_never_vary_have_no_interval():
    fit = fit_with_interval(np.arange(12.0), np.ones(12))
    assert fit.slope == 0 and np.isnan([fit.low, fit.high]).all()


def test_three_points_have_a_line_and_no_interval():
    fit = fit_with_interval([0, 1, 2], [0, 1, 1])
    assert (fit.r_squared, fit.n) == (pytest.approx(0.75), 3) and np.isnan([fit.low, fit.high]).all()
