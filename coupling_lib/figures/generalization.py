"""Coupling against how good a model is: the paper's figure, the suite of this project, the leaderboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coupling_lib.figures import style
from coupling_lib.figures.curves import legend_under, panel_row, shades
from coupling_lib.measures.figure_1a import cleared
from coupling_lib.metrics.regression import FITS, r_squared
from coupling_lib.metrics.statistics import width_curve

TASKS = ("ARC", "HellaSwag", "MMLU", "TruthfulQA", "Winogrande", "GSM8K")
_K_LABELS = {"5": "$K = 5$", "10": "$K = 10$", "tenth": "$K = 0.1\\,d$"}


def paper_scatter(points: pd.DataFrame) -> Figure:
    """Draws the paper's figure 1a from its digitised values, beside what width alone gives, and beyond width."""
    figure = Figure(figsize=(style.WIDTH, 4.15))
    panels = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.08, right=0.985, top=0.93, bottom=0.255, wspace=0.34)
    panels[1].sharey(panels[0])
    score, log_width = points["score"].to_numpy(), np.log(points["width"])
    values = {
        "As plotted": ("coupling $c$ of figure 1a", points["coupling"].to_numpy(), score),
        "Width alone": (r"$1 - 1/\sqrt{\lfloor 0.1\,d\rfloor}$", width_curve(points["width"]), score),
        "Beyond width": (
            r"$c$, cleared of $\log d$", cleared(points["coupling"], log_width), cleared(score, log_width)
        ),
    }  # fmt: skip
    for axes, (title, (label, x, y)) in zip(panels, values.items(), strict=True):
        axes.set_title(title, pad=6)
        axes.grid(axis="y")
        _draw_families(axes, points.assign(x=x, y=y), "x", "y")
        _draw_line(axes, x, y)
        axes.set_xlabel(label)
        r = np.corrcoef(x, y)[0, 1]
        text = f"$r = {r:.2f}$" if title == "Beyond width" else f"$R^2 = {r**2:.2f}$"
        axes.annotate(text, (0.04, 0.96), xycoords="axes fraction", va="top", fontsize=9)
        axes.margins(y=0.12)
    panels[0].set_ylabel("mean of six benchmarks (%)")
    panels[2].locator_params(axis="x", nbins=4)
    panels[2].set_ylabel(r"the same, cleared of $\log d$")
    _family_legend(figure, points["family"], rows=2)
    return figure


