"""Regression over a few models, against least squares and loops written out in numpy."""

import numpy as np
import pytest
import scipy.stats
from refusals import refused

from companion.tables import regression
from coupling_lib.datasets.statistics import linear_fit
from coupling_lib.errors import ParameterError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 2))
Y = 2 * X[:, 0] - X[:, 1] + 0.5 * RNG.standard_normal(30)
EVERY, GROUPS = np.arange(30), np.repeat(list("abcde"), 6)


def predicted(X, y, at):
    """Predict by the normal equations."""
    X, at = (np.column_stack([np.ones(len(rows)), rows]) for rows in (X, at))
    return at @ np.linalg.solve(X.T @ X, X.T @ y)


def share(y, predicted):
    return 1 - np.square(y - predicted).sum() / np.square(y - y.mean()).sum()


def test_r_squared_equals_that_of_normal_equations():
    assert regression.r_squared(X, Y) == pytest.approx(share(Y, predicted(X, Y, X)), rel=1e-10)
    assert regression.r_squared(X[:, 0], Y) == pytest.approx(linear_fit(X[:, 0], Y).r_squared, rel=1e-10)
    refused(ParameterError, "one length", regression.r_squared, X[:5], Y)


def test_left_out_group_is_predicted_from_others():
    left = [predicted(X[GROUPS != group], Y[GROUPS != group], X[GROUPS == group]) for group in "abcde"]
    found = regression.held_out_r_squared(X, Y, GROUPS)
    assert found == pytest.approx(share(Y, np.concatenate(left)), rel=1e-9)
    assert np.isnan(regression.held_out_r_squared(X, np.ones(30), GROUPS))
    refused(ParameterError, "only 'a'", regression.held_out_r_squared, X, Y, ["a"] * 30)


def test_folds_are_equal_sized_and_drawn_anew():
    x = X[:, 0]
    left = np.concatenate([predicted(np.delete(x, i), np.delete(Y, i), x[[i]]) for i in EVERY])
    folds = regression.drawn_folds(30, n_seeds=2, n_folds=30)
    assert [sorted(drawn) for drawn in folds.tolist()] == [EVERY.tolist()] * 2
    squares = regression.held_out_squares(x, Y, folds)
    np.testing.assert_allclose(squares, np.tile(np.square(Y - left), (2, 1)), rtol=1e-9)
    folds = regression.drawn_folds(28, n_seeds=3)
    assert all(sorted(np.bincount(drawn).tolist()) == [2] * 2 + [3] * 8 for drawn in folds)
    assert len({tuple(drawn) for drawn in folds.tolist()}) == 3 and (folds == regression.drawn_folds(28, 3)).all()


def test_cross_validation_prefers_the_true_shape():
    x, folds = np.linspace(0, 3, 40), regression.drawn_folds(40, n_seeds=3)
    noise = 0.02 * RNG.standard_normal(40)

    def score(y, fit):
        squares = regression.held_out_squares(x, y + noise, folds, fit)
        assert squares.shape == (3, 40) and len(np.unique(squares.mean(axis=1))) == 3
        return 1 - squares.mean() / (y + noise).var()

    bent, straight = 1 + 0.5 * np.exp(1.2 * x), 2 - x
    assert score(bent, "exponential") > score(bent, "linear") + 0.05
    assert score(straight, "exponential") == pytest.approx(score(straight, "linear"), abs=1e-3)


def test_exponential_fit_is_best_of_all_rates():
    x, at = np.linspace(-1, 2, 25), np.array([-2.0, 0.3, 4.0])
    found = regression.predicted(x, 3 - 2 * np.exp(-0.8 * x), [*x, *at], "exponential")
    np.testing.assert_allclose(found, [3 - 2 * np.exp(-0.8 * np.array([*x, *at]))], atol=1e-5)
    x = X[:, 0]
    y, z = Y + 0.5 * x**2, (x - x.mean()) / x.std()
    left = np.square(y - regression.predicted(x, y, x, "exponential")).sum()
    curves = (np.exp(rate * z) for rate in np.linspace(0.01, 3, 300))
    best = min(np.square(y - predicted(curve, y, curve)).sum() for curve in curves)
    assert best * (1 - 1e-3) < left <= best
    refused(ParameterError, "linear, exponential", regression.predicted, x, Y, x, "cubic")


