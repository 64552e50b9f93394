import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LinearRegression

from companion.tables.inference import p_value
from companion.tables.statistics import (
    beyond_width,
    correlation,
    correlation_over,
    fit_with_interval,
    partial_correlation,
    partial_over,
    pearson,
    squared,
    turning_point,
    width_curve,
)
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.variants import VARIANTS


def test_partial_correlation_equals_the_textbook_formula():
    rng = np.random.default_rng(6)
    z = rng.normal(size=50)
    x, y = z + rng.normal(size=50), 2 * z + rng.normal(size=50)
    r = np.corrcoef([x, y, z])
    textbook = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    partial = partial_correlation(x, y, given=z)
    assert partial.r == pytest.approx(textbook, abs=1e-12)
    assert abs(partial.r) < r[0, 1] / 2  # the common cause explained the raw correlation


def test_partial_correlation_p_value_equals_regression():
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


def test_degenerate_partial_correlation_is_refused():
    with pytest.raises(UntrustworthyResultError, match="predicts x exactly"):
        partial_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 6], given=[2, 4, 6, 8, 10])
    with pytest.raises(ParameterError, match="at least 5 with 2"):
        partial_correlation([1, 2, 3, 5], [2, 1, 4, 3], given=[[1, 2], [2, 1], [3, 5], [4, 4]])


def test_turning_point_is_where_the_series_bends():
    assert turning_point([0, 2, 4, 6, 5, 4, 3, 2]) == 3
    noise = 0.01 * np.random.default_rng(0).standard_normal(30)
    assert turning_point(np.maximum(0, np.arange(30) - 17) + noise) == 17
    with pytest.raises(ParameterError, match="five values"):
        turning_point([1, 2, 3, 4])


@pytest.mark.parametrize("n", [2, 3, 48])
def test_pearson_equals_numpy_or_is_nan(n):
    x, y = np.random.default_rng(n).normal(size=(2, n)) * 1e3 + 7
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-14)
    assert pearson(x, -2 * x + 1) == -1
    assert np.isnan(
        [pearson(np.full(n, 0.1), y), pearson(x, np.full(n, 3)), pearson(x, np.append(y[1:], np.nan))]
    ).all()


def test_fit_has_the_interval_of_its_correlation():
    fit = fit_with_interval([0, 1, 2, 3, 4, 5], [5, 3, 1, -1, -3, -5])
    assert (fit.low, fit.high) == pytest.approx((1.0, 1.0)) and fit.slope == pytest.approx(-2)
    fit = fit_with_interval([0, 1, 2, 3, 4, 5], [1, -1, 0, 0, -1, 1.1])
    assert fit.low == 0 and fit.high > 0.3
    fit = fit_with_interval(np.arange(12.0), np.ones(12))
    assert fit.slope == 0 and np.isnan([fit.low, fit.high]).all()
    fit = fit_with_interval([0, 1, 2], [0, 1, 1])
    assert (fit.r_squared, fit.n) == (pytest.approx(0.75), 3) and np.isnan([fit.low, fit.high]).all()


@pytest.mark.parametrize("n", [8, 32])
def test_fit_interval_has_nominal_coverage(n):
    rng = np.random.default_rng(3)
    r, covered = 0.6, []
    for _ in range(300):
        x = rng.normal(size=n)
        fit = fit_with_interval(x, r * x + np.sqrt(1 - r**2) * rng.normal(size=n))
        covered.append(fit.low <= r**2 <= fit.high)
    assert 0.93 <= np.mean(covered) <= 1.0


@pytest.mark.parametrize("d", [96, 768, 1600, 4096])
def test_width_curve_equals_its_formula(d):
    assert width_curve(d) == pytest.approx(1 - 1 / int(0.1 * d) ** 0.5, rel=1e-12)


@pytest.mark.parametrize("d", [768, 2048, 4096])
def test_width_curve_is_close_to_released_trace_null(d):
    null = VARIANTS["released_trace"].null(torch.ones(d, dtype=torch.float64), d, int(0.1 * d)).sqrt().item()
    assert width_curve(d) == pytest.approx(1 - null, abs=0.003)


def test_beyond_width_is_one_on_the_curve():
    d = np.array([500, 1000, 4000])
    np.testing.assert_allclose(beyond_width(width_curve(d), d), 1)
    assert (beyond_width(width_curve(d) + 0.01, d) < 1).all()
    assert width_curve(5) == 0


@pytest.fixture
def sample():
    """Steps and lengths as integers with ties, and a coupling that depends on both."""
    rng = np.random.default_rng(3)
    steps = rng.integers(2, 7, 40)
    length = 10 * steps + rng.integers(0, 30, 40)
    return steps, length, 0.02 * steps - 0.001 * length + 0.02 * rng.standard_normal(40)


def test_spearman_interval_is_jackknifed_on_fisher_scale(sample):
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


