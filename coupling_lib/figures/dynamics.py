r"""Linear dynamics drawn: what products of $I + J_l$ carry, what they leave out, and growth along shared directions.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.dynamics.measure_dynamics` made. Level l is the state $x^l$, 0 the embedding; blocks count
from 1. What each figure plots is a table of `coupling_lib.figures.dynamics_data`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.axes import log_axis
from coupling_lib.figures.curves import Summary, block_axis, draw_band, legend_under, panel_row
from coupling_lib.figures.dynamics_data import (
    GROWTH,
    Datasets,
    carried_table,
    growth_table,
    left_right_table,
    reading_table,
    remainder_table,
)

_LINES = {"singular": (5, 1.5), "along": (1.2, 1.2), "response": (), "state": (6, 1.5, 1, 1.5), "null": (4, 3)}


def carried_states(datasets: Datasets, quantity: str = "cosine") -> Figure:
    """Draws how well products of I + J_l give the states that the network reaches."""
    titles = {"from embedding": "From the embedding to level $l$", "to last": "From level $l$ to the last"}
    figure, panels = panel_row(list(titles.values()))
    table = carried_table(datasets)
    table = table[table.quantity == quantity]
    for axes, route in zip(panels, titles, strict=True):
        axes.title.set_fontweight("normal")
        for position, name in enumerate(datasets):
            rows, ink = table[(table.network == name) & (table.route == route)], style.dataset_colour(name, position)
            draw_band(axes, rows.level, _summary(rows), ink, marker="o", markersize=3, label=name)
        block_axis(axes, "level $l$")
    for position, name in enumerate(datasets):
        rows = table[(table.network == name) & (table.route == "random bases")]
        line = {"linewidth": 1.2, "dashes": (4, 3), "label": f"{name}, random bases"}
        draw_band(panels[0], rows.level, _summary(rows), _faded(style.dataset_colour(name, position)), 0.12, **line)
    if quantity == "cosine":
        panels[0].set_ylim(top=1.05)
        panels[0].set_ylabel("cosine with the true state")
    else:
        log_axis(panels[0])
        panels[0].set_ylabel("length relative to the true state")
    legend_under(figure, panels)
    return figure


def readings(datasets: Datasets) -> Figure:
    """Draws how each reading of the linearised network agrees with the last state: direction left, length right."""
    table = reading_table(datasets)
    names = list(dict.fromkeys(table.reading))
    figure, panels = panel_row(
        ["Cosine with the last state", "Length relative to it"], height=1.9, share=False, gap=0.3
    )
    # Names of readings stand where other figures have the numbers of an axis.
    for axes, quantity, left in zip(panels, ("cosine", "norm ratio"), (0.23, 0.63), strict=True):
        place = axes.get_position()
        axes.set_position((left, place.y0, 0.36, place.height))
        axes.title.set_fontweight("normal")
        for position, name in enumerate(datasets):
            rows = table[(table.network == name) & (table.quantity == quantity)]
            height = np.arange(len(names)) + 0.22 * (position - (len(datasets) - 1) / 2)
            ink = style.dataset_colour(name, position)
            axes.plot(rows["mean"], height, "o", color=ink, markersize=4.5, label=name)
            axes.hlines(height, rows.low, rows.high, color=ink, linewidth=1.6)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x")
        axes.axvline(1, color=style.colour("text"), linewidth=0.8)
    panels[1].set_xscale("log")
    legend_under(figure, panels)
    return figure


def remainders(datasets: Datasets) -> Figure:
    """Draws how little of each block is linear in its input, and where the last state comes from."""
    titles = {
        "linear part": r"$\Vert J_l\,x^{l-1}\Vert\,/\,\Vert f^l(x^{l-1})\Vert$",
        "share of last state": "Share of the last state",
    }
    figure, panels = panel_row(list(titles.values()), share=False, gap=0.6)
    table = remainder_table(datasets)
    for axes, quantity in zip(panels, titles, strict=True):
        axes.title.set_fontweight("normal")
        for position, name in enumerate(datasets):
            rows = table[(table.network == name) & (table.quantity == quantity)]
            ink = style.dataset_colour(name, position)
            draw_band(axes, rows.level, _summary(rows), ink, marker="o", markersize=3, label=name)
    panels[0].axhline(1, color=style.colour("text"), linewidth=0.9)
    panels[0].set_yscale("log")
    block_axis(panels[0])
    panels[1].axhline(0, color=style.colour("text"), linewidth=0.7)
    block_axis(panels[1], "level: 0 the embedding, $l$ the remainder of block $l$")
    legend_under(figure, panels)
    return figure


def growth(datasets: Datasets, direction: int = 1) -> Figure:
    """Draws growth along a shared direction, measured and predicted."""
    figure, panels = panel_row(list(datasets), height=2.8, legend=3)
    table = growth_table(datasets)
    table = table[table.direction == direction]
    for position, (axes, name) in enumerate(zip(panels, datasets, strict=True)):
        for kind, label in GROWTH.items():
            rows = table[(table.network == name) & (table.kind == kind)]
            ink = style.colour(style.NULL) if kind == "null" else style.dataset_colour(name, position)
            band = Summary(*(np.exp(rows[column].values) for column in ("median", "low", "high")))
            line = {"dashes": _LINES[kind]} if _LINES[kind] else {}
            draw_band(axes, rows.level, band, ink, 0.13, linewidth=1.5, label=label, **line)
        axes.set_yscale("log")
        block_axis(axes, "level $l$")
    panels[0].set_ylabel(f"growth along direction {direction}")
    legend_under(figure, panels[-1:], columns=2)
    return figure


def growth_of_directions(datasets: Datasets) -> Figure:
    """Draws, for every shared direction, its growth in the linearised network against the two predictions."""
    titles = {"singular": r"Predicted from singular values", "along": r"Predicted along the direction"}
    figure, panels = panel_row(list(titles.values()), share=False, gap=0.5)
    table = growth_table(datasets)
    last = table.level.max()
    factors = np.exp(
        table[table.level == last].set_index(["network", "kind", "direction"])["median"] / last
    ).sort_index()
    for axes, kind in zip(panels, titles, strict=True):
        axes.title.set_fontweight("normal")
        for position, name in enumerate(datasets):
            ink = style.dataset_colour(name, position)
            axes.plot(factors[name, kind], factors[name, "response"], "o", color=ink, markersize=4, label=name)
        both = factors[factors.index.isin([kind, "response"], level="kind")]
        ends = [both.min() - 0.02, both.max() + 0.02]
        axes.plot(ends, ends, color=style.colour("text"), linewidth=0.9, label="prediction is right")
        axes.set_xlabel("predicted growth per block")
    panels[0].set_ylabel("growth per block")
    legend_under(figure, panels)
    return figure


def left_and_right(datasets: Datasets) -> Figure:
    """Draws the cosine of every left singular vector with its right one, with its sign."""
    figure, panels = panel_row(list(datasets))
    table = left_right_table(datasets)
    for position, (axes, (name, dataset)) in enumerate(zip(panels, datasets.items(), strict=True)):
        rows, ink = table[table.network == name], style.dataset_colour(name, position)
        axes.plot(rows.block, rows.cosine, "o", color=ink, markersize=3.2, alpha=0.55, label="one rank")
        mean = rows.groupby("block").cosine.mean()
        axes.plot(mean.index, mean, color=ink, label="mean over ranks")
        spread = int(dataset.attrs["width"]) ** -0.5
        null = {"color": style.colour(style.NULL), "alpha": 0.2, "linewidth": 0}
        axes.axhspan(-spread, spread, label="random bases: two thirds of pairs", **null)
        axes.axhline(0, color=style.colour("text"), linewidth=0.7)
        block_axis(axes)
    panels[0].set_ylabel(r"$u_i^\top v_i$", labelpad=0)  # values near 0 have long tick labels
    legend_under(figure, panels[-1:])
    return figure


def _faded(ink: str) -> tuple[str, float]:
    return ink, 0.75


def _summary(rows: pd.DataFrame) -> Summary:
    return Summary(rows["mean"].values, rows.low.values, rows.high.values)
