"""What every reading of coupling is with no coupling, drawn; the tables behind it are in `figures.nulls_data`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.curves import Summary, draw_band, legend_under, panel_row, shades
from coupling_lib.figures.depth_data import MISMATCHES, Datasets
from coupling_lib.figures.nulls_data import (
    KINDS,
    REPORTED,
    k_table,
    overview_table,
    surrogate_table,
)
from coupling_lib.metrics.statistics import width_curve

CURVES = ("normalized_miscoupling", "released_norm", "released_trace")
"""Variants whose null is drawn against width; the table under the figure holds all."""

_SYMBOLS = {name: f"${symbol}$" for name, (symbol, _) in MISMATCHES.items()}
_MARKS = {"measured": "o", "permuted": "s", "unpaired": "^"}


def null_curves(curves: xr.Dataset) -> Figure:
    """Draws what variants are with no coupling, against the width, for several decays of the spectrum."""
    rules, decays = [str(rule) for rule in curves["rule"].values], curves["decay"].values
    figure = Figure(figsize=(style.WIDTH, 1.75 * len(rules) + 0.9))
    grid = figure.subplots(len(rules), len(CURVES), sharex=True, sharey="col", squeeze=False)
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.11, right=0.985, top=1 - 0.3 / height, bottom=0.85 / height, wspace=0.28, hspace=0.16)
    widths = curves["width"].values
    for rule, row in zip(rules, grid, strict=True):
        for variant, axes in zip(CURVES, row, strict=True):
            chosen = curves.sel(rule=rule, variant=variant)
            for decay, colour in zip(decays, shades(len(decays)), strict=True):
                at = chosen.sel(decay=decay)
                label = "flat spectrum" if decay == 0 else rf"$\sigma_i \sim i^{{-{decay:g}}}$"
                axes.plot(widths, at["closed_form"], color=colour, linewidth=1.2, label=label)
                axes.errorbar(widths, at["simulated"], at["error"], color=colour, fmt="o", markersize=3.5)
            axes.set_xscale("log", base=2)
            axes.set_xticks(widths, [str(width) for width in widths])
            axes.minorticks_off()
            axes.grid(axis="y")
        written = "$K = 0.1\\,d$" if rule == "0.1 d" else f"$K = {rule}$"
        row[0].set_ylabel(f"{written}\nvalue without coupling", fontsize=9)
    for variant, axes in zip(CURVES, grid[0], strict=True):
        axes.set_title(f"{_SYMBOLS[variant]}  {variant}", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("width $d$")
    legend_under(figure, grid[0][:1])
    return figure


def surrogates(datasets: Datasets, k: int) -> Figure:
    """Draws every variant relative to its null, for a model and its surrogates."""
    table = surrogate_table(datasets, k)
    variants = list(dict.fromkeys(table["variant"]))
    ends = _ends(table)
    figure = Figure(figsize=(style.WIDTH, 0.245 * len(variants) + 1.25))
    height = figure.get_figheight()
    panels = figure.subplots(1, len(datasets), sharey=True, sharex=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.215, right=0.985, top=1 - 0.3 / height, bottom=0.85 / height, wspace=0.06)
    for position, (network, axes) in enumerate(zip(datasets, panels, strict=True)):
        axes.set_xlim(*ends)
        _draw_surrogates(axes, table[table["network"] == network], variants, style.dataset_colour(network, position))
        axes.set_title(network.capitalize(), pad=6)
        axes.set_xlabel(f"coupling relative to random bases  $(K={k})$")
    panels[0].set_yticks(range(len(variants)), variants, fontsize=8)
    panels[0].set_ylim(len(variants) - 0.4, -0.6)
    legend_under(figure, panels)
    return figure


def _ends(table: pd.DataFrame) -> tuple[float, float]:
    """Ends of the scale: all that is normalised fits; the unnormalised mis-coupling may lie beyond."""
    normalised = table[table["variant"] != "miscoupling"]
    values = normalised[["coupling", "low", "high"]].to_numpy()
    low, high = min(0.0, np.nanmin(values)), max(0.0, np.nanmax(values))
    margin = 0.08 * (high - low)
    return low - margin, high + margin


def _draw_surrogates(axes: Axes, table: pd.DataFrame, variants: list[str], ink: str) -> None:
    """One network's variants from top to bottom; the model itself in its colour, surrogates in the null's."""
    axes.axvline(0, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3))
    labels = {
        "measured": f"the model ({table['network'].iloc[0]})",
        "permuted": "coordinates permuted",
        "unpaired": "partners exchanged",
    }
    for offset, kind in zip((0.0, -0.22, 0.22), KINDS, strict=True):
        rows = table[table["kind"] == kind].set_index("variant").loc[variants]
        y = np.arange(len(variants)) + offset
        colour = ink if kind == "measured" else style.colour(style.NULL)
        if np.isfinite(rows["low"]).all():
            axes.hlines(y, rows["low"], rows["high"], color=colour, linewidth=1.4)
        face = colour if kind == "measured" else "none"
        axes.plot(
            rows["coupling"], y, linestyle="none", marker=_MARKS[kind], markersize=4.5 if kind == "measured" else 3.8,
            color=colour, markerfacecolor=face, label=labels[kind],
        )  # fmt: skip
        for at, value in zip(y, rows["coupling"], strict=True):
            if kind == "measured" and not axes.get_xlim()[0] <= value <= axes.get_xlim()[1]:
                edge, side = (0.01, "left") if value < 0 else (0.99, "right")
                written = f"← {value:.2f}" if value < 0 else f"{value:.2f} →"
                place = {"xycoords": axes.get_yaxis_transform(), "ha": side, "va": "center"}
                axes.annotate(written, (edge, at), color=colour, fontsize=8, **place)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)


def across_k(datasets: Datasets) -> Figure:
    """Draws relative coupling against the number of singular vectors, with 95 % intervals over prompts."""
    table = k_table(datasets)
    figure, panels = panel_row([_SYMBOLS.get(name, "") + "  " + name for name in REPORTED], height=2.1)
    for variant, axes in zip(REPORTED, panels, strict=True):
        axes.title.set_fontsize(7.8)
        for position, network in enumerate(datasets):
            rows = table[(table["network"] == network) & (table["variant"] == variant)]
            band = Summary(*(rows[name].to_numpy() for name in ("coupling", "low", "high")))
            colour = style.dataset_colour(network, position)
            draw_band(axes, rows["k"], band, colour, marker="o", markersize=3.5, label=network)
        axes.axhline(0, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label="random bases")
        axes.set_xlabel("$K$")
    panels[0].set_ylabel("coupling relative to random bases")
    legend_under(figure, panels)
    return figure


def against_figure_1a(points: pd.DataFrame, measured: Mapping[str, Datasets]) -> Figure:
    """Draws the coupling of the paper's figure 1a against width, beside the value of no coupling at all."""
    table = overview_table(points, measured)
    figure = Figure(figsize=(style.WIDTH, 3.4))
    axes = figure.add_axes((0.09, 0.145, 0.9, 0.825))
    widths = np.unique(np.geomspace(table["width"].min() * 0.85, table["width"].max() * 1.15, 2000).astype(int))
    axes.plot(
        widths, width_curve(widths), color=style.colour(style.NULL), linewidth=1.2,
        label=r"no coupling, flat spectrum: $1 - 1/\sqrt{\lfloor 0.1\,d\rfloor}$",
    )  # fmt: skip
    shown = table[table["network"] == "digitised"]
    axes.plot(
        shown["width"], shown["coupling"], linestyle="none", marker="x", markersize=5, color=style.colour("text"),
        label="the paper's figure 1a, digitised",
    )  # fmt: skip
    for name, marker in (("trained", "o"), ("untrained", "o"), ("random bases", "_")):
        rows = table[table["network"] == name]
        colour = style.colour(style.NULL if name == "random bases" else name)
        size = 12 if marker == "_" else 6
        label = f"{name}, measured here" if marker == "o" else "random bases with the trained spectra"
        axes.plot(
            rows["width"], rows["coupling"], linestyle="none", marker=marker, markersize=size, color=colour,
            markeredgewidth=1.6, label=label,
        )  # fmt: skip
    for model in measured:
        rows = table[(table["model"] == model) & table["network"].isin(("trained", "untrained"))]
        axes.annotate(
            model, (rows["width"].iloc[0], rows["coupling"].mean()), xytext=(9, -9), textcoords="offset points",
            ha="left", fontsize=8,
        )  # fmt: skip
    axes.set_xscale("log")
    ticks = [w for w in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192) if widths[0] <= w <= widths[-1]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("width $d$")
    axes.set_ylabel(r"coupling $c = 1 - m_\mathrm{trace}$  $(K = 0.1\,d)$")
    axes.grid(axis="y")
    axes.legend(loc="lower right")
    return figure
