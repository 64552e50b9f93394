"""What encouraging coupling changes, one line per seed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.curves import legend_under, panel_row

_PANELS = {
    "coupling": (r"coupling $1-\tilde m$", 1, "+.2f"),
    "validation_loss": ("validation loss (nats per token)", 1, "+.3f"),
    "accuracy": ("accuracy on held-out tokens (%)", 100, "+.2f"),
}
"""By column: label, factor and the form of a difference."""


def pairs(table: pd.DataFrame, differences: pd.DataFrame) -> Figure:
    """Draws coupling, validation loss and accuracy against the strength of the regulariser."""
    figure, panels = panel_row([""] * len(_PANELS), height=2.9, share=False, gap=0.62)
    strengths = sorted(table["strength"].unique())
    ink, mean_ink = style.colour("text"), style.colour(style.TRAINED)
    for axes, (column, (label, factor, form)) in zip(panels, _PANELS.items(), strict=True):
        values = table.pivot(index="strength", columns="seed", values=column).loc[strengths] * factor
        at = np.arange(len(strengths))
        for number, (_, line) in enumerate(values.items()):
            name = "one seed" if number == 0 else None
            axes.plot(at, line, color=ink, linewidth=0.8, alpha=0.4, marker="o", markersize=3, label=name)
        axes.plot(at, values.mean(axis=1), color=mean_ink, linewidth=2, marker="o", markersize=5, label="mean")
        if column == "coupling":
            chance = float(table["null"].mean())
            axes.axhline(chance, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label="random bases")
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, top + 0.3 * (top - bottom))
        for row in differences[differences["column"] == column].itertuples():
            mean, low, high = (
                format(factor * v, form).replace("-", "\u2212") for v in (row.difference, row.low, row.high)
            )
            text = f"{mean}\n[{low},\n{high}]"
            place = (strengths.index(row.strength), 0.98)
            axes.text(*place, text, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=7.5)
        axes.set_xticks(at, [f"{strength:g}" for strength in strengths])
        axes.set_xlim(-0.3, len(strengths) - 0.5)
        axes.set_xlabel("strength of the regulariser")
        axes.set_ylabel(label)
        axes.grid(axis="y")
    legend_under(figure, panels)
    return figure


def records(differences: pd.DataFrame) -> dict[str, float]:
    """Give the differences under the names by which the book quotes them."""
    found: dict[str, float] = {"regularised-pairs": int(differences["pairs"].min())}
    for row in differences.itertuples():
        stem = f"regularised-{row.column.removeprefix('validation_')}-{row.strength:g}"
        found |= {stem: row.difference, f"{stem}-low": row.low, f"{stem}-high": row.high}
    return found
