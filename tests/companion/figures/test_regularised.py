"""The figure of the experiment with coupling as a regulariser, and the numbers that the book quotes of it."""

from __future__ import annotations

import pytest

from companion.figures import generalization_numbers
from companion.figures import regularised as figures
from companion.tables import regularised

RUNS = regularised.finished(regularised.regularised())
MOVED = regularised.changes(RUNS)


def test_every_run_is_a_point_in_its_panel():
    row = figures.draw_changes(figures.take_changes(RUNS)).axes
    for axes, begin in zip(row, (0, 300), strict=True):
        dots = [line for line in axes.lines if line.get_linestyle() == "None"]
        drawn = sorted((float(x), float(y)) for line in dots for x, y in zip(*line.get_data(), strict=True))
        part = MOVED[MOVED["begin"] == begin]
        assert drawn == sorted(zip(part["coupling"], part["validation_loss"], strict=True))
        (line,) = (line for line in axes.lines if line.get_label() == "mean slope over strengths")
        x, y = line.get_data()
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
