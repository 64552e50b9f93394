"""Figures of coupling against quality: points, lines and labels are those of their tables."""

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import generalization as figures
from companion.figures import generalization_numbers
from companion.tables import correlations, generalization
from companion.tables.generalization import SCORES
from tests.companion.figures.drawn import by_label, dots, points_of, titles, words

POINTS, SUITE, BOARD = generalization.figure_1a(), generalization.suite(), generalization.leaderboard().copy()
BOARD.loc[3, "ARC"] = np.nan
READING = figures.READING
FINAL, LAST = SUITE[SUITE.final], correlations.last_checkpoints(SUITE)
MODEL, OTHER = FINAL.model.iloc[3], BOARD.model[1]
CASES = {
    "draw_suite": (figures.draw_suite, lambda n: figures.take_suite(SUITE), {"marked": MODEL}),
    "draw_leaderboard": (figures.draw_leaderboard, lambda n: figures.take_leaderboard(BOARD), {"marked": OTHER}),
}


def correlation(table: pd.DataFrame, x: str, y: str) -> float:
    return np.corrcoef(table[x], table[y])[0, 1]


def test_paper_points_are_drawn_beside_width_curve():
    table = figures.take_paper(POINTS)
    assert table.model.tolist() == POINTS.model.tolist()
    curve = 1 - 1 / np.sqrt(np.floor(0.1 * POINTS.width))
    cleared = {y: POINTS[y] - np.polyval(np.polyfit(curve, POINTS[y], 1), curve) for y in ("coupling", "score")}
    assert_allclose(table.width_curve, curve)
    assert_allclose(table[["coupling_cleared", "score_cleared"]], np.transpose([*cleared.values()]), atol=1e-9)
    assert_allclose(table.beyond_width, (1 - POINTS.coupling) * np.sqrt(0.1 * POINTS.width))
    figure = figures.draw_paper(table)
    assert words(figure.legends[0].get_texts()) == ["other families", "GPT-2", "Llama-2 and models tuned from it"]
    assert titles(figure.axes) == ["As plotted", "Width alone", "Beyond width"]
    plotted, alone, beyond = figure.axes
    assert dots(plotted) == points_of(POINTS, "coupling", "score")
    assert dots(alone) == points_of(table, "width_curve", "score")
    assert dots(beyond) == points_of(table, "coupling_cleared", "score_cleared")
    assert f"$R^2 = {correlation(POINTS, 'coupling', 'score') ** 2:.2f}$" in words(plotted.texts)
    assert f"$r = {correlation(table, 'coupling_cleared', 'score_cleared'):.2f}$" in words(beyond.texts)
    (line,) = [line for line in plotted.lines if line.get_linestyle() != "None"]
    assert_allclose(line.get_ydata(), np.polyval(np.polyfit(POINTS.coupling, POINTS.score, 1), line.get_xdata()))


def test_sign_is_drawn_at_every_step():
    signs = pd.DataFrame({"step": [32, 600], "r": [0.8, -0.5], "low": [0.6, -0.7], "high": [0.9, -0.2], "models": 9})
    moments = {"step": [0, 32, 100, 600], "validation_loss": [7, 6, 5, 4], "c": [0, 0.3, 0.4, 0.1]}
    table = pd.DataFrame({"model": "m", "tokens": 1} | moments)
    rows = figures.take_sign(signs, table, "c")
    assert rows.panel.tolist() == ["left"] * 2 + ["right"] * 4 and rows.r[:2].tolist() == [0.8, -0.5]
    left, right = figures.draw_sign(rows).axes
    (line,) = [line for line in left.lines if line.get_marker() == "o"]
    assert np.transpose(line.get_data()).tolist() == [[32, 0.8], [600, -0.5]]
    assert words(left.texts) == ["$+0.80$", "$-0.50$"]
    assert dots(right) == points_of(table, "validation_loss", "c") and right.xaxis_inverted()
    for name, degree in (("line", 1), ("parabola", 2)):
        x, y = by_label(right)[name].get_data()
        assert_allclose(y, np.polyval(np.polyfit([7, 6, 5, 4], table.c, degree), x))
    many = pd.concat([signs.iloc[:1].assign(step=16 * 2**n) for n in range(10)], ignore_index=True)
    left, right = figures.draw_sign(figures.take_sign(many, table, "c")).axes
    (line,) = [line for line in left.lines if line.get_marker() == "o"]
    assert len(line.get_xdata()) == 10 and len(left.texts) == 4 and right.get_ylabel() == "coupling"
    assert words(left.get_xticklabels()) == ["16", "128", "1024", "8192"]


