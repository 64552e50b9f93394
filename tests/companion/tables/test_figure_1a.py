"""The paper's figure 1a, against numpy written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from companion.tables import figure_1a, generalization
from companion.tables.statistics import residuals


def r(x, y):
    return np.corrcoef(np.asarray(x, dtype=float), np.asarray(y, dtype=float))[0, 1]


@pytest.fixture(scope="module")
def points():
    return generalization.figure_1a()


def test_statistics_equal_plain_correlations(points):
    found = figure_1a.statistics(points)
    c, score, d = points.coupling, points.score, points.width.astype(float)
    curve = 1 - np.floor(d / 10) ** -0.5
    expected = {
        "r-squared": r(c, score) ** 2,
        "width-r-squared": r(curve, score) ** 2,
        "curve-r-squared": r(curve, c) ** 2,
        "curve-scatter": np.std(c - np.polyval(np.polyfit(curve, c, 1), curve), ddof=1),
        "suppressed-r-squared": r((1 - c) * np.sqrt(d / 10), score) ** 2,
        "suppressor-r": r((1 - c) * np.sqrt(d / 10), np.log(d)),
        "parameters-r-squared": r(np.log(points.parameters_b), score) ** 2,
        "blocks-r-squared": r(points.blocks, score) ** 2,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name
    assert found["n"] == 28
    stated = generalization.paper_figures().query("figure == '1a' and y_quantity == 'r_squared'").y.item()
    assert round(figure_1a.statistics(points)["r-squared"], 2) == stated


def test_partial_correlation_is_that_of_residuals(points):
    d = np.log(points.width)
    table = figure_1a.partial_table(points)
    a, b, e = r(points.coupling, points.score), r(points.coupling, d), r(points.score, d)
    assert table.r["width"] == pytest.approx((a - b * e) / np.sqrt((1 - b**2) * (1 - e**2)), abs=1e-9)
    assert r(residuals(points.coupling, d), d) == pytest.approx(0, abs=1e-9)
    assert (table.low < table.r).all() and (table.r < table.high).all() and (table.error > 0).all()


FORMS = {
    "curve": lambda d: [np.floor(d / 10) ** -0.5], "width": lambda d: [np.log(d)], "root": lambda d: [d**-0.5],
    "linear": lambda d: [d], "curve-and-log": lambda d: [np.floor(d / 10) ** -0.5, np.log(d)],
}  # fmt: skip
"""What each form takes out, written out."""


def without_width(points, form):
    given = FORMS[form](points.width.to_numpy(dtype=float))
    design = np.column_stack([np.ones(len(points)), *given])
    projection = np.eye(len(points)) - design @ np.linalg.pinv(design)
    return r(projection @ points.coupling.to_numpy(), projection @ points.score.to_numpy())


@pytest.mark.parametrize("form", FORMS)
def test_partial_correlation_is_jackknifed_over_families(points, form):
    line = figure_1a.partial_table(points).loc[form]
    root = figure_1a.base_family(points.family)
    left = [np.arctanh(without_width(points[root != name], form)) for name in sorted(set(root))]
    whole = np.arctanh(without_width(points, form))
    error = np.sqrt(10 / 11 * np.sum((np.array(left) - whole) ** 2))
    assert line.r == pytest.approx(np.tanh(whole), abs=1e-9) and line.families == 11
    assert line.error == pytest.approx(max(error, 1 / np.sqrt(27 - (form == "curve-and-log") - 1)), rel=1e-6)
    assert line.p_families == pytest.approx(2 * scipy.stats.t.sf(whole / line.error, line.freedom), rel=1e-6)
    assert (line.p_families < 0.05) == (line.low > 0)


def test_correlation_given_width_curve_is_positive(points):
    table = figure_1a.partial_table(points)
    found = table.loc[[*FORMS], ["r", "low", "high", "p_families"]].round(3).to_numpy().tolist()
    assert found == [
        [0.572, 0.164, 0.813, 0.017], [0.525, -0.313, 0.904, 0.146], [0.571, 0.157, 0.814, 0.018],
        [0.631, 0.063, 0.89, 0.036], [0.584, -0.049, 0.882, 0.06],
    ]  # fmt: skip
    assert table.loc["curve", "least"] == pytest.approx(0.484, abs=1e-3)
    assert table.loc["curve-base", ["r", "low", "high"]].round(2).tolist() == [0.56, 0.14, 0.81]


def test_gain_is_the_difference_of_two_r_squared(points):
    table = figure_1a.prepared(points).set_index("model")
    assert table.root["vicuna-7b-v1.5"] == table.root["orca-2-7b"] == table.root["llama2-7b"] == "Llama-2"
    assert table.family["vicuna-7b-v1.5"] == "Vicuna (Llama-2)"
    gains = figure_1a.gains(points)
    table = figure_1a.prepared(points)
    for label, column in figure_1a.RIVALS.items():
        expected = r(points.coupling, points.score) ** 2 - r(table[column], points.score) ** 2
        assert gains[label].value == pytest.approx(expected, abs=1e-9) and gains[label].n == 11
        assert -1 <= gains[label].low < expected < gains[label].high <= 1


def test_subsets_are_fitted_one_by_one(points):
    table = figure_1a.subset_table(points)
    for name, chosen in (("all", points.width > 0), ("base models", points.kind == "base")):
        fit = scipy.stats.linregress(points.coupling[chosen], points.score[chosen])
        assert table.loc[name, ["n", "r", "r_squared", "p"]].tolist() == pytest.approx(
            [chosen.sum(), fit.rvalue, fit.rvalue**2, fit.pvalue]
        )
    base = table.loc["base models"]
    assert (base.n, round(base.r_squared, 2)) == (24, 0.80) and base.p == pytest.approx(3.6e-9, rel=0.02)
    assert table.loc["score above 50", "n"] + table.loc["score up to 50", "n"] == len(points)
    assert table.loc["training tokens known", "n"] == 17
