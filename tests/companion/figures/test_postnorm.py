"""The figure of post-norm blocks: the table's numbers, with one network or two."""

import numpy as np

from companion.figures import postnorm

from .cases_postnorm import TABLE


def test_every_row_is_a_point_at_its_coupling_with_its_interval_and_chance_is_a_line():
    (axes,) = postnorm.draw_maps(TABLE).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(postnorm.MAPS.values())
    *points, chance = axes.get_lines()
    for dots, bars, (_, rows) in zip(points, axes.collections, TABLE.groupby("network", sort=False), strict=True):
        np.testing.assert_allclose(dots.get_xdata(), rows["coupling"])
        np.testing.assert_allclose([bar[:, 0] for bar in bars.get_segments()], rows[["low", "high"]])
        assert np.round(dots.get_ydata()).tolist() == [0, 1]
    assert chance.get_xdata() == [0.05, 0.05]
