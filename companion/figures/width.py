"""Coupling against width, of models that are equally good: by the reading of figure 1a, and normalised at two K."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.tables import width

_HOLLOW = {"marker": "o", "markerfacecolor": "none", "label": r"$K = 0.1\,d$"}
_PANELS = {
    "As figure 1a may show it": {"figure_1a": _HOLLOW},
    "Normalised": {
        "k10": {"marker": "s", "label": "$K = 10$"},
        "ktenth": _HOLLOW,
    },
}
"""Titles, and of each column how it looks and what it is called."""


def take_width(table: pd.DataFrame) -> pd.DataFrame:
    """Select every reading of each model where its loss is the lowest that all models reach."""
    found = {name: width.equally_good(table, reading) for name, reading in width.READINGS.items()}
    one = next(iter(found.values()))
    return one[["model", "width", "loss", "random"]].assign(**{name: own["coupling"] for name, own in found.items()})


def draw_width(models: pd.DataFrame) -> Figure:
    """Draw coupling against width, a panel for each way of reading it, with the curve of no coupling on the left."""
    figure, row = parts.panels([*_PANELS], 3.0, sharex=True, y="coupling at equal loss")
    for axes, shown in zip(row, _PANELS.values(), strict=True):
        for name, look in shown.items():
            parts.points(axes, models["width"], models[name], style.colour(style.TRAINED), **look)
        parts.plain_log(axes, sorted(models["width"].unique()))
        axes.set_xlabel("width $d$")
        axes.margins(0.12)
    curve = models.groupby("width")["random"].first()
    row[0].plot(curve.index, curve, **parts.null_look(r"$1-1/\sqrt{0.1\,d}$: no coupling"))
    parts.legend_under(figure, row)
    return figure
