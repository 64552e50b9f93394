"""The figure of post-norm blocks: the table's numbers, in both themes, with one network or two."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from coupling_lib.figures import postnorm
from tests.figures.drawn import assert_repeats, assert_text_inside

TABLE = pd.DataFrame(
    [
        ("untrained", "block", 0.93, 0.92, 0.94, 0.05),
        ("untrained", "branch", 0.05, 0.045, 0.056, 0.05),
        ("trained", "block", 0.64, 0.61, 0.67, 0.05),
        ("trained", "branch", 0.27, 0.25, 0.28, 0.05),
    ],
    columns=["network", "map", "coupling", "low", "high", "chance"],
)


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_repeats_byte_for_byte_and_keeps_its_text_inside(theme, rows):
    assert_repeats(lambda: postnorm.coupling_of_maps(TABLE[:rows]), theme)
    assert_text_inside(lambda: postnorm.coupling_of_maps(TABLE[:rows]), theme, tick_labels="xy")


def test_every_row_is_a_point_at_its_coupling_with_its_interval_and_chance_is_a_line():
    (axes,) = postnorm.coupling_of_maps(TABLE).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(postnorm.MAPS.values())
    for container, (_, rows) in zip(axes.containers, TABLE.groupby("network", sort=False), strict=True):
        points, _, (bars,) = container
        np.testing.assert_allclose(points.get_xdata(orig=False), rows["coupling"])
        np.testing.assert_allclose([bar[:, 0] for bar in bars.get_segments()], rows[["low", "high"]])
    assert axes.get_lines()[-1].get_xdata() == [0.05, 0.05]
    assert {tuple(np.round(container[0].get_ydata(orig=False))) for container in axes.containers} == {(0, 1)}
