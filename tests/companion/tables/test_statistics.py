"""Correlations and fits, against numpy, scipy and regression, and by how often their intervals hold."""

import numpy as np
import pytest
import scipy.stats
import torch
from refusals import refused
from sklearn.linear_model import LinearRegression

from companion.tables import statistics as of
from companion.tables.inference import p_value
from companion.tables.statistics import correlation, correlation_over, fit_with_interval, partial_over
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.variants import VARIANTS


@pytest.mark.parametrize("columns", [1, 2])
def test_partial_correlation_p_value_equals_regression(columns):
    rng = np.random.default_rng(7)
    given, x = rng.normal(size=(40, columns)), rng.normal(size=40)
    y = x + given @ [1.0, -2.0][:columns] + 3 * rng.normal(size=40)
    design, freedom = np.column_stack([np.ones(40), given, x]), 38 - columns
    beta, rss = np.linalg.lstsq(design, y, rcond=None)[:2]
    t = beta[-1] / np.sqrt(rss[0] / freedom * np.linalg.inv(design.T @ design)[-1, -1])
    partial = of.partial_correlation(x, y, given=given.squeeze())
    assert partial.r == pytest.approx(t / np.sqrt(t**2 + freedom), abs=1e-12)
    draws = np.random.default_rng(8).standard_t(freedom, size=400_000)
    assert partial.p_value == pytest.approx((np.abs(draws) > abs(t)).mean(), abs=0.003)
    refused(UntrustworthyResultError, "predicts x exactly", of.partial_correlation, 2 * given[:, 0], y, given)


def test_turning_point_is_where_the_series_bends():
    assert of.turning_point([0, 2, 4, 6, 5, 4, 3, 2]) == 3
    noise = 0.01 * np.random.default_rng(0).standard_normal(30)
    assert of.turning_point(np.maximum(0, np.arange(30) - 17) + noise) == 17


@pytest.mark.parametrize("n", [2, 3, 48])
def test_pearson_equals_numpy_or_is_nan(n):
    x, y = np.random.default_rng(n).normal(size=(2, n)) * 1e3 + 7
    assert of.pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-14)
    assert of.pearson(x, -2 * x + 1) == -1
    pairs = ((np.full(n, 0.1), y), (x, np.full(n, 3)), (x, np.append(y[1:], np.nan)))
    assert np.isnan([of.pearson(*pair) for pair in pairs]).all()


def test_fit_has_the_interval_of_its_correlation():
    fit = fit_with_interval([0, 1, 2, 3, 4, 5], [5, 3, 1, -1, -3, -5])
    assert (fit.low, fit.high, fit.slope) == pytest.approx((1, 1, -2))
    fit = fit_with_interval([0, 1, 2, 3, 4, 5], [1, -1, 0, 0, -1, 1.1])
    assert fit.low == 0 and fit.high > 0.3
    fit = fit_with_interval(np.arange(12.0), np.ones(12))
    assert fit.slope == 0 and np.isnan([fit.low, fit.high]).all()
    fit = fit_with_interval([0, 1, 2], [0, 1, 1])
    assert (fit.r_squared, fit.n) == (pytest.approx(0.75), 3) and np.isnan([fit.low, fit.high]).all()


@pytest.mark.parametrize("d", [768, 1600, 2048, 4096])
def test_width_curve_follows_formula_and_released_null(d):
    null = VARIANTS["released_trace"].null(torch.ones(d, dtype=torch.float64), d, int(0.1 * d)).sqrt().item()
    assert of.width_curve(d) == pytest.approx(1 - null, abs=0.003)
    found = [of.width_curve(width) for width in (d, 96, 5)]
    assert found == pytest.approx([1 - 1 / int(0.1 * d) ** 0.5, 1 - 1 / 3, 0], rel=1e-12)
    assert of.beyond_width(of.width_curve(d - d % 10), d - d % 10) == pytest.approx(1)
    assert of.beyond_width(of.width_curve(d) + 0.01, d) < 1


