"""Width at fixed quality, `data/width.csv`: whether coupling follows width among models that are equally good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from companion.tables import quality
from coupling_lib import paths
from coupling_lib.metrics.statistics import correlation_over, width_curve

FIGURE_1A = "released_trace_ktenth"
"""The reading that the paper's figure 1a may show: its number of vectors grows with the width."""


def width() -> pd.DataFrame:
    """Read the table of the experiment."""
    return quality.quality(paths.DATA / "width.csv")


def equally_good(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """Take every model where its validation loss is the lowest that all of them reach, with its width."""
    found = quality.at_equal_loss(table.assign(coupling=1 - table[reading]), by="validation_loss")
    widths = table.groupby("model")["width"].first()
    return found.assign(width=found["model"].map(widths), random=lambda rows: width_curve(rows["width"]))


def estimates(table: pd.DataFrame, experiment: Mapping[str, Any]) -> pd.DataFrame:
    """Estimate what every question asks: a line each."""
    rows = []
    for question in experiment["question"]:
        found = equally_good(table, question["reading"])
        beside = found["random"] if question["reading"] == FIGURE_1A else np.log(found["width"])
        effect = correlation_over(found["coupling"], beside)
        rows.append({"question": question["name"], "reading": question["reading"], "label": "", **effect._asdict()})
    return pd.DataFrame(rows)
