import numpy as np
import pytest

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.statistics import (
    bootstrap_interval,
    linear_fit,
    partial_correlation,
    pearson,
    turning_point,
)


def test_bootstrap_interval_of_a_normal_sample_agrees_with_the_t_interval():
    values = np.random.default_rng(0).normal(5, 2, size=400)
    interval = bootstrap_interval(values, n_resamples=4000)
    half = 1.966 * values.std(ddof=1) / 20
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.03)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.03)


def test_bootstrap_interval_equals_resampling_written_out():
    values = np.random.default_rng(1).exponential(size=30)
    draws = np.random.default_rng(0).integers(0, 30, size=(2000, 30))
    low, high = np.percentile(values[draws].mean(axis=1), [5, 95])
    interval = bootstrap_interval(values, level=0.9)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.02)


def test_the_same_seed_gives_the_same_interval_and_a_higher_level_a_wider_one():
    values = np.random.default_rng(2).normal(size=(20, 3, 4))
    one, same, wide = (bootstrap_interval(values, level=level) for level in (0.8, 0.8, 0.99))
    assert np.array_equal(one.low, same.low) and np.array_equal(one.high, same.high)
    assert one.mean.shape == one.low.shape == (3, 4)
    assert (wide.low < one.low).all() and (wide.high > one.high).all()


def test_any_axis_may_be_resampled():
    values = np.random.default_rng(3).normal(size=(5, 40))
    interval = bootstrap_interval(values, axis=1)
    np.testing.assert_allclose(interval.mean, values.mean(axis=1))
    assert ((interval.low < interval.mean) & (interval.mean < interval.high)).all()


def test_values_that_all_agree_have_an_interval_of_one_point():
    interval = bootstrap_interval(np.full((6, 2), 0.25))
    assert interval.low.tolist() == interval.mean.tolist() == interval.high.tolist() == [0.25, 0.25]


def test_one_value_or_nan_or_an_odd_level_gives_no_interval():
    with pytest.raises(ParameterError, match="at least two"):
        bootstrap_interval([3.0])
    with pytest.raises(ParameterError, match="between 0 and 1"):
        bootstrap_interval([1.0, 2.0], level=95)
    with pytest.raises(UntrustworthyResultError, match="1 NaN or infinite of 2"):
        bootstrap_interval([1.0, float("nan")])


def test_linear_fit_equals_the_normal_equations():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=25), rng.normal(size=25)
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    fit = linear_fit(x, y)
    assert (fit.slope, fit.intercept) == pytest.approx((slope, intercept))
    assert fit.r_squared == pytest.approx(1 - residual.var() / y.var())
    assert 0 < fit.p_value < 1


def test_linear_fit_finds_a_planted_line_significant():
    x = np.arange(20.0)
    fit = linear_fit(x, 3 * x - 7 + np.random.default_rng(5).normal(size=20))
    assert fit.slope == pytest.approx(3, abs=0.15) and fit.p_value < 1e-10


def test_linear_fit_refuses_what_is_no_line():
    with pytest.raises(ParameterError, match="at least 3"):
        linear_fit([1, 2], [1, 2])
    with pytest.raises(ParameterError, match="different abscissae"):
        linear_fit([2, 2, 2], [1, 2, 3])


def test_partial_correlation_equals_the_textbook_formula():
    rng = np.random.default_rng(6)
    z = rng.normal(size=50)
    x, y = z + rng.normal(size=50), 2 * z + rng.normal(size=50)
    r = np.corrcoef([x, y, z])
    textbook = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    partial = partial_correlation(x, y, given=z)
    assert partial.r == pytest.approx(textbook, abs=1e-12)
    assert abs(partial.r) < r[0, 1] / 2  # the common cause explained the raw correlation


def test_partial_correlation_p_value_is_that_of_the_coefficient_in_a_regression():
    rng = np.random.default_rng(7)
    given, x = rng.normal(size=(40, 2)), rng.normal(size=40)
    y = x + given @ [1.0, -2.0] + 3 * rng.normal(size=40)
    design = np.column_stack([np.ones(40), given, x])
    beta, rss = np.linalg.lstsq(design, y, rcond=None)[:2]
    error = np.sqrt(rss[0] / 36 * np.linalg.inv(design.T @ design)[3, 3])
    t = beta[3] / error
    partial = partial_correlation(x, y, given=given)
    assert partial.r == pytest.approx(t / np.sqrt(t**2 + 36))
    draws = np.random.default_rng(8).standard_t(36, size=400_000)
    assert partial.p_value == pytest.approx((np.abs(draws) > abs(t)).mean(), abs=0.003)


def test_nothing_left_or_too_few_points_is_refused():
    with pytest.raises(UntrustworthyResultError, match="predicts x exactly"):
        partial_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 6], given=[2, 4, 6, 8, 10])
    with pytest.raises(ParameterError, match="at least 5 with 2"):
        partial_correlation([1, 2, 3, 5], [2, 1, 4, 3], given=[[1, 2], [2, 1], [3, 5], [4, 4]])


def test_a_line_that_bends_once_is_bent_where_the_series_turns():
    assert turning_point([0, 2, 4, 6, 5, 4, 3, 2]) == 3
    noise = 0.01 * np.random.default_rng(0).standard_normal(30)
    assert turning_point(np.maximum(0, np.arange(30) - 17) + noise) == 17
    with pytest.raises(ParameterError, match="five values"):
        turning_point([1, 2, 3, 4])


@pytest.mark.parametrize("n", [2, 3, 48])
def test_correlation_is_that_of_numpy_and_nan_where_there_is_none(n):
    x, y = np.random.default_rng(n).normal(size=(2, n)) * 1e3 + 7
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-14)
    assert pearson(x, -2 * x + 1) == -1
    assert np.isnan(
        [pearson(np.full(n, 0.1), y), pearson(x, np.full(n, 3)), pearson(x, np.append(y[1:], np.nan))]
    ).all()
