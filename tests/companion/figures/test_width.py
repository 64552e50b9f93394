"""Width at fixed quality: every model stands at its width, by each reading, and the curve of no coupling is there."""

import numpy as np

from companion.figures import width
from companion.tables.width import READINGS
from tests.companion.tables.test_width import made_up

CASES = {"draw_width": (width.draw_width, lambda n: width.take_width(made_up(0.005 * n)))}


def test_models_stand_at_their_width_beside_the_curve():
    models = width.take_width(made_up())
    assert {*READINGS, "untrained", "model", "width", "loss", "random"} == {*models} and models["loss"].nunique() == 1
    left, right = width.draw_width(models).axes
    drawn, before, curve = left.lines
    np.testing.assert_allclose(before.get_ydata(), models["untrained"])
    np.testing.assert_allclose(drawn.get_data(), models[["width", "figure_1a"]].T)
    np.testing.assert_allclose(curve.get_ydata(), 1 - 1 / np.sqrt([5, 6, 10, 13, 19]))
    for line, name in zip(right.lines[:2], ("k10", "ktenth"), strict=True):
        np.testing.assert_allclose(line.get_ydata(), models[name])
    # They are shares of the way from chance, and chance is drawn.
    assert right.lines[2].get_ydata() == [0, 0] and abs(models["ktenth"].mean() - 0.2) < 0.01
