"""Figures of coupling against quality: points, lines and labels are those of their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.figures import generalization as figures
from companion.figures import generalization_numbers
from companion.tables import correlations, generalization
from companion.tables.generalization import SCORES
from companion.tables.statistics import width_curve

VARIANTS = ("mismatch", "released_trace", "basis_vv")
LABELS = {"one": ("coupling", "score"), "two": ("relative coupling", "minus loss")}


def make_points(n: int = 8) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    width = np.array([768, 1024, 2048, 2560, 4096, 4096, 5120, 8192])[:n]
    coupling = width_curve(width) + 0.003 * rng.standard_normal(n)
    families = ["GPT-2", "Llama 2", "Llama 3", "Phi", "Gemma (v1)", "Nobody's", "Mistral", "Qwen"][:n]
    return pd.DataFrame(
        {
            "model": [f"model-{i}" for i in range(n)], "family": families, "width": width, "coupling": coupling,
            "score": 30 + 5 * rng.standard_normal(n), "how": "digitised",
        }
    )  # fmt: skip


def make_suite() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = []
    for number, (width, blocks) in enumerate([(32, 4), (32, 8), (64, 4), (64, 8), (96, 8)]):
        for step in (32, 100, 600):
            rows.append(
                {
                    "model": f"m{number}", "architecture": ("neox", "llama")[number % 2], "width": width,
                    "blocks": blocks, "parameters": 1000 * width * blocks, "step": step, "tokens": 1024 * step,
                    "final": step == 600, "validation_loss": (loss := 7 - np.log10(step) + 0.1 * rng.random()),
                    "negative_loss": -loss, "accuracy": rng.random(), "coupling": rng.random(),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def make_variants() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    rows = [(name, k, *rng.uniform(-1, 1, 2)) for name in VARIANTS for k in ("5", "10", "tenth")]
    table = pd.DataFrame(rows, columns=["variant", "k", "r", "r_relative"])
    return table.assign(p_holm=[0.01, 0.2, 0.04, 0.05, 1, 0.001, 0.3, 0.02, 0.06])


def make_board() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    table = pd.DataFrame(20 + 60 * rng.random((7, 6)), columns=list(figures.TASKS))
    table["average"] = table.mean(axis=1)
    table.loc[2, "GSM8K"] = np.nan
    table.loc[3, "ARC"] = np.nan
    names = ["Llama 2", "Llama 2", "Phi", "Gemma (v1)", "Nobody's", "GPT-2", "Qwen"]
    return table.assign(model=[f"b{i}" for i in range(7)], family=names, parameters_b=[7, 13, 2.7, 7, 1, 0.1, 0.5])


def make_shapes() -> dict[str, tuple[list[float], np.ndarray]]:
    x = np.linspace(0.2, 0.9, 9)
    return {"one": (list(x), 3 * x - 1), "two": (list(x[::-1]), np.exp(2 * x[::-1]))}


def make_sign() -> tuple[pd.DataFrame, pd.DataFrame]:
    signs = pd.DataFrame({"step": [32, 600], "r": [0.8, -0.5], "low": [0.6, -0.7], "high": [0.9, -0.2], "models": 9})
    table = pd.DataFrame(
        {"model": "m", "step": [0, 32, 100, 600], "tokens": 1, "validation_loss": [7, 6, 5, 4], "c": [0, 0.3, 0.4, 0.1]}
    )
    return signs, table


CASES = {
    "draw_suite": (figures.draw_suite, lambda n: figures.take_suite(make_suite(), "coupling"), {"marked": "m3"}),
    "draw_leaderboard": (figures.draw_leaderboard, lambda n: figures.take_leaderboard(make_board()), {"marked": "b1"}),
}


def drawn_points(axes, marker: str | None = None) -> set[tuple[float, float]]:
    lines = [line for line in axes.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
    chosen = [line for line in lines if marker is None or line.get_marker() == marker]
    return {(float(x), float(y)) for line in chosen for x, y in zip(*line.get_data(), strict=True)}


def points_of(table: pd.DataFrame, x: str, y: str) -> set[tuple[float, float]]:
    return {(float(a), float(b)) for a, b in zip(table[x], table[y], strict=True)}


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_paper_points_are_drawn_beside_width_curve():
    points = make_points()
    table = figures.take_paper(points)
    panels = {axes.get_title(): axes for axes in figures.draw_paper(table).axes}
    assert drawn_points(panels["As plotted"]) == points_of(points, "coupling", "score")
    assert drawn_points(panels["Width alone"]) == points_of(table, "width_curve", "score")
    r = np.corrcoef(points.coupling, points.score)[0, 1]
    assert f"$R^2 = {r**2:.2f}$" in texts(panels["As plotted"])
    (line,) = [line for line in panels["As plotted"].lines if line.get_linestyle() != "None"]
    np.testing.assert_allclose(
        line.get_ydata(), np.polyval(np.polyfit(points.coupling, points.score, 1), line.get_xdata())
    )
    panel = panels["Beyond width"]
    assert drawn_points(panel) == points_of(table, "coupling_cleared", "score_cleared")
    assert f"$r = {np.corrcoef(table.coupling_cleared, table.score_cleared)[0, 1]:.2f}$" in texts(panel)


def test_sign_is_drawn_at_every_step():
    signs, table = make_sign()
    rows = figures.take_sign(signs, table, "c")
    left, right = figures.draw_sign(rows).axes
    (line,) = [line for line in left.lines if line.get_marker() == "o"]
    assert line.get_xdata().tolist() == [32, 600] and line.get_ydata().tolist() == [0.8, -0.5]
    assert [text.get_text() for text in left.texts] == ["$+0.80$", "$-0.50$"]
    assert drawn_points(right) == points_of(table, "validation_loss", "c") and right.xaxis_inverted()
    curves = {line.get_label(): line for line in right.lines if line.get_linestyle() != "None"}
    for name, degree in (("line", 1), ("parabola", 2)):
        x = curves[name].get_xdata()
        np.testing.assert_allclose(curves[name].get_ydata(), np.polyval(np.polyfit([7, 6, 5, 4], table.c, degree), x))
    assert rows.panel.tolist() == ["left"] * 2 + ["right"] * 4 and rows.r[:2].tolist() == [0.8, -0.5]
    many = pd.concat([signs.iloc[:1].assign(step=16 * 2**n) for n in range(10)], ignore_index=True)
    left, right = figures.draw_sign(figures.take_sign(many, table, "c")).axes
    (line,) = [line for line in left.lines if line.get_marker() == "o"]
    assert len(line.get_xdata()) == 10 and len(left.texts) == 4 and right.get_ylabel() == "coupling"
    assert [label.get_text() for label in left.get_xticklabels()] == ["16", "128", "1024", "8192"]


def test_paper_table_holds_width_curve_and_residuals():
    points = make_points()
    table = figures.take_paper(points)
    (legend,) = figures.draw_paper(table).legends
    assert [text.get_text() for text in legend.get_texts()] == ["other families", "GPT-2"]
    assert table.model.tolist() == points.model.tolist()
    np.testing.assert_allclose(table.width_curve, 1 - 1 / np.sqrt(np.floor(0.1 * points.width)))
    for name in ("coupling", "score"):
        slope, level = np.polyfit(table.width_curve, points[name], 1)
        left = points[name] - level - slope * table.width_curve
        np.testing.assert_allclose(table[f"{name}_cleared"], left, atol=1e-9)
    np.testing.assert_allclose(table.beyond_width, (1 - points.coupling) * np.sqrt(0.1 * points.width))


def test_suite_checkpoints_are_joined_along_training():
    suite = make_suite()
    table = figures.take_suite(suite, "coupling")
    figure = figures.draw_suite(table, "m3")
    last = suite[suite.final]
    for axes, (label, column) in zip(figure.axes, SCORES.items(), strict=False):
        assert axes.get_ylabel() == label and axes.get_xlabel() == "coupling relative to chance"
        assert drawn_points(axes) == points_of(suite, "coupling", column)
        assert drawn_points(axes, "s") == points_of(suite[suite.architecture == "llama"], "coupling", column)
        full = [line for line in axes.lines if line.get_markerfacecolor() != "none" and line.get_marker() in ("o", "s")]
        shown = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in full if len(line.get_xdata())}
        assert shown == points_of(last, "coupling", column)
        path = suite[suite.model == "m2"].sort_values("step")
        assert any(np.array_equal(line.get_data(), path[["coupling", column]].T) for line in axes.lines)
        assert f"last checkpoints: $r = {np.corrcoef(last.coupling, last[column])[0, 1]:.2f}$" in texts(axes)
        named = next(text for text in axes.texts if text.get_text() == "m3")
        assert named.xy == tuple(last.loc[last.model == "m3", ["coupling", column]].iloc[0])
    assert set(table.columns) >= {"model", "step", "coupling", "validation_loss", "accuracy", "final"}
    pd.testing.assert_series_equal(table.coupling, suite.coupling)


def test_correlations_that_may_be_chance_are_hollow():
    table = make_variants()
    measured, relative = figures.draw_variants(table).axes
    assert [label.get_text() for label in measured.get_yticklabels()] == list(VARIANTS)
    places = {"5": -0.2, "10": 0.0, "tenth": 0.2}
    wanted = {(row.r, VARIANTS.index(row.variant) + places[row.k]): row.p_holm < 0.05 for row in table.itertuples()}
    found = {}
    for line in measured.lines:
        if line.get_marker() == "o" and line.get_linestyle() == "None":
            found |= dict.fromkeys(zip(*line.get_data(), strict=True), line.get_markerfacecolor() != "none")
    assert found == pytest.approx(wanted) and sum(found.values()) == 4
    shown = {round(x, 9) for x, _ in drawn_points(relative)}
    assert shown == {round(r, 9) for r in table.r_relative}
    assert measured.get_xlim() == relative.get_xlim() == (-1.05, 1.05)


def test_rivals_are_drawn_with_intervals_and_partials():
    last = correlations.last_checkpoints(generalization.suite())
    tables = {label: correlations.rival_table(last, column, figures.READING) for label, column in SCORES.items()}
    stacked = figures.take_rivals(last)
    left, right = figures.draw_rivals(stacked).axes
    names = list(dict.fromkeys(stacked.predictor))
    assert [label.get_text() for label in left.get_yticklabels()] == names
    for position, (label, table) in enumerate(tables.items()):
        rows = table.set_index("predictor").loc[names]
        (line,) = [line for line in left.lines if line.get_label() == label]
        np.testing.assert_allclose(line.get_xdata(), rows.r_squared)
        np.testing.assert_allclose(line.get_ydata(), np.arange(len(names)) + 0.24 * (position - 0.5))
        ends = left.collections[position].get_segments()
        np.testing.assert_allclose([(a[0], b[0]) for a, b in ends], rows[["low", "high"]])
        (partial,) = [other for other in right.lines if other.get_color() == line.get_color()]
        np.testing.assert_allclose(partial.get_xdata(), rows.partial)
    assert list(stacked.columns)[:2] == ["score", "predictor"] and len(stacked) == 2 * len(names)
    assert stacked.score.tolist() == [label for label in SCORES for _ in names]


def test_each_reading_is_correlated_with_the_score():
    last = correlations.equal_tokens(correlations.last_checkpoints(generalization.suite()))
    row = figures.take_variants(last).set_index(["variant", "k"]).loc["released_trace", "tenth"]
    assert row.r == pytest.approx(np.corrcoef(1 - last["released_trace_ktenth"], last["negative_loss"])[0, 1])


def test_sizes_show_models_and_tokens_show_checkpoints():
    suite = make_suite()
    axes = np.array(figures.draw_sizes(figures.take_suite(suite, "coupling")).axes).reshape(2, 4)
    last = suite[suite.final]
    for row, column in zip(axes, ("negative_loss", "coupling"), strict=True):
        for panel, x in zip(row, ("parameters", "blocks", "width", "tokens"), strict=True):
            shown = suite if x == "tokens" else last
            assert drawn_points(panel) == points_of(shown, x, column)
            assert texts(panel) == [f"$r = {np.corrcoef(np.log(shown[x]), shown[column])[0, 1]:.2f}$"]
            assert panel.get_xscale() == ("log" if x in ("parameters", "tokens") else "linear")
    assert [panel.get_xlabel() for panel in axes[1]] == ["parameters", "blocks", "width", "training tokens"]
    assert [panel.get_ylabel() for panel in axes[:, 0]] == ["minus validation loss", "relative coupling"]


def test_line_and_exponential_are_fitted_to_points():
    tables = make_shapes()
    points = figures.take_shapes(tables)
    panels = [axes for axes in figures.draw_shapes(points, LABELS).axes if axes.lines]
    for axes, (title, (x, y)) in zip(panels, tables.items(), strict=True):
        assert (axes.get_xlabel(), axes.get_ylabel()) == LABELS[title]
        assert drawn_points(axes) == {(float(a), float(b)) for a, b in zip(x, y, strict=True)}
        fits = {line.get_label(): line for line in axes.lines if line.get_label() in ("linear", "exponential")}
        line = fits["linear"]
        np.testing.assert_allclose(line.get_ydata(), np.polyval(np.polyfit(x, y, 1), line.get_xdata()), rtol=1e-6)
    # These points are an exponential.
    np.testing.assert_allclose(fits["exponential"].get_ydata(), np.exp(2 * fits["exponential"].get_xdata()), rtol=1e-3)
    assert points.groupby("points", sort=False).size().to_dict() == {"one": 9, "two": 9}
    np.testing.assert_allclose(points.loc[points.points == "two", "score"], tables["two"][1])


def test_leaderboard_draws_known_scores_and_rings_one_model():
    board = make_board()
    panels = {axes.get_title(): axes for axes in figures.draw_leaderboard(figures.take_leaderboard(board), "b1").axes}
    for task in (*figures.TASKS, "average"):
        axes = panels[task if task != "average" else "mean of the six"]
        known = board.dropna(subset=[task])
        assert drawn_points(axes) == points_of(known, "parameters_b", task)
        (ring,) = [line for line in axes.lines if line.get_markersize() == 11]
        assert points_of(board[board.model == "b1"], "parameters_b", task) == {
            (float(ring.get_xdata()[0]), float(ring.get_ydata()[0]))
        }
    rest = board[list(figures.TASKS[:5])].mean(axis=1, skipna=False)
    known = pd.DataFrame({"rest": rest, "GSM8K": board.GSM8K}).dropna()
    assert len(known) == 5 and drawn_points(panels["GSM8K and the rest"]) == points_of(known, "rest", "GSM8K")
    r_squared = np.corrcoef(known["rest"], known.GSM8K)[0, 1] ** 2
    assert texts(panels["GSM8K and the rest"]) == [f"$R^2 = {r_squared:.2f}$"]
    found = generalization_numbers.of_tasks(board)
    assert found["gsm8k-models"] == 5 and found["gsm8k-r-squared"] == pytest.approx(r_squared)


def test_measured_models_are_named_and_others_counted():
    models = pd.DataFrame({"model": ["a", "b", "c"], "trace": [0.5, np.nan, np.nan], "normalized": [0.1, np.nan, 0.2]})
    assert generalization_numbers.measured_sentence(models) == "Measured here: a, c. Not measured here: 1 of 3 models."
    assert (
        generalization_numbers.measured_sentence(models.iloc[1:2])
        == "Measured here: none. Not measured here: 1 of 1 models."
    )
