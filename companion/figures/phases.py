"""Coupling over training beside quantities that may explain its peak and its later rise."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style

_PANELS = {"coupling": r"coupling $1-\tilde m$", "alike": "alike on all prompts", "log_lead": r"mean $\log(s_1/s_2)$"}
"""Quantities, with their labels on a panel."""

_LONG = {
    "coupling": r"coupling $1-\tilde m$", "near": "near and far blocks", "alike": _PANELS["alike"],
    "validation_loss": "validation loss", "rank": "effective rank",
}  # fmt: skip
_DASHED = {"coupling": "shared", "near": "far"}
"""Quantities drawn dashed beside another."""


def take_courses(table: pd.DataFrame) -> pd.DataFrame:
    """Select the curves of every model over training, without step 0."""
    return table.loc[table["step"] > 0, ["model", "step", *_PANELS]]


def draw_courses(courses: pd.DataFrame) -> Figure:
    """Draw each quantity over training, a thin line per seed and their mean, and the embedded model beside them."""
    figure, row = parts.panels(list(_PANELS.values()), 3.4, plain=True)
    own = courses[courses["model"].str.startswith("seed")]
    for axes, quantity in zip(row, _PANELS, strict=True):
        lines = own.pivot(index="step", columns="model", values=quantity)
        axes.plot(lines.index, lines, color=style.colour(style.TRAINED), linewidth=0.8, alpha=0.4)
        properties = {"color": style.colour(style.TRAINED), "linewidth": 2, "marker": "o", "markersize": 3.5}
        axes.plot(lines.index, lines.mean(axis=1), label=f"mean of {lines.shape[1]} seeds, width 48", **properties)
        for at, (name, part) in enumerate(courses.drop(own.index).groupby("model")):
            properties = {"color": style.dataset_colour(name, at), "linestyle": "--", "marker": "s", "markersize": 3.5}
            axes.plot(part["step"], part[quantity], label=name, **properties)
        axes.set_xscale("log")
        axes.set_xlabel("training step")
        parts.from_zero(axes)
    parts.legend_under(figure, row)
    return figure


def take_long(table: pd.DataFrame) -> pd.DataFrame:
    """Select the curves of models with long training, without step 0."""
    table = table.assign(random_bases=1 - table["normalized_miscoupling_k10_null"])
    return table.loc[table["step"] > 0, ["model", "tokens", *_LONG, *_DASHED.values(), "random_bases"]]


def draw_long(courses: pd.DataFrame) -> Figure:
    """Draw coupling, its traceless part, that of near and far blocks, and other changes, against training tokens."""
    figure, grid = parts.grid(2, 3, 4.9)
    grid[-1, -1].remove()
    for axes, (quantity, title) in zip(grid.flat, _LONG.items(), strict=False):
        for at, (name, part) in enumerate(courses.groupby("model", sort=False)):
            ink = style.dataset_colour(name, at)
            axes.plot(part["tokens"], part[quantity], color=ink, marker=style.marker(at), markersize=3.5, label=name)
            if dashed := _DASHED.get(quantity):
                axes.plot(part["tokens"], part[dashed], color=ink, linestyle="--", linewidth=1.2)
        axes.set_title(title, fontweight="normal")
        axes.set_xscale("log")
        axes.set_xlabel("training tokens")
        if quantity in _DASHED:
            axes.axhline(courses["random_bases"].mean(), **parts.null_style("by chance"))
        if quantity != "validation_loss":
            parts.from_zero(axes)
    grid[0, 0].plot(
        [], [], color=style.colour("text"), linestyle="--", linewidth=1.2, label="traceless part; far blocks"
    )
    parts.legend_under(figure, grid[0, :1])
    return figure
