"""The paper's figure 1a, against numpy written out."""

import numpy as np
import pytest
import scipy.stats

from companion.tables import figure_1a, generalization

POINTS = generalization.figure_1a()
TABLE = figure_1a.partial_table(POINTS)


def r(x, y):
    return np.corrcoef(np.asarray(x, dtype=float), np.asarray(y, dtype=float))[0, 1]


def test_statistics_equal_plain_correlations():
    found = figure_1a.statistics(POINTS)
    c, score, d = POINTS.coupling, POINTS.score, POINTS.width.astype(float)
    curve = 1 - np.floor(d / 10) ** -0.5
    expected = {
        "n": 28,
        "r-squared": r(c, score) ** 2,
        "width-r-squared": r(curve, score) ** 2,
        "curve-r-squared": r(curve, c) ** 2,
        "curve-scatter": np.std(c - np.polyval(np.polyfit(curve, c, 1), curve), ddof=1),
        "suppressed-r-squared": r((1 - c) * np.sqrt(d / 10), score) ** 2,
        "suppressor-r": r((1 - c) * np.sqrt(d / 10), np.log(d)),
        "parameters-r-squared": r(np.log(POINTS.parameters_b), score) ** 2,
        "blocks-r-squared": r(POINTS.blocks, score) ** 2,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    stated = generalization.paper_figures().query("figure == '1a' and y_quantity == 'r_squared'").y.item()
    assert round(found["r-squared"], 2) == stated


FORMS = {
    "curve": lambda d: [np.floor(d / 10) ** -0.5], "width": lambda d: [np.log(d)], "root": lambda d: [d**-0.5],
    "linear": lambda d: [d], "curve-and-log": lambda d: [np.floor(d / 10) ** -0.5, np.log(d)],
}  # fmt: skip
"""What each form takes out, written out."""
BASE = POINTS.kind == "base"


def without_width(points, form):
    design = np.column_stack([np.ones(len(points)), *FORMS[form](points.width.to_numpy(dtype=float))])
    projection = np.eye(len(points)) - design @ np.linalg.pinv(design)
    return np.arctanh(r(projection @ points.coupling.to_numpy(), projection @ points.score.to_numpy()))


@pytest.mark.parametrize(
    ("name", "form", "points"), [*((form, form, POINTS) for form in FORMS), ("curve-base", "curve", POINTS[BASE])]
)
def test_partial_correlation_is_jackknifed_over_families(name, form, points):
    line, root = TABLE.loc[name], figure_1a.base_family(points.family)
    whole, left = without_width(points, form), [without_width(points[root != one], form) for one in sorted(set(root))]
    error, n = np.sqrt(10 / 11 * np.sum((np.array(left) - whole) ** 2)), len(points)
    error = max(error, 1 / np.sqrt(n - 2 - (form == "curve-and-log")))
    squares = (np.array(left) - np.mean(left)) ** 2
    freedom = np.clip(3 * squares.sum() ** 2 / (squares**2).sum() - 1, 2, 10)
    half = scipy.stats.t.ppf(0.975, freedom) * error
    expected = [*np.tanh([whole, whole - half, whole + half, min(left)]), error, 11]
    assert line[["r", "low", "high", "least", "error", "families"]].tolist() == pytest.approx(expected, rel=1e-6)
    assert line.p_families == pytest.approx(2 * scipy.stats.t.sf(whole / error, freedom), rel=1e-6)
    assert (line.p_families < 0.05) == (line.low > 0) == (name not in ("width", "curve-and-log"))


def test_gain_is_the_difference_of_two_r_squared():
    table, gains = figure_1a.prepared(POINTS), figure_1a.gains(POINTS)
    named = table.set_index("model")
    assert set(named.root[["vicuna-7b-v1.5", "orca-2-7b", "llama2-7b"]]) == {"Llama-2"}
    assert named.family["vicuna-7b-v1.5"] == "Vicuna (Llama-2)"
    for label, column in figure_1a.RIVALS.items():
        expected = r(table.coupling, table.score) ** 2 - r(table[column], table.score) ** 2
        assert gains[label].value == pytest.approx(expected, abs=1e-9) and gains[label].n == 11
        assert -1 <= gains[label].low < expected < gains[label].high <= 1


def test_subsets_are_fitted_one_by_one():
    table = figure_1a.subset_table(POINTS)
    for name, chosen in (("all", POINTS.width > 0), ("base models", BASE)):
        fit = scipy.stats.linregress(POINTS.coupling[chosen], POINTS.score[chosen])
        expected = [chosen.sum(), fit.rvalue, fit.rvalue**2, fit.pvalue]
        assert table.loc[name, ["n", "r", "r_squared", "p"]].tolist() == pytest.approx(expected)
    base = table.loc["base models"]
    assert (base.n, round(base.r_squared, 2)) == (24, 0.80) and base.p == pytest.approx(3.6e-9, rel=0.02)
    assert table.loc["score above 50", "n"] + table.loc["score up to 50", "n"] == len(POINTS)
    assert table.loc["training tokens known", "n"] == 17
