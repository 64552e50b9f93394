"""The figure of the experiment with coupling as a regulariser, and the numbers that the book quotes of it."""

import pytest

from companion.figures import generalization_numbers
from companion.figures import regularised as figures
from companion.tables import regularised
from tests.companion.figures.drawn import by_label, dots, points_of

RUNS = regularised.finished(regularised.regularised())
MOVED = regularised.changes(RUNS)


def test_every_run_is_a_point_in_its_panel():
    row = figures.draw_changes(figures.take_changes(RUNS)).axes
    for axes, begin in zip(row, (0, 300), strict=True):
        part = MOVED[MOVED["begin"] == begin]
        assert dots(axes) == points_of(part, "coupling", "validation_loss")
        x, y = by_label(axes)["mean slope over strengths"].get_data()
        assert y[-1] / x[-1] == pytest.approx(regularised.slopes(part).mean())


def test_quoted_numbers_match_the_difference_table():
    found = generalization_numbers.of_runs(RUNS)
    assert found["regularised-pairs"] == RUNS["seed"].nunique()
    changes = regularised.difference_table(RUNS).set_index(["begin", "arm", "column"])
    loss = changes.loc[300, "encourage0.3", "validation_loss"]
    assert found["regularised-encourage0.3-from300-loss"] == pytest.approx(loss["value"])
    assert found["regularised-encourage0.3-from300-loss-low"] == pytest.approx(loss["low"])
    slope = regularised.answers(RUNS)["loss per coupling, from step 0"]
    assert found["regularised-loss-per-coupling-from-step-0"] == pytest.approx(slope.value)
