"""Figures of the paper's models: points are those of the tables, with the lines and words that belong to them."""

import numpy as np
import pandas as pd

from companion.figures import paper_models
from companion.figures.paper_models import EACH_K
from tests.companion.figures.drawn import dots, points_of, words
from tests.companion.figures.test_generalization import LAST, POINTS, correlation

EIGHT = POINTS[:8]


def make_measured(n: int = 8) -> pd.DataFrame:
    """Couplings of the first n of eight models."""
    measured = np.where(np.arange(8) < n, np.random.default_rng(5).uniform(0.1, 0.2, 8), np.nan)
    table = EIGHT.rename(columns={"coupling": "digitised"}).drop(columns="family")
    each_k = {name: measured / place for place, name in enumerate(EACH_K, start=2)} | {"normalized": measured}
    return table.assign(**each_k | {"trace": table.digitised + measured / 100})


def measured_of(n: int, *readings) -> pd.DataFrame:
    return paper_models.take_measured(make_measured(n), EIGHT, *readings)


CASES = {
    "draw_measured": (paper_models.draw_measured, lambda n: measured_of(2 * n)),
    "draw_measured none": (paper_models.draw_measured, lambda n: measured_of(0)),
    "draw_measured each K": (paper_models.draw_measured, lambda n: measured_of(2 * n, EACH_K)),
}


def test_each_size_is_drawn_against_score_and_coupling():
    table = paper_models.take_sizes(POINTS)
    panels = np.reshape(paper_models.draw_sizes(table).axes, (2, 4))
    for row, column in zip(panels, ("score", "coupling"), strict=True):
        for axes, size in zip(row, paper_models.SIZES, strict=True):
            known = POINTS.dropna(subset=[size])
            assert dots(axes) == points_of(known, size, column)
            r = np.corrcoef(np.log(known[size]), known[column])[0, 1]
            assert words(axes.texts) == [f"$r = {r:.2f}$, n = {len(known)}"]
    assert words(panels[0, 3].texts)[0].endswith("n = 17") and panels[0, 3].get_xscale() == "log"


def test_measured_models_stand_beside_digitised_values():
    left, right = paper_models.draw_measured(table := measured_of(4)).axes
    assert dots(right) == points_of(table[:4], "normalized", "score")
    assert dots(left) == points_of(table, "digitised", "score") | points_of(table[:4], "trace", "score")
    assert f"$R^2 = {correlation(table[:4], 'normalized', 'score') ** 2:.2f}$, n = 4" in words(right.texts)
    assert words(paper_models.draw_measured(measured_of(2)).axes[1].texts) == EIGHT.model[:2].tolist()
    (alone,) = paper_models.draw_measured(measured_of(0)).axes
    assert "no model with a score" in words(alone.texts)[0] and len(dots(alone)) == len(measured_of(0))
    *panels, last = paper_models.draw_measured(table := measured_of(4, EACH_K)).axes
    for axes, k in zip(panels, (10, 30, 50), strict=True):
        assert dots(axes) == points_of(table[:4], f"trace_{k}", "score")
        assert axes.get_xlabel() == f"$1 -$ released trace,\n$K = {k}$"
    assert dots(last) == points_of(table, "digitised", "score") | points_of(table[:4], "trace", "score")


def test_model_without_score_is_left_out():
    models = make_measured().assign(score=EIGHT.score.where(EIGHT.index != 3))
    table = paper_models.take_measured(models, EIGHT[:5])
    assert table.model.tolist() == [name for name in EIGHT.model if name != EIGHT.model[3]]
    assert table.family.tolist() == [*EIGHT.family[[0, 1, 2, 4]], *["other"] * 3]


def test_each_k_panel_shows_the_same_models():
    table = paper_models.take_each_k(LAST, "mismatch", "negative_loss")
    for axes, k in zip(paper_models.draw_each_k(table).axes, paper_models.KS, strict=True):
        column = f"mismatch_k{k}_relative"
        assert dots(axes) == points_of(LAST, column, "negative_loss")
        assert words(axes.texts) == [f"$r = {correlation(LAST, column, 'negative_loss'):.2f}$"]
    assert len(table) == 3 * len(LAST)