def test_partial_correlation_over_families_is_jackknifed(sample):
    x, z, y = (np.asarray(values, dtype=float) for values in sample)
    families = np.arange(40) % 7
    found = partial_over(x, y, z, families)

    def r(rows):
        a, b = (v[rows] - np.polyval(np.polyfit(z[rows], v[rows], 1), z[rows]) for v in (x, y))
        return np.arctanh(np.corrcoef(a, b)[0, 1])

    whole, left = r(np.arange(40)), np.array([r(families != family) for family in range(7)])
    error = max(np.sqrt(6 / 7 * np.sum((left - whole) ** 2)), 1 / np.sqrt(38))
    assert (np.arctanh(found.value), found.error, found.n) == pytest.approx((whole, error, 7))


def test_variables_held_fixed_are_columns(sample):
    x, z, y = (np.asarray(values, dtype=float) for values in sample)
    given = np.column_stack([z, z**2])
    assert partial_over(x, y, given).value == pytest.approx(partial_correlation(x, y, given).r)
    for given in ([z, z**2], np.append(z, z)):
        with pytest.raises(ParameterError, match="expected one length"):
            partial_over(x, y, given)


@pytest.mark.parametrize("shape", ["normal", "exponential"])
def test_correlation_interval_has_nominal_coverage(shape):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        x, noise = getattr(rng, shape)(size=(2, 10))
        found = correlation_over(x, 0.7 * x + 0.51**0.5 * noise)
        held += found.low <= 0.7 <= found.high
    assert held / 300 > 0.93  # the percentile bootstrap: .88


def test_interval_over_groups_covers_dependent_rows():
    rng = np.random.default_rng(1)
    groups, wrong = np.repeat(np.arange(8), 8), {"groups": 0, "rows": 0}
    for _ in range(200):
        x, y = 0.9 * rng.normal(size=(2, 8))[:, groups] + 0.45 * rng.normal(size=(2, 64))
        for name, found in (("groups", correlation_over(x, y, groups)), ("rows", correlation_over(x, y))):
            wrong[name] += not found.low <= 0 <= found.high
    assert wrong["groups"] / 200 < 0.1 and wrong["rows"] / 200 > 0.4


def test_row_that_alone_varies_gives_wide_interval():
    found = correlation([0, 0, 0, 1], [1.0, 2.0, 3.0, 5.0])
    assert np.isfinite(found).all() and found.low < 0 < found.value < found.high
    assert correlation_over([0, 0, 0, 1, 0, 0], [1, 1, 1, 2, 1, 1]).low < 0


@pytest.mark.parametrize("n", [4, 5])
def test_perfect_order_below_six_has_no_interval(n):
    found = correlation(range(n), range(n))
    assert found.value == pytest.approx(1) and np.isnan([found.low, found.high, p_value(found)]).all()
    turned = correlation_over(range(12), -np.arange(12), np.arange(12) % n)
    assert turned.value == pytest.approx(-1) and np.isnan(turned.high)
    assert p_value(correlation(range(6), range(6))) < 0.05


@pytest.mark.parametrize("groups", [[0, 1, 2, 3], ["a", "b", "c", None, "d"], [0, 1, 2, np.nan, 3]])
def test_rows_without_a_group_are_refused(groups):
    with pytest.raises(ParameterError, match="give each of the 5 rows its group"):
        correlation_over([1, 2, 3, 4, 5], [1, 3, 2, 5, 4], groups)


def test_r_squared_interval_is_correlation_interval_squared():
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


@pytest.mark.parametrize("over", [correlation_over, lambda x, y: partial_over(x, y, x)])
def test_fewer_than_four_values_are_refused(over):
    with pytest.raises(ParameterError, match="at least 4"):
        over([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])


@pytest.mark.parametrize("n", [6, 31])
@pytest.mark.parametrize("kind", ["normal", "heavy", "few values", "one row apart"])
@pytest.mark.parametrize("held", [0, 1, 2, "collinear", "one row's own"])
def test_fast_jackknife_equals_leaving_rows_out(n, kind, held):
    rng = np.random.default_rng([n, len(kind)])
    draw = {"normal": rng.normal, "heavy": lambda size: rng.standard_t(1.5, size=size)}.get(
        kind, lambda size: rng.integers(0, 3, size=size).astype(float)
    )
    x, y, z = draw(size=(3, n))
    if kind == "one row apart":
        x, y = np.eye(n)[0], np.arange(n, dtype=float)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        y[0] += 1
    if held == 0:
        at_once, one_by_one = correlation_over(x, y), correlation_over(x, y, np.arange(n))
    else:
        z = rng.normal(size=n)
        given = {1: z[:, None], 2: rng.normal(size=(n, 2)), "collinear": np.stack([z, 2 * z], 1)}.get(
            held, np.eye(n)[:, [n - 1]]
        )
        at_once, one_by_one = partial_over(x, y, given), partial_over(x, y, given, np.arange(n))
    assert at_once == pytest.approx(one_by_one, rel=1e-8, abs=1e-8)
