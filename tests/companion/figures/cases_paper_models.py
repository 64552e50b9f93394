"""Made-up models of the paper, with sizes, scores, and couplings measured or not."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.figures import paper_models
from tests.companion.figures.cases_generalization import make_points, make_suite


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
"""Each figure: what draws it, and what makes its data from a number, here that of the models measured."""