def test_suite_checkpoints_are_joined_along_training():
    table = figures.take_suite(SUITE)
    columns = ["model", "step", "final", "validation_loss", "accuracy", READING]
    pd.testing.assert_frame_equal(table[columns], SUITE[columns])
    path, (marked,) = SUITE[SUITE.model == FINAL.model.iloc[2]].sort_values("step"), FINAL[FINAL.model == MODEL].index
    for axes, (label, column) in zip(figures.draw_suite(table, MODEL).axes, SCORES.items(), strict=False):
        assert axes.get_ylabel() == label and axes.get_xlabel() == "coupling relative to chance"
        assert dots(axes) == points_of(SUITE, READING, column)
        assert dots(axes, "s") == points_of(SUITE[SUITE.architecture == "llama"], READING, column)
        full = [line for line in axes.lines if line.get_markerfacecolor() != "none" and line.get_marker() in ("o", "s")]
        assert {xy for line in full for xy in zip(*line.get_data(), strict=True)} == points_of(FINAL, READING, column)
        assert any(np.array_equal(line.get_data(), path[[READING, column]].T) for line in axes.lines)
        assert f"last checkpoints: $r = {correlation(FINAL, READING, column):.2f}$" in words(axes.texts)
        (named,) = [text for text in axes.texts if text.get_text() == MODEL]
        assert named.xy == tuple(FINAL.loc[marked, [READING, column]])


def test_correlations_that_may_be_chance_are_hollow():
    budget = correlations.equal_tokens(LAST)
    table = figures.take_variants(budget)
    table.loc[table.index[0], "p_holm"] = 0.05
    row = table.set_index(["variant", "k"]).loc["released_trace", "tenth"]
    assert row.r == approx(np.corrcoef(1 - budget["released_trace_ktenth"], budget["negative_loss"])[0, 1])
    measured, relative = figures.draw_variants(table).axes
    names = words(measured.get_yticklabels())
    assert names == list(dict.fromkeys(table.variant))
    places = {"5": -0.2, "10": 0.0, "tenth": 0.2}
    wanted = {(row.r, names.index(row.variant) + places[row.k]): row.p_holm < 0.05 for row in table.itertuples()}
    found = {}
    for line in measured.lines:
        if line.get_marker() == "o" and line.get_linestyle() == "None":
            found |= dict.fromkeys(zip(*line.get_data(), strict=True), line.get_markerfacecolor() != "none")
    assert found == wanted and 0 < sum(found.values()) < len(found)
    assert {x for x, _ in dots(relative)} == set(table.r_relative)
    assert measured.get_xlim() == relative.get_xlim() == (-1.05, 1.05)


def test_rivals_are_drawn_with_intervals_and_partials():
    stacked = figures.take_rivals(LAST)
    left, right = figures.draw_rivals(stacked).axes
    names = list(dict.fromkeys(stacked.predictor))
    assert words(left.get_yticklabels()) == names
    assert list(stacked.columns)[:2] == ["score", "predictor"]
    assert stacked.score.tolist() == [label for label in SCORES for _ in names]
    for position, (label, column) in enumerate(SCORES.items()):
        rows = correlations.rival_table(LAST, column, READING).set_index("predictor").loc[names]
        line, places = by_label(left)[label], np.arange(len(names)) + 0.24 * (position - 0.5)
        assert_allclose(line.get_data(), [rows.r_squared, places])
        ends = left.collections[position].get_segments()
        assert_allclose([(a[0], b[0]) for a, b in ends], rows[["low", "high"]])
        (partial,) = [other for other in right.lines if other.get_color() == line.get_color()]
        assert_allclose(partial.get_xdata(), rows.partial)


