"""The figure of post-norm blocks: the table's numbers, with one network or two."""

import numpy as np
import pandas as pd

from companion.figures import postnorm

ROWS = [("untrained", "block", 0.93, 0.92, 0.94), ("untrained", "branch", 0.05, 0.045, 0.056)]
ROWS += [("trained", "block", 0.64, 0.61, 0.67), ("trained", "branch", 0.27, 0.25, 0.28)]
TABLE = pd.DataFrame(ROWS, columns=["network", "map", "coupling", "low", "high"]).assign(chance=0.05)
CASES = {"draw_maps": (postnorm.draw_maps, lambda n: TABLE[: 2 * min(n, 2)])}


def test_rows_are_points_with_intervals_beside_chance():
    (axes,) = postnorm.draw_maps(TABLE).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(postnorm.MAPS.values())
    *points, chance = axes.get_lines()
    for dots, bars, (_, rows) in zip(points, axes.collections, TABLE.groupby("network", sort=False), strict=True):
        np.testing.assert_allclose(dots.get_xdata(), rows["coupling"])
        np.testing.assert_allclose([bar[:, 0] for bar in bars.get_segments()], rows[["low", "high"]])
        assert np.round(dots.get_ydata()).tolist() == [0, 1]
    assert chance.get_xdata() == [0.05, 0.05]
