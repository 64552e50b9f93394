"""Coupling against width, of models with equal loss: figure 1a's raw values, and all variants beyond chance."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.tables import width

_PANELS = {
    "As figure 1a may show it": {
        "figure_1a": {"marker": "o", "label": "at equal loss"},
        "untrained": {"marker": "x", "label": "untrained"},
    },
    "Share of the way from chance": {
        "k10": {"marker": "s", "label": "$K = 10$"},
        "ktenth": {"marker": "o", "markerfacecolor": "none", "label": r"$K = 0.1\,d$"},
    },
}
"""Titles, and the style and label of each column."""


def take_width(table: pd.DataFrame) -> pd.DataFrame:
    """Select each model's coupling at the lowest loss that all reach: figure 1a's raw, the others beyond chance."""
    found = {name: width.beyond_chance(table, reading) for name, reading in width.READINGS.items()}
    one = width.equally_good(table, width.FIGURE_1A)
    before = 1 - table[table["step"] == 0].set_index("model")[width.FIGURE_1A]
    others = {name: own["coupling"] for name, own in found.items() if name != "figure_1a"}
    known = one[["model", "width", "loss", "random"]]
    return known.assign(figure_1a=one["coupling"], untrained=known["model"].map(before), **others)


def draw_width(models: pd.DataFrame) -> Figure:
    """Draw coupling against width, a panel for each variant, with the curve of width on the left."""
    figure, row = parts.panels([*_PANELS], 3.0, sharex=True, y="coupling")
    for axes, shown in zip(row, _PANELS.values(), strict=True):
        for name, properties in shown.items():
            ink = style.colour(style.UNTRAINED if name == style.UNTRAINED else style.TRAINED)
            parts.points(axes, models["width"], models[name], ink, **properties)
        parts.plain_log(axes, sorted(models["width"].unique()))
        axes.set_xlabel("width $d$")
        axes.margins(0.12)
    curve = models.groupby("width")["random"].first()
    row[0].plot(curve.index, curve, **parts.null_style(r"$1-1/\sqrt{K}$: curve of width"))
    row[1].axhline(0, color=style.colour("faint"), linewidth=1, zorder=0)
    parts.legend_under(figure, row)
    return figure
