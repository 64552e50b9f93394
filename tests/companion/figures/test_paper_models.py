"""Figures of the paper's models: points are those of the tables, with the lines and words that belong to them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.figures import paper_models
from tests.companion.figures.test_generalization import drawn_points, make_points, make_suite, points_of, texts


def make_sizes() -> pd.DataFrame:
    points = make_points()
    tokens = [np.nan, 0.3, 1.4, 2, 2, np.nan, 6, 15]
    return points.assign(parameters_b=[0.1, 0.4, 1.3, 2.7, 7, 7, 13, 70], blocks=12 + 4 * points.index, tokens_t=tokens)


def make_measured(n: int = 8) -> pd.DataFrame:
    """Measured are the first n of eight models; the last has no score."""
    points, rng = make_points(), np.random.default_rng(5)
    measured = np.where(np.arange(8) < n, rng.uniform(0.1, 0.2, 8), np.nan)
    table = points.rename(columns={"coupling": "digitised"}).drop(columns="family")
    each_k = {name: measured / place for place, name in enumerate(paper_models.EACH_K, start=2) if name != "trace"}
    return table.assign(trace=table.digitised + measured / 100, normalized=measured, **each_k).astype({"score": float})


def measured_of(n: int) -> pd.DataFrame:
    return paper_models.take_measured(make_measured(n), make_points())


def measured_each_k(n: int) -> pd.DataFrame:
    return paper_models.take_measured(make_measured(n), make_points(), paper_models.EACH_K)


def make_last() -> pd.DataFrame:
    suite = make_suite()
    last, rng = suite[suite.final].reset_index(drop=True), np.random.default_rng(6)
    return last.assign(**{f"mismatch_k{k}_relative": rng.random(len(last)) for k in paper_models.KS})


def each_k() -> pd.DataFrame:
    return paper_models.take_each_k(make_last(), "mismatch", "negative_loss")


CASES = {
    "draw_measured": (paper_models.draw_measured, lambda n: measured_of(2 * n)),
    "draw_measured none": (paper_models.draw_measured, lambda n: measured_of(0)),
    "draw_measured each K": (paper_models.draw_measured, lambda n: measured_each_k(2 * n)),
}


def test_each_size_is_drawn_against_score_and_coupling():
    table = paper_models.take_sizes(make_sizes())
    panels = np.reshape(paper_models.draw_sizes(table).axes, (2, 4))
    for row, column in zip(panels, ("score", "coupling"), strict=True):
        for axes, size in zip(row, paper_models.SIZES, strict=True):
            known = table.dropna(subset=[size])
            assert drawn_points(axes) == points_of(known, size, column)
            r = np.corrcoef(np.log(known[size]), known[column])[0, 1]
            assert texts(axes) == [f"$r = {r:.2f}$, n = {len(known)}"]
    assert texts(panels[0, 3])[0].endswith("n = 6") and panels[0, 3].get_xscale() == "log"


def test_measured_models_stand_beside_digitised_values():
    left, right = paper_models.draw_measured(table := measured_of(4)).axes
    assert drawn_points(right) == points_of(table[:4], "normalized", "score")
    assert drawn_points(left) == points_of(table, "digitised", "score") | points_of(table[:4], "trace", "score")
    r = np.corrcoef(table.normalized[:4], table.score[:4])[0, 1]
    assert f"$R^2 = {r**2:.2f}$, n = 4" in texts(right)
    assert texts(paper_models.draw_measured(measured_of(2)).axes[1]) == ["model-0", "model-1"]
    (alone,) = paper_models.draw_measured(measured_of(0)).axes
    assert "no model with a score" in texts(alone)[0] and len(drawn_points(alone)) == len(measured_of(0))


def test_measured_models_have_a_panel_per_k():
    table = measured_each_k(4)
    panels = paper_models.draw_measured(table).axes
    for axes, k in zip(panels[:-1], (10, 30, 50), strict=True):
        assert drawn_points(axes) == points_of(table[:4], f"trace_{k}", "score")
        assert axes.get_xlabel() == f"$1 -$ released trace,\n$K = {k}$"
    assert drawn_points(panels[-1]) == points_of(table, "digitised", "score") | points_of(table[:4], "trace", "score")


def test_model_without_score_is_left_out():
    models = make_measured()
    models.loc[3, "score"] = np.nan
    table = paper_models.take_measured(models, make_points()[:5])
    assert "model-3" not in set(table.model) and len(table) == 7
    assert table.family.tolist()[:1] == ["GPT-2"] and table.family.tolist()[-1] == "other"


def test_each_k_panel_shows_the_same_models():
    table, last = each_k(), make_last()
    for axes, k in zip(paper_models.draw_each_k(table).axes, paper_models.KS, strict=True):
        assert drawn_points(axes) == points_of(last, f"mismatch_k{k}_relative", "negative_loss")
        r = np.corrcoef(last[f"mismatch_k{k}_relative"], last.negative_loss)[0, 1]
        assert texts(axes) == [f"$r = {r:.2f}$"]
    assert len(table) == pytest.approx(3 * len(last))
