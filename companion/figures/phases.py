"""Why coupling peaks: coupling, what blocks do alike on all prompts, and one direction's lead, over training."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style

_PANELS = {
    "coupling": r"coupling $1-\tilde m$",
    "alike": "alike on all prompts",
    "log_lead": r"mean $\log(s_1/s_2)$",
}
"""Quantities, and how a panel says them."""


def take_courses(table: pd.DataFrame) -> pd.DataFrame:
    """Select the course of every model, step 0 left out."""
    return table.loc[table["step"] > 0, ["model", "step", *_PANELS]]


def draw_courses(courses: pd.DataFrame) -> Figure:
    """Draw each quantity over training, a thin line a seed and their mean, and the embedded model beside them."""
    figure, row = parts.panels(list(_PANELS.values()), 3.4, plain=True)
    own = courses[courses["model"].str.startswith("seed")]
    for axes, quantity in zip(row, _PANELS, strict=True):
        lines = own.pivot(index="step", columns="model", values=quantity)
        axes.plot(lines.index, lines, color=style.colour(style.TRAINED), linewidth=0.8, alpha=0.4)
        look = {"color": style.colour(style.TRAINED), "linewidth": 2, "marker": "o", "markersize": 3.5}
        axes.plot(lines.index, lines.mean(axis=1), label=f"mean of {lines.shape[1]} seeds, width 48", **look)
        for at, (name, part) in enumerate(courses.drop(own.index).groupby("model")):
            look = {"color": style.dataset_colour(name, at), "linestyle": "--", "marker": "s", "markersize": 3.5}
            axes.plot(part["step"], part[quantity], label=name, **look)
        axes.set_xscale("log")
        axes.set_xlabel("training step")
        parts.from_zero(axes)
    parts.legend_under(figure, row)
    return figure