@pytest.fixture
def sample():
    """Steps and lengths as integers with ties, and a coupling that depends on both."""
    rng = np.random.default_rng(3)
    steps = rng.integers(2, 7, 40)
    length = 10 * steps + rng.integers(0, 30, 40)
    return steps, length, 0.02 * steps - 0.001 * length + 0.02 * rng.standard_normal(40)


def test_spearman_interval_is_jackknifed_on_fisher_scale(sample):
    steps, _, coupling = sample
    found, every = correlation(steps, coupling), np.arange(40)
    kept = [every, *(every[every != row] for row in every)]
    z, *left = (np.arctanh(scipy.stats.spearmanr(steps[rows], coupling[rows]).statistic) for rows in kept)
    error = max(np.sqrt(39 / 40 * np.sum((np.array(left) - z) ** 2)), 1 / np.sqrt(39))
    half = scipy.stats.t.ppf(0.975, found.freedom) * error
    assert found[:5] == pytest.approx((*np.tanh([z, z - half, z + half]), error, 40))


def test_partial_correlation_is_that_of_the_residuals(sample):
    x, given, y = (scipy.stats.rankdata(v)[:, None] for v in sample)
    left = [(v - LinearRegression().fit(given, v).predict(given)).ravel() for v in (x, y)]
    found = correlation(sample[0], sample[2], given=sample[1])
    assert found.value == pytest.approx(scipy.stats.pearsonr(*left).statistic, abs=1e-12)
    assert found.low < found.value < found.high
    assert abs(found.value - correlation(sample[0], sample[2]).value) > 1e-3


def test_partial_correlation_over_families_is_jackknifed(sample):
    x, z, y = (np.asarray(values, dtype=float) for values in sample)
    families = np.arange(40) % 7

    def r(rows):
        a, b = (v[rows] - np.polyval(np.polyfit(z[rows], v[rows], 1), z[rows]) for v in (x, y))
        return np.arctanh(np.corrcoef(a, b)[0, 1])

    found, whole = partial_over(x, y, z, families), r(np.arange(40))
    left = np.array([r(families != family) for family in range(7)])
    error = max(np.sqrt(6 / 7 * np.sum((left - whole) ** 2)), 1 / np.sqrt(38))
    assert (np.arctanh(found.value), found.error, found.n) == pytest.approx((whole, error, 7))
    given = np.column_stack([z, z**2])  # variables held fixed are columns
    assert partial_over(x, y, given).value == pytest.approx(of.partial_correlation(x, y, given).r)
    for given in ([z, z**2], np.append(z, z)):
        refused(ParameterError, "expected one length", partial_over, x, y, given)


@pytest.mark.parametrize(
    ("shape", "n", "r"),
    [("normal", 8, 0.6), ("normal", 32, 0.6), *((shape, 10, 0.7) for shape in ("normal", "exponential"))],
)
def test_correlation_and_fit_intervals_have_nominal_coverage(shape, n, r):
    rng, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(300):
        x, noise = getattr(rng, shape)(size=(2, n))
        y = r * x + (1 - r**2) ** 0.5 * noise
        found, fit = correlation_over(x, y), fit_with_interval(x, y)
        held += found.low <= r <= found.high, fit.low <= r**2 <= fit.high
    assert (held / 300 >= 0.93).all()  # the percentile bootstrap: .88


def test_interval_over_groups_covers_dependent_rows():
    rng, groups, wrong = np.random.default_rng(1), np.repeat(np.arange(8), 8), np.zeros(2)
    for _ in range(200):
        x, y = 0.9 * rng.normal(size=(2, 8))[:, groups] + 0.45 * rng.normal(size=(2, 64))
        both = correlation_over(x, y, groups), correlation_over(x, y)
        wrong += [not found.low <= 0 <= found.high for found in both]
    assert wrong[0] / 200 < 0.1 and wrong[1] / 200 > 0.4


