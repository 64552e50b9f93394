"""Digitised points, and the figure of them alone."""

from __future__ import annotations

import pandas as pd

from companion.figures import nulls

POINTS = pd.DataFrame({"model": ["a", "b", "c"], "width": [64, 1024, 4096], "coupling": [0.6, 0.9, 0.95]})


CASES = {"draw_figure_1a of digitised points alone": (nulls.draw_figure_1a, lambda n: nulls.take_figure_1a({}, POINTS))}
