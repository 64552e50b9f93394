r"""Spectra drawn: singular values against depth, the whole spectrum of a block, and agreement of left and right.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.spectra.measure_spectra` made. Blocks count from 1. What each figure plots is a table of
`coupling_lib.figures.spectra_data`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.axes import log_axis
from coupling_lib.figures.curves import (
    Summary,
    block_axis,
    draw_band,
    legend_under,
    mean_interval,
    panel_row,
    shades,
)
from coupling_lib.figures.spectra_data import Datasets, alignment_table, inverse_table, top_table, whole_table

FIRST = 10
"""How many of the largest singular values are drawn in a network's own colour, as in the paper's figures."""


def top_values(datasets: Datasets) -> Figure:
    """Draws the largest singular values of every block against depth (the paper's figures 33 and 34, right)."""
    figure, panels = panel_row(list(datasets), height=3.0)
    table = top_table(datasets)
    last = table["rank"].max()
    own = [style.dataset_colour(name, position) for position, name in enumerate(datasets)]
    other = next(ink for ink in (style.dataset_colour("other", i) for i in range(len(own) + 1)) if ink not in own)
    for axes, name, ink in zip(panels, datasets, own, strict=True):
        labels = {1: f"{name}, ranks 1 to {min(FIRST, last)}"}
        if axes is panels[-1]:
            labels[FIRST + 1] = f"ranks {FIRST + 1} to {last}"
        for rank, rows in table[table.network == name].groupby("rank"):
            band = _summary(rows, "median")
            draw_band(
                axes, rows.block, band, other if rank > FIRST else ink, 0.12, linewidth=1.1, label=labels.get(rank)
            )
        block_axis(axes)
    log_axis(panels[0])
    panels[0].set_ylabel(r"singular value $\sigma_i(J_l)$")
    legend_under(figure, panels)
    return figure


def inverse_top_value(datasets: Datasets, fits: Datasets) -> Figure:
    r"""Draws $1/\sigma_1$ against depth with its least-squares line (the paper's figures 33 and 34, left)."""
    narrow = len(datasets) > 2
    figure, panels = panel_row(list(datasets), above=0.34 if narrow else 0.18)
    table = inverse_table(datasets, fits)
    for position, (axes, name) in enumerate(zip(panels, datasets, strict=True)):
        rows, ink = table[table.network == name], style.dataset_colour(name, position)
        axes.plot(rows.block, rows["mean"], "o", markersize=4, color=ink, label=f"{name}, mean over prompts")
        axes.vlines(rows.block, rows.low, rows.high, color=ink, linewidth=1.2)
        axes.plot(rows.block, rows.line, color=style.colour("text"), linewidth=1.3, label="least-squares line")
        axes.text(
            0.5,
            1.03,
            _fit_text(fits[name], "\n" if narrow else " "),
            transform=axes.transAxes,
            ha="center",
            fontsize=8.5,
        )
        block_axis(axes)
    panels[0].set_ylabel(r"$1\,/\,\sigma_1(J_l)$")
    panels[0].set_ylim(bottom=0)
    legend_under(figure, panels)
    return figure


def whole_spectrum(datasets: Datasets) -> Figure:
    """Draws all singular values of a few blocks, both axes logarithmic: a power law is a straight line."""
    figure, panels = panel_row(list(datasets), height=3.0, legend=0)
    table = whole_table(datasets)
    for axes, (name, dataset) in zip(panels, datasets.items(), strict=True):
        blocks = dataset["whole"].values
        exponents = dataset["decay_exponent"].mean("prompt").values
        for block, exponent, ink in zip(blocks, exponents, shades(len(blocks)), strict=True):
            rows = table[(table.network == name) & (table.block == block + 1)]
            draw_band(
                axes, rows["rank"], _summary(rows, "median"), ink, label=f"block {block + 1}  ($a={exponent:.2f}$)"
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rank $i$")
        axes.legend(loc="lower left")
    panels[0].set_ylim(0.5 * table["median"].quantile(0.02), 1.6 * table.high.max())
    panels[0].set_ylabel(r"singular value $\sigma_i(J_l)$")
    return figure


def left_and_right(datasets: Datasets, nulls: Datasets) -> Figure:
    """Draws stable rank and agreement of left with right singular vectors against depth."""
    count = next(iter(datasets.values())).sizes["rank"]
    titles = {
        "stable rank": "Stable rank",
        "alignment": rf"Mean $|u_i^\top v_i|$, $i \leq {count}$",
        "exchanged coupling": rf"$1-\tilde m$ of $V^\top J\,U$, $K={count}$",
    }
    figure, panels = panel_row(list(titles.values()), share=False, gap=0.45)
    table = alignment_table(datasets, nulls)
    for axes, quantity in zip(panels, titles, strict=True):
        axes.title.set_fontweight("normal")
        for position, name in enumerate(datasets):
            rows = table[(table.network == name) & (table.quantity == quantity)]
            ink = style.dataset_colour(name, position)
            draw_band(axes, rows.block, _summary(rows, "mean"), ink, marker="o", markersize=3, label=name)
        ink = style.colour(style.NULL)
        axes.plot(rows.block, rows.null, color=ink, linewidth=1.2, dashes=(4, 3), label="random bases")
        axes.fill_between(
            rows.block, rows.null - rows.null_error, rows.null + rows.null_error, color=ink, alpha=0.25, linewidth=0
        )
        axes.set_ylim(bottom=0)
        block_axis(axes)
    legend_under(figure, panels)
    return figure


def _fit_text(fit: xr.Dataset, separator: str) -> str:
    r_squared = mean_interval(fit["r_squared"].values)
    interval = "" if np.isnan(r_squared.low) else f"  [{r_squared.low:.2f}, {r_squared.high:.2f}]"
    slope = float(fit["slope"].mean())
    start = f"from block {fit.attrs['first_block'] + 1}: slope {slope:.3f},"
    return f"{start}{separator}$R^2={r_squared.middle:.2f}${interval}"


def _summary(rows: pd.DataFrame, middle: str) -> Summary:
    return Summary(rows[middle].values, rows.low.values, rows.high.values)