def test_joint_fits_equal_separate_fits():
    x, seen = X[:, 0], RNG.random((3, 30)) < 0.7
    for fit in regression.FITS:
        together = regression.predicted(x, Y, x, fit, seen)
        apart = [regression.predicted(x[rows], Y[rows], x, fit)[0] for rows in seen]
        np.testing.assert_allclose(together, apart, rtol=1e-6)
    # Where x does not vary, the mean is all that can be told.
    assert regression.predicted([2.0, 2, 2], [1.0, 2, 6], [2.0, 5], "exponential").tolist() == [[3, 3]]


def test_difference_interval_stays_within_its_range():
    y, groups = X[:, 0] + 0.05 * RNG.standard_normal(30), np.repeat(np.arange(6), 5)
    rival = np.where(groups == 0, y, 0) + 0.01 * RNG.standard_normal(30)  # one group carries it

    def lead(rows):
        own, other = np.corrcoef([X[rows, 0], rival[rows], y[rows]])[2, :2] ** 2
        return own - other

    whole = lead(EVERY)
    left = np.arctanh([lead(EVERY[groups != group]) for group in range(6)])
    error = np.sqrt(5 / 6 * np.sum((left - np.arctanh(whole)) ** 2)) * np.sqrt(5 / 3)  # two slopes are fitted
    found = regression.lead_over(X[:, 0], rival, y, groups)
    assert (found.value, found.error) == pytest.approx((whole, error * whole / np.arctanh(whole)))
    assert -1 <= found.low < whole < found.high <= 1 and found.skew == 0
    # The interval leaves out 0 where the difference lies so many errors from it as a verdict asks for.
    reach = scipy.stats.t.ppf(0.975, found.freedom)
    assert np.tanh(np.arctanh(whole) - reach * error) == pytest.approx(found.low)
    assert regression.lead_over(X[:, 0], X[:, 0], y, groups).value == 0


def test_a_signed_difference_reaches_down_to_minus_two():
    rival, noise = RNG.standard_normal((2, 30))
    own, y = rival + 0.05 * X[:, 0], rival + 0.05 * noise
    found = regression.lead_over(-rival, own, y, EVERY, signed=True)
    assert -2 <= found.low < found.value < found.high < -1.9

    def lead(rows):
        return -(np.corrcoef([rival[rows], own[rows], y[rows]])[2, :2] ** 2).sum()

    whole, *left = (np.arctanh((lead(rows) + 0.5) / 1.5) for rows in (EVERY, *(EVERY[EVERY != i] for i in EVERY)))
    error = np.sqrt(29 / 30 * np.sum((np.array(left) - whole) ** 2) * 29 / 27)
    assert found.value == pytest.approx(lead(EVERY))
    assert found.value / found.error == pytest.approx((whole - np.arctanh(1 / 3)) / error)


def test_given_all_others_equals_inverse_covariance_coefficient():
    variables = {"a": X[:, 0], "b": X[:, 1], "c": RNG.standard_normal(30)}
    precision = np.linalg.inv(np.cov([*variables.values(), Y]))
    expected = -precision[:3, 3] / np.sqrt(np.diag(precision)[:3] * precision[3, 3])
    found = {name: r for name, (r, _) in regression.given_all_others(variables, Y).items()}
    assert found == pytest.approx(dict(zip(variables, expected, strict=True)), rel=1e-9)
    assert regression.given_all_others({"a": X[:, 0]}, Y) == {}


def test_corrections_follow_their_definitions():
    p = np.array([0.04, 0.001, 0.2, 0.01])
    assert regression.corrected(p).tolist() == pytest.approx([0.08, 0.004, 0.2, 0.03])
    assert regression.corrected(p, "bh").tolist() == pytest.approx([0.04 * 4 / 3, 0.004, 0.2, 0.02])
    assert regression.corrected([0.6, 0.7]).tolist() == [1, 1]
    for method in ("holm", "bh"):  # a test that was not made is none of those tried
        one, other = regression.corrected([0.01, 0.04], method)
        with_gap = regression.corrected([0.01, np.nan, 0.04], method)
        np.testing.assert_array_equal(with_gap, [one, np.nan, other])
    refused(ParameterError, "'bonferroni'", regression.corrected, p, "bonferroni")
