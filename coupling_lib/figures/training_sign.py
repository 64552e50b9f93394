"""Coupling and score across models, at different moments of training: the sign of their correlation, and its shape."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.curves import legend_under, panel_row, shades


def along_training(signs: pd.DataFrame, table: pd.DataFrame, coupling: str, label: str) -> Figure:
    """Draws the correlation at each step, and coupling against the loss over all checkpoints."""
    figure, (left, right) = panel_row(
        ["The same models, at four moments", "All checkpoints"], height=2.7, share=False, gap=0.7
    )
    ink = style.colour(style.TRAINED)
    left.axhline(0, color=style.colour("mask"), linewidth=1)
    left.vlines(signs["step"], signs["low"], signs["high"], color=ink, linewidth=1.6)
    left.plot(signs["step"], signs["r"], marker="o", color=ink, linewidth=1)
    for row in signs.itertuples():
        left.annotate(f"${row.r:+.2f}$", (row.step, row.r), xytext=(6, 4), textcoords="offset points", fontsize=8.5)
    left.set_xscale("log")
    left.set_xticks(signs["step"], [str(step) for step in signs["step"]])
    left.minorticks_off()
    left.set_xlim(signs["step"].min() / 1.5, signs["step"].max() * 2)
    left.set_ylim(-1.05, 1.05)
    left.set_xlabel("training step")
    left.set_ylabel("$r$ of coupling and minus loss")
    moments = {
        "untrained": table["step"] == 0, "to step 100": table["step"].between(1, 100), "later": table["step"] > 100,
    }  # fmt: skip
    for (name, chosen), colour in zip(moments.items(), shades(len(moments)), strict=True):
        part = table[chosen]
        right.plot(
            part["validation_loss"],
            part[coupling],
            linestyle="none",
            marker="o",
            markersize=3.5,
            color=colour,
            label=name,
        )
    ends = np.linspace(table["validation_loss"].min(), table["validation_loss"].max(), 100)
    for degree, name, look in ((1, "line", (1, 2)), (2, "parabola", (5, 2))):
        curve = np.polyval(np.polyfit(table["validation_loss"], table[coupling], degree), ends)
        right.plot(ends, curve, color=style.colour("text"), linewidth=1.2, dashes=look, label=name)
    right.invert_xaxis()
    right.set_xlabel("validation loss (better to the right)")
    right.set_ylabel(label)
    legend_under(figure, [right])
    return figure


def sign_table(signs: pd.DataFrame, table: pd.DataFrame, coupling: str) -> pd.DataFrame:
    """Tabulates what `along_training` draws."""
    points = table[["model", "step", "tokens", "validation_loss", coupling]]
    return pd.concat([signs.assign(panel="left"), points.assign(panel="right")], ignore_index=True)
