"""Figures of the grid of vision transformers: what is drawn is what the table holds."""

import numpy as np
import pytest

from companion.figures import vision
from companion.tables.vit_grid import NAMED_RATES, Reading, fits_by_rate

from .cases_vision import DECAYS, GRID, RATES, STATED

CLASS = Reading("class")


def dots(axes):
    lines = [line for line in axes.lines if line.get_marker() not in ("None", None) and line.get_linestyle() == "None"]
    return [line.get_xdata() for line in lines]


def test_the_scatter_draws_every_model_of_its_rates_once_with_the_line_of_its_rate():
    models = vision.take_accuracy(GRID, CLASS, STATED, NAMED_RATES)
    assert len(models) == 4 * 8 and set(models.drop_path) == set(NAMED_RATES) and set(models.seed) == {0}
    wanted = fits_by_rate(GRID, CLASS, STATED).set_index("drop_path").loc["0.3"]
    chosen = models[models.drop_path == 0.3]
    assert set(chosen.slope) == {wanted.slope} and set(chosen.r_squared_low) == {wanted.low}
    assert set(chosen.paper) == {0.83}
    figure = vision.draw_accuracy(models)
    assert sum(map(len, dots(figure.axes[0]))) == 4 * 8
    labels = [text.get_text() for text in figure.subfigs[1].legends[0].get_texts()]
    assert labels[0].startswith("rate 0:") and labels[0].endswith("paper 0.35") and "paper" not in labels[1]
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 2)
    first = models[models.drop_path == 0].iloc[0]
    np.testing.assert_allclose(line.get_ydata(), 100 * (first.intercept + first.slope * line.get_xdata()))


def test_all_rates_and_all_decays_have_a_panel_each():
    panels = vision.draw_accuracy_rates(vision.take_accuracy_rates(GRID, CLASS)).axes
    assert [axes.get_title() for axes in panels] == [f"rate {rate:g}" for rate in RATES]
    assert [sum(map(len, dots(axes))) for axes in panels] == [8] * 8
    decays = vision.take_decays(GRID, CLASS)
    panels = vision.draw_decays(decays).axes
    assert [axes.get_title() for axes in panels] == [f"weight decay {decay:g}" for decay in DECAYS]
    np.testing.assert_allclose(panels[4].lines[0].get_ydata(), decays[decays.weight_decay == 0.06].coupling)


def test_the_rate_is_drawn_as_a_mean_over_seeds_with_every_seed_beside_it():
    models = vision.take_rates(GRID, CLASS)
    assert len(models) == 2 * 8 * 3 and (models.seeds == 3).all()
    left, right = vision.draw_rates(models).axes
    assert (left.get_title(), right.get_title()) == ("class token", "last patch")
    values = 1 - GRID[(GRID.weight_decay == 0.04) & (GRID.drop_path == 0.2)][CLASS.column]
    assert left.lines[0].get_ydata()[4] == pytest.approx(values.mean())
    assert left.lines[1].get_ydata()[12:15] == pytest.approx(values.tolist())
    untrained, random_bases = (line.get_ydata() for line in left.lines[2:4])
    assert np.allclose(untrained, 0.053) and np.allclose(random_bases, 0.048)