def test_sizes_show_models_and_tokens_show_checkpoints():
    reading = "mismatch_k5_relative"
    axes = np.reshape(figures.draw_sizes(figures.take_suite(SUITE, reading)).axes, (2, 4))
    for row, column in zip(axes, ("negative_loss", reading), strict=True):
        for panel, x in zip(row, ("parameters", "blocks", "width", "tokens"), strict=True):
            shown = SUITE if x == "tokens" else FINAL
            assert dots(panel) == points_of(shown, x, column)
            assert words(panel.texts) == [f"$r = {np.corrcoef(np.log(shown[x]), shown[column])[0, 1]:.2f}$"]
            assert panel.get_xscale() == ("log" if x in ("parameters", "tokens") else "linear")
    assert [panel.get_xlabel() for panel in axes[1]] == ["parameters", "blocks", "width", "training tokens"]
    assert [panel.get_ylabel() for panel in axes[:, 0]] == ["minus validation loss", "relative coupling"]


def test_line_and_exponential_are_fitted_to_points():
    x = np.linspace(0.2, 0.9, 9)
    tables = {"one": (x, 3 * x - 1), "two": (x[::-1], np.exp(2 * x[::-1]))}
    labels = {"one": ("coupling", "score"), "two": ("relative coupling", "minus loss")}
    points = figures.take_shapes(tables)
    assert points.groupby("points", sort=False).size().to_dict() == {"one": 9, "two": 9}
    panels = [axes for axes in figures.draw_shapes(points, labels).axes if axes.lines]
    for axes, (title, (x, y)) in zip(panels, tables.items(), strict=True):
        assert (axes.get_xlabel(), axes.get_ylabel()) == labels[title]
        assert dots(axes) == set(zip(x, y, strict=True))
        fits = by_label(axes)
        at, line = fits["linear"].get_data()
        assert_allclose(line, np.polyval(np.polyfit(x, y, 1), at), rtol=1e-6)
    assert_allclose(fits["exponential"].get_ydata(), np.exp(2 * fits["exponential"].get_xdata()), rtol=1e-3)


def test_leaderboard_draws_known_scores_and_rings_one_model():
    *panels, last = figures.draw_leaderboard(figures.take_leaderboard(BOARD), OTHER).axes
    assert titles([*panels, last]) == [*figures.TASKS, "mean of the six", "GSM8K and the rest"]
    for axes, task in zip(panels, (*figures.TASKS, "average"), strict=True):
        assert dots(axes) == points_of(BOARD.dropna(subset=[task]), "parameters_b", task)
        (ring,) = [line for line in axes.lines if line.get_markersize() == 11]
        assert points_of(BOARD[BOARD.model == OTHER], "parameters_b", task) == set(zip(*ring.get_data(), strict=True))
    rest = BOARD[list(figures.TASKS[:5])].mean(axis=1, skipna=False)
    known = BOARD.assign(rest=rest).dropna(subset=["rest", "GSM8K"])
    assert dots(last) == points_of(known, "rest", "GSM8K") and len(known) == len(BOARD) - 2
    r_squared = correlation(known, "rest", "GSM8K") ** 2
    assert words(last.texts) == [f"$R^2 = {r_squared:.2f}$"]
    found = generalization_numbers.of_tasks(BOARD)
    assert (found["gsm8k-models"], found["gsm8k-r-squared"]) == approx((len(known), r_squared))


def test_measured_models_are_named_and_others_counted():
    models = pd.DataFrame({"model": ["a", "b", "c"], "trace": [0.5, np.nan, np.nan], "normalized": [0.1, np.nan, 0.2]})
    sentence = generalization_numbers.measured_sentence
    assert sentence(models) == "Measured here: a, c. Not measured here: 1 of 3 models."
    assert sentence(models.iloc[1:2]) == "Measured here: none. Not measured here: 1 of 1 models."