@pytest.mark.parametrize("n", [4, 5])
def test_few_rows_have_wide_or_no_interval(n):
    found = correlation(range(n), range(n))
    assert found.value == pytest.approx(1) and np.isnan([found.low, found.high, p_value(found)]).all()
    turned = correlation_over(range(12), -np.arange(12), np.arange(12) % n)
    assert turned.value == pytest.approx(-1) and np.isnan(turned.high)
    assert p_value(correlation(range(6), range(6))) < 0.05
    found = correlation([0, 0, 0, 1], [1.0, 2.0, 3.0, 5.0])  # one row alone varies
    assert np.isfinite(found).all() and found.low < 0 < found.value < found.high
    assert correlation_over([0, 0, 0, 1, 0, 0], [1, 1, 1, 2, 1, 1]).low < 0


def test_r_squared_interval_is_correlation_interval_squared():
    x, noise = np.random.default_rng(2).normal(size=(2, 12))
    r, turned, none = (correlation_over(x, y) for y in (2 * x + noise, -2 * x + noise, noise))
    assert of.squared(r)[:3] == pytest.approx((r.value**2, r.low**2, r.high**2))
    assert of.squared(turned)[:3] == pytest.approx((turned.value**2, turned.high**2, turned.low**2))
    assert of.squared(none).low == 0 and of.squared(none).high == max(none.low**2, none.high**2)


ORDER, FOUR = [1, 3, 2, 5, 4], [[1, 2], [2, 1], [3, 5], [4, 4]]
REFUSED = [
    (correlation, ([1, 2, 3], [1, 2, 3]), "at least 4"),
    (correlation_over, ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0]), "at least 4"),
    (partial_over, ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0]), "at least 4"),
    (of.partial_correlation, ([1, 2, 3, 5], [2, 1, 4, 3], FOUR), "at least 5 with 2"),
    (of.turning_point, ([1, 2, 3, 4],), "five values"),
    (correlation, ([1, 2, 3, 4], [1, 2, 3]), "one length"),
    (correlation, ([5, 5, 5, 5], [1, 2, 3, 4]), "x is constant"),
    (correlation, ([1, 2, 3, 4], [1, np.nan, 3, 4]), "y is constant or not finite"),
    (correlation, ([1, 2, 3, 4], [1, 3, 2, 4], [2, 4, 6, 8]), "predicts x or y exactly"),
    *(
        (correlation_over, ([1, 2, 3, 4, 5], ORDER, groups), "give each of the 5 rows its group")
        for groups in ([0, 1, 2, 3], ["a", "b", "c", None, "d"], [0, 1, 2, np.nan, 3])
    ),
]


@pytest.mark.parametrize(("call", "arguments", "message"), REFUSED)
def test_what_has_no_correlation_is_refused(call, arguments, message):
    refused(ParameterError, message, call, *arguments)


DRAWS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "heavy": lambda rng, size: rng.standard_t(1.5, size=size),
    "few values": lambda rng, size: rng.integers(0, 3, size=size).astype(float),
    "one row apart": lambda rng, size: np.stack([np.eye(size[1])[0], np.arange(size[1], dtype=float)]),
}
HELD = {
    0: None,
    1: lambda rng, n: rng.normal(size=(n, 1)),
    2: lambda rng, n: rng.normal(size=(n, 2)),
    "collinear": lambda rng, n: rng.normal(size=(n, 1)) * [1, 2],
    "one row's own": lambda rng, n: np.eye(n)[:, [n - 1]],
}


@pytest.mark.parametrize("n", [6, 31])
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("held", HELD)
def test_fast_jackknife_equals_leaving_rows_out(n, kind, held):
    rng = np.random.default_rng([n, len(kind)])
    x, y = DRAWS[kind](rng, (2, n))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        y[0] += 1
    over, given = (partial_over, [HELD[held](rng, n)]) if held else (correlation_over, [])
    assert over(x, y, *given) == pytest.approx(over(x, y, *given, np.arange(n)), rel=1e-8, abs=1e-8)
