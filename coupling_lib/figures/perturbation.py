r"""Perturbations drawn: noise on an embedding, followed through the network and through its linearisation.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.perturbation.measure_perturbation` made. Level l is the state after block l, 0 the embedding.
What each figure plots is a table of `coupling_lib.figures.perturbation_data`.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from coupling_lib.figures import style
from coupling_lib.figures.axes import log_axis
from coupling_lib.figures.curves import Summary, block_axis, draw_band, legend_under, panel_row, shades
from coupling_lib.figures.perturbation_data import CARRIERS, Datasets, error_table, first_and_last_table, level_table

_DASHES = {"network": {}, "linear": {"dashes": (4, 1.6)}, "random": {"dashes": (1.2, 1.6)}}


def cosine_by_depth(datasets: Datasets) -> Figure:
    """Draws the cosine of perturbed with clean states against depth, one colour per noise level."""
    figure, panels = panel_row(list(datasets), height=2.9, legend=2)
    table = level_table(datasets, "cosine")
    levels = sorted(table.noise.unique())
    for axes, name in zip(panels, datasets, strict=True):
        for noise, ink in zip(levels, shades(len(levels)), strict=True):
            for carrier in ("network", "linear"):
                rows = table[(table.network == name) & (table.noise == noise) & (table.carrier == carrier)]
                label = f"noise {noise:g}" if carrier == "network" else None
                marks = {"marker": "o" if carrier == "network" else "D", "markersize": 4.5}
                marks |= {"markevery": [1, len(rows) - 1], "label": label, "linewidth": 1.4}
                draw_band(axes, rows.level, _summary(rows), ink, 0.16, **marks, **_DASHES[carrier])
        for carrier in ("network", "linear"):
            axes.plot([], [], color=style.colour("text"), label=CARRIERS[carrier], linewidth=1.4, **_DASHES[carrier])
        block_axis(axes, "level $l$: 0 the embedding, $l$ after block $l$")
    panels[0].set_ylabel("cosine with the clean state")
    legend_under(figure, panels[:1], columns=max(3, len(levels)))
    return figure


def first_and_last(datasets: Datasets) -> Figure:
    """Draws the cosine with the clean state against the noise level, after the first and after the last block."""
    figure, panels = panel_row(list(datasets), legend=2)
    table = first_and_last_table(datasets)
    for position, (axes, name) in enumerate(zip(panels, datasets, strict=True)):
        own = style.dataset_colour(name, position)
        for carrier, title in CARRIERS.items():
            ink = style.colour(style.NULL) if carrier == "random" else own
            for block, marker, fill in (("first", "s", "none"), ("last", "o", "full")):
                rows = table[(table.network == name) & (table.block == block) & (table.carrier == carrier)]
                line = {"marker": marker, "markersize": 4, "fillstyle": fill, "linewidth": 1.3, **_DASHES[carrier]}
                draw_band(axes, rows.noise, _summary(rows), ink, 0.13, label=f"{block} block, {title}", **line)
        _noise_axis(axes, rows.noise)
    panels[0].set_ylabel("cosine with the clean state")
    legend_under(figure, panels[-1:], columns=3)
    return figure


def amplification_and_error(datasets: Datasets) -> Figure:
    """Draws how blocks amplify the smallest noise, and where the linearisation stops to hold."""
    table, errors = level_table(datasets, "amplification"), error_table(datasets)
    smallest = table.noise.min()
    titles = [f"Amplification of noise {smallest:g}", "Error of the linearisation, last block"]
    figure, panels = panel_row(titles, share=False, gap=0.6, legend=2)
    left, right = panels
    table = table[table.noise == smallest]
    inks = {name: style.dataset_colour(name, position) for position, name in enumerate(datasets)}
    for carrier, title in CARRIERS.items():
        for name, ink in inks.items():
            rows = table[(table.network == name) & (table.carrier == carrier)]
            line = {"linewidth": 1.5, "label": f"{name}, {title}"} | _DASHES[carrier]
            draw_band(left, rows.level, _summary(rows), ink, 0.13, **line)
    for name, ink in inks.items():
        rows = errors[errors.network == name]
        draw_band(right, rows.noise, _summary(rows), ink, marker="o", markersize=4)
    for axes in panels:
        axes.title.set_fontweight("normal")
        log_axis(axes)
    left.set_ylabel(r"$\Vert\delta^l\Vert\,/\,\Vert\delta^0\Vert$")
    right.set_ylabel("relative error")
    block_axis(left, "level $l$")
    _noise_axis(right, rows.noise)
    legend_under(figure, panels, columns=3)
    return figure


def _noise_axis(axes: Axes, noise: pd.Series) -> None:
    axes.set_xscale("log")
    axes.set_xticks(noise, [f"{level:g}" for level in noise])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("noise, relative to the embedding")


def _summary(rows: pd.DataFrame) -> Summary:
    return Summary(rows["mean"].values, rows.low.values, rows.high.values)