def suite_scatter(
    table: pd.DataFrame, coupling: str, scores: Mapping[str, str], label: str, marked: str = ""
) -> Figure:
    """Draws scores of the suite's models against coupling; earlier checkpoints faint, joined along training."""
    figure, panels = panel_row(list(scores), height=3.0, share=False, gap=0.62)
    widths = sorted(table["width"].unique())
    colours = dict(zip(widths, shades(len(widths)), strict=True))
    for axes, (name, column) in zip(panels, scores.items(), strict=True):
        for _, part in table.groupby("model"):
            part = part.sort_values("step")
            first = part.iloc[0]
            colour, marker = colours[first["width"]], "o" if first["architecture"] == "neox" else "s"
            axes.plot(part[coupling], part[column], color=colour, linewidth=0.6, alpha=0.35)
            for row in part.itertuples():
                face = colour if row.final else "none"
                axes.plot(
                    getattr(row, coupling), getattr(row, column), marker=marker, color=colour, markerfacecolor=face,
                    markersize=5 if row.final else 2.6, alpha=1.0 if row.final else 0.5, linestyle="none",
                )  # fmt: skip
        last = table[table["final"]]
        _draw_line(axes, last[coupling].to_numpy(), last[column].to_numpy())
        r = np.corrcoef(last[coupling], last[column])[0, 1]
        axes.annotate(
            f"last checkpoints: $r = {r:.2f}$", (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=8.5
        )
        axes.set_xlabel(label)
        axes.set_ylabel(name)
        axes.set_title("")
        for row in last[last["model"] == marked].itertuples():
            place = {"xytext": (6, 5), "textcoords": "offset points", "fontsize": 8.5, "fontweight": "bold"}
            axes.annotate(marked, (getattr(row, coupling), getattr(row, column)), **place)
    for width in widths:
        panels[0].plot([], [], marker="o", linestyle="none", color=colours[width], label=f"width {width}")
    for marker, name in (("o", "GPT-NeoX"), ("s", "Llama")):
        panels[0].plot([], [], marker=marker, linestyle="none", color=style.colour("text"), label=name)
    legend_under(figure, panels)
    return figure


def variants(table: pd.DataFrame) -> Figure:
    """Draws the correlation of every reading with the score, at every K, as measured and relative to its null."""
    names = list(dict.fromkeys(table["variant"]))
    figure = Figure(figsize=(style.WIDTH, 0.25 * len(names) + 1.25))
    height = figure.get_figheight()
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    figure.subplots_adjust(left=0.215, right=0.985, top=1 - 0.3 / height, bottom=0.85 / height, wspace=0.06)
    colours = dict(zip(_K_LABELS, shades(len(_K_LABELS)), strict=True))
    columns = {"As measured": "r", "Relative to its null": "r_relative"}
    for axes, (title, column) in zip(panels, columns.items(), strict=True):
        axes.axvline(0, color=style.colour("mask"), linewidth=1)
        for offset, (k, label) in zip((-0.2, 0.0, 0.2), _K_LABELS.items(), strict=True):
            rows = table[table["k"] == k].set_index("variant").reindex(names)
            y = np.arange(len(names)) + offset
            sure = (rows["p_holm"] < 0.05).to_numpy() if column == "r" else np.ones(len(names), dtype=bool)
            for chosen, face in ((sure, colours[k]), (~sure, "none")):
                axes.plot(
                    rows[column].to_numpy()[chosen], y[chosen], linestyle="none", marker="o", markersize=4.5,
                    color=colours[k], markerfacecolor=face,
                )  # fmt: skip
            axes.plot([], [], linestyle="none", marker="o", markersize=4.5, color=colours[k], label=label)
        axes.set_title(title, pad=6)
        axes.set_xlabel("correlation $r$ of coupling and score")
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(-1.05, 1.05)
    mark = {"linestyle": "none", "marker": "o", "markersize": 4.5, "markerfacecolor": "none"}
    panels[0].plot([], [], color=style.colour("text"), label="left: $p \\geq 0.05$ after correction", **mark)
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    legend_under(figure, panels)
    return figure


def rivals(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws what coupling and its rivals explain of the score, alone and given all the others."""
    names = list(dict.fromkeys(name for table in tables.values() for name in table["predictor"]))
    figure = Figure(figsize=(style.WIDTH, 0.36 * len(names) + 1.3))
    height = figure.get_figheight()
    left, right = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.165, right=0.985, top=1 - 0.3 / height, bottom=0.85 / height, wspace=0.07)
    for position, (label, table) in enumerate(tables.items()):
        rows = table.set_index("predictor").reindex(names)
        y = np.arange(len(names)) + 0.24 * (position - (len(tables) - 1) / 2)
        colour = style.dataset_colour(label, position)
        left.hlines(y, rows["low"], rows["high"], color=colour, linewidth=1.4)
        left.plot(rows["r_squared"], y, linestyle="none", marker="o", color=colour, label=label)
        right.plot(rows["partial"], y, linestyle="none", marker="o", color=colour)
    left.set_xlim(-0.02, 1.02)
    left.set_xlabel("$R^2$ alone, with 95 % bootstrap interval")
    right.set_xlim(-1.05, 1.05)
    right.axvline(0, color=style.colour("mask"), linewidth=1)
    right.set_xlabel("partial correlation given all others")
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    for axes in (left, right):
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
    legend_under(figure, [left])
    return figure


def sizes(table: pd.DataFrame, coupling: str, score: str, labels: tuple[str, str]) -> Figure:
    """Draws coupling and score against parameters, depth, width and training tokens."""
    columns = {"parameters": "parameters", "blocks": "blocks", "width": "width", "training tokens": "tokens"}
    figure = Figure(figsize=(style.WIDTH, 4.3))
    grid = figure.subplots(2, len(columns), sharey="row", sharex="col")
    figure.subplots_adjust(left=0.095, right=0.985, top=0.97, bottom=0.185, wspace=0.1, hspace=0.12)
    last = table[table["final"]]
    for row, (column, label) in zip(grid, ((score, labels[1]), (coupling, labels[0])), strict=True):
        for axes, (name, x) in zip(row, columns.items(), strict=True):
            # Tokens are followed along training; the sizes do not change, so one point per model says it all.
            shown = table if name == "training tokens" else last
            for architecture, marker in (("neox", "o"), ("llama", "s")):
                part = shown[shown["architecture"] == architecture]
                axes.plot(
                    part[x], part[column], linestyle="none", marker=marker, markersize=4, alpha=0.75,
                    color=style.family_style("nano-neox" if architecture == "neox" else "nano-llama")[0],
                    label="GPT-NeoX" if architecture == "neox" else "Llama",
                )  # fmt: skip
            if name in ("parameters", "training tokens"):
                axes.set_xscale("log")
            else:
                axes.set_xticks(sorted(table[x].unique()))
            r = np.corrcoef(np.log(shown[x]), shown[column])[0, 1]
            axes.annotate(f"$r = {r:.2f}$", (0.04, 0.97), xycoords="axes fraction", va="top", fontsize=8.5)
            axes.margins(y=0.2)
            axes.grid(axis="y")
        row[0].set_ylabel(label)
    for axes, name in zip(grid[1], columns, strict=True):
        axes.set_xlabel(name)
    legend_under(figure, [grid[0, 0]])
    return figure


def shapes(
    tables: Mapping[str, tuple[Sequence[float], Sequence[float]]], labels: Mapping[str, tuple[str, str]]
) -> Figure:
    """Draws points with the straight line and the exponential fitted to them."""
    figure, panels = panel_row(list(tables), height=2.5, share=False, gap=0.62)
    looks = {"linear": {}, "exponential": {"dashes": (5, 2)}}
    for axes, (title, (x, y)) in zip(panels, tables.items(), strict=True):
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        axes.plot(x, y, linestyle="none", marker="o", markersize=4, color=style.colour("text"), alpha=0.7)
        line = np.linspace(x.min(), x.max(), 100)[:, None]
        for position, (name, look) in enumerate(looks.items()):
            curve = FITS[name].fit(x[:, None], y).predict(line)
            axes.plot(line[:, 0], curve, color=style.dataset_colour(name, position), label=name, **look)
        axes.set_xlabel(labels[title][0])
        axes.set_ylabel(labels[title][1])
    legend_under(figure, panels)
    return figure


def leaderboard(table: pd.DataFrame, marked: str = "") -> Figure:
    """Draws the six tasks and their mean against size, and GSM8K against the mean of the other five."""
    figure = Figure(figsize=(style.WIDTH, 5.2))
    grid = figure.subplots(2, 4).ravel()
    figure.subplots_adjust(left=0.06, right=0.99, top=0.95, bottom=0.24, wspace=0.3, hspace=0.42)
    rest = table.assign(rest=table[[task for task in TASKS if task != "GSM8K"]].mean(axis=1, skipna=False))
    ring = rest[rest["model"] == marked]
    for axes, task in zip(grid, (*TASKS, "average"), strict=False):
        _draw_families(axes, rest.dropna(subset=[task, "parameters_b"]), "parameters_b", task)
        axes.set_xscale("log")
        axes.plot(
            ring["parameters_b"], ring[task], "o", markersize=11, markerfacecolor="none", color=style.colour("text")
        )
        axes.set_title(task if task != "average" else "mean of the six", fontsize=9, pad=4)
        axes.set_xlabel("10$^9$ parameters", fontsize=8)
    axes = grid[-1]
    known = rest.dropna(subset=["GSM8K", "rest"])
    _draw_families(axes, known, "rest", "GSM8K")
    _draw_line(axes, known["rest"].to_numpy(), known["GSM8K"].to_numpy())
    axes.annotate(
        f"$R^2 = {r_squared(known['rest'], known['GSM8K']):.2f}$", (0.05, 0.95), xycoords="axes fraction", va="top",
        fontsize=8.5,
    )  # fmt: skip
    axes.set_title("GSM8K and the rest", fontsize=9, pad=4)
    axes.set_xlabel("mean of the other five", fontsize=8)
    for axes in grid:
        axes.tick_params(labelsize=7.5)
        axes.grid(axis="y")
    _family_legend(figure, table["family"], rows=3)
    return figure


def _draw_families(axes: Axes, table: pd.DataFrame, x: str, y: str) -> None:
    for family, part in table.groupby(table["family"].str.split(" (", regex=False).str[0]):
        colour, marker = style.family_style(str(family))
        axes.plot(part[x], part[y], linestyle="none", marker=marker, markersize=4.5, color=colour, alpha=0.85)


def _draw_line(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    slope, intercept = np.polyfit(x, y, 1)
    ends = np.array([x.min(), x.max()])
    axes.plot(ends, slope * ends + intercept, color=style.colour("text"), linewidth=1, zorder=0)


def _family_legend(figure: Figure, families: pd.Series, rows: int) -> None:
    names = sorted(set(families.str.split(" (", regex=False).str[0]))
    known = [name for name in names if style.family_style(name) != style.family_style("no such family")]
    handles = [
        Line2D([], [], linestyle="none", marker=style.family_style(n)[1], color=style.family_style(n)[0], label=n)
        for n in known
    ]
    if len(known) < len(names):
        handles.append(Line2D([], [], linestyle="none", marker="o", color=style.colour(style.NULL), label="other"))
    columns = -(-len(handles) // rows)
    spacing = {"borderaxespad": 0.2, "columnspacing": 1.2, "handletextpad": 0.2, "fontsize": 8}
    figure.legend(handles=handles, loc="lower center", ncols=columns, **spacing)
