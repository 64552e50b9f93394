"""Rival predictors of quality beside coupling: each alone, and what coupling adds to it."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.tables import effects, rivals

_SHOWN = {
    "each alone": ("the rival alone", style.TRAINED, "o", -0.14),
    "coupling beside each": ("coupling, the rival held fixed", style.SHARED, "D", 0.14),
}
"""Questions: label, role that sets the colour, marker, and position in a row."""
_TITLES = {rivals.SUITE: "Suite of language models", rivals.PHOTOGRAPHS: "Vision transformers"}


def take_signs(table: pd.DataFrame) -> pd.DataFrame:
    """Select both correlations of every rival and set."""
    found = effects.tabulated(rivals.answers(table))
    found = found[found["question"].isin(list(_SHOWN))]
    names = found["label"].str.split(", ", n=1, expand=True).set_axis(["set", "rival"], axis=1)
    return pd.concat([names, found[["question", "value", "low", "high", "n"]]], axis=1).reset_index(drop=True)


def draw_signs(signs: pd.DataFrame) -> Figure:
    """Draw correlations with the score, a row per rival, a panel per set."""
    names, sets = list(signs["rival"].unique()), list(signs["set"].unique())
    figure, row = parts.panels([_TITLES[name] for name in sets], 0.4 * len(names) + 1.2, named=True, sharey=True)
    for axes, name in zip(row, sets, strict=True):
        for question, (label, role, marker, shift) in _SHOWN.items():
            own = signs[(signs["set"] == name) & (signs["question"] == question)].set_index("rival").reindex(names)
            properties = {"ink": style.colour(role), "marker": marker, "markersize": 5, "label": label}
            parts.dots(axes, np.arange(len(names)) + shift, own.value, (own.low, own.high), **properties)
        axes.axvline(0, color=style.colour("text"), linewidth=0.8)
        axes.set(xlim=(-1.05, 1.05), xlabel="correlation $r$ with the score")
        parts.rows_axis(axes, names)
    parts.legend_under(figure, row[:1])
    return figure
