"""Regression over a few models, against least squares and loops written out in numpy."""

import numpy as np
import pytest

from companion.tables import regression
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.statistics import linear_fit

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 2))
Y = 2 * X[:, 0] - X[:, 1] + 0.5 * RNG.standard_normal(30)
GROUPS = np.repeat(list("abcde"), 6)


def solved(X, y):
    return np.linalg.solve(design(X).T @ design(X), design(X).T @ y)


def design(X):
    return np.column_stack([np.ones(len(X)), X])


def share(y, predicted):
    return 1 - np.square(y - predicted).sum() / np.square(y - y.mean()).sum()


def test_r_squared_is_that_of_the_normal_equations_and_of_the_line():
    assert regression.r_squared(X, Y) == pytest.approx(share(Y, design(X) @ solved(X, Y)), rel=1e-10)
    assert regression.r_squared(X[:, 0], Y) == pytest.approx(linear_fit(X[:, 0], Y).r_squared, rel=1e-10)


def test_leaving_groups_out_predicts_each_from_all_the_others():
    predicted = np.empty(30)
    for group in "abcde":
        out = GROUPS == group
        predicted[out] = design(X[out]) @ solved(X[~out], Y[~out])
    assert regression.held_out_r_squared(X, Y, GROUPS) == pytest.approx(share(Y, predicted), rel=1e-9)


def test_one_group_cannot_be_left_out():
    with pytest.raises(ParameterError, match="only 'a'"):
        regression.held_out_r_squared(X, Y, ["a"] * 30)


def test_with_as_many_folds_as_points_cross_validation_leaves_one_out():
    predicted = [design(X[[i]]) @ solved(np.delete(X, i, 0), np.delete(Y, i)) for i in range(30)]
    expected = share(Y, np.concatenate(predicted))
    squares = regression.held_out_squares(X, Y, n_folds=30, n_seeds=2)
    np.testing.assert_allclose(1 - squares.mean(axis=1) / Y.var(), expected, rtol=1e-9)


def test_cross_validation_prefers_the_shape_that_made_the_points():
    x = np.linspace(0, 3, 40)
    noise = 0.02 * RNG.standard_normal(40)
    bent, straight = 1 + 0.5 * np.exp(1.2 * x), 2 - x

    def score(x, y, fit):
        squares = regression.held_out_squares(x, y, fit, n_seeds=3)
        assert squares.shape == (3, 40) and len(np.unique(squares.mean(axis=1))) == 3
        return 1 - squares.mean() / y.var()

    assert score(x, bent + noise, "exponential") > score(x, bent + noise, "linear") + 0.05
    assert score(x, straight + noise, "exponential") == pytest.approx(score(x, straight + noise, "linear"), abs=1e-3)


def test_the_exponential_fit_finds_its_own_parameters():
    x = np.linspace(-1, 2, 25)
    y = 3 - 2 * np.exp(-0.8 * x)
    fit = regression.ExponentialRegression().fit(x[:, None], y)
    np.testing.assert_allclose(fit.predict(x[:, None]), y, atol=1e-6)
    assert fit.rate_ / fit.scale_ == pytest.approx(-0.8, rel=1e-4)
    outside = fit.predict([[4.0]])
    assert outside.item() == pytest.approx(3 - 2 * np.exp(-3.2), abs=1e-4)


def test_given_all_others_equals_the_coefficient_of_the_inverse_covariance():
    variables = {"a": X[:, 0], "b": X[:, 1], "c": RNG.standard_normal(30)}
    precision = np.linalg.inv(np.cov(np.column_stack([*variables.values(), Y]).T))
    for at, (name, (r, _)) in enumerate(regression.given_all_others(variables, Y).items()):
        expected = -precision[at, 3] / np.sqrt(precision[at, at] * precision[3, 3])
        assert r == pytest.approx(expected, rel=1e-9), name


def test_corrections_follow_their_definitions():
    p = np.array([0.04, 0.001, 0.2, 0.01])
    assert regression.corrected(p).tolist() == pytest.approx([0.08, 0.004, 0.2, 0.03])
    assert regression.corrected(p, "bh").tolist() == pytest.approx([0.04 * 4 / 3, 0.004, 0.2, 0.02])
    assert regression.corrected([0.6, 0.7]).tolist() == [1, 1]
    with pytest.raises(ParameterError, match="'bonferroni'"):
        regression.corrected(p, "bonferroni")


def test_an_unknown_fit_and_unequal_lengths_are_refused():
    with pytest.raises(ParameterError, match="linear, exponential"):
        regression.held_out_squares(X, Y, "cubic")
    with pytest.raises(ParameterError, match="one length"):
        regression.r_squared(X[:5], Y)
