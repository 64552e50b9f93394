r"""Emergence: coupling and the shape of trajectories against the step of training, drawn.

All functions take the data set that `coupling_lib.measures.emergence.measure_emergence` made. Steps stand on a
logarithmic axis; step 0, which has no logarithm, stands apart on its left, beyond a break of the axis. What each
figure plots is a table of `coupling_lib.figures.emergence_data`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.axes import log_axis, short_step, step_axis, thinned
from coupling_lib.figures.circle import draw_circle, draw_edge_legend
from coupling_lib.figures.depth_data import coupling_label, symmetric_coupling
from coupling_lib.figures.emergence_data import (
    PROFILES,
    SCORES,
    coupling_table,
    drawn_windows,
    graph_steps,
    locality_table,
    near_and_far_table,
    profile_table,
    progress_word,
    score_table,
)
from coupling_lib.figures.panels import colour_bar, square_panels


def coupling_over_training(dataset: xr.Dataset, variant: str, k: int) -> Figure:
    """Draws mean coupling against training, with chance, and how good the model was (the paper's figure 1b)."""
    table = coupling_table(dataset, variant, k)
    figure = Figure(figsize=(style.WIDTH, 3.3))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.915, top=0.86, bottom=0.145)
    x = _draw_steps(axes, table, "coupling", style.colour(style.TRAINED), "coupling")
    if table.step[0] == 0:
        axes.axhline(table.coupling[0], color=style.colour(style.UNTRAINED), linewidth=1, dashes=(1, 2))
        _mark_untrained(axes, x[0], table.coupling[0])
    null = style.colour(style.NULL)
    error = f"± {style.one_digit(table.random_bases_error.max())}"
    axes.plot(x, table.random_bases, color=null, linewidth=1.2, dashes=(4, 3), label=f"random bases {error}")
    axes.set_ylabel(coupling_label(variant, k))
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.grid(axis="y")
    handles, labels = axes.get_legend_handles_labels()
    if table.progress.notna().any():
        ink, known = style.dataset_colour("progress", 0), table.progress.notna()
        second = axes.twinx()
        second.spines["right"].set_visible(True)
        second.plot(x[known], table.progress[known], "s-", color=ink, markersize=3.5, linewidth=1.1)
        second.set_ylabel(dataset.attrs["progress_label"], color=ink)
        second.tick_params(axis="y", colors=ink)
        handles, labels = [*handles, second.lines[0]], [*labels, f"{progress_word(dataset)} (right)"]
    figure.legend(handles, labels, loc="upper center", ncols=4, bbox_to_anchor=(0.5, 1.0))
    return figure


def locality_over_training(dataset: xr.Dataset, variant: str, k: int) -> Figure:
    """Draws coupling against the distance between blocks at each step, and near and far pairs against training."""
    figure, (left, right) = _row(2, 4.0, top=0.5)
    table = locality_table(dataset, variant, k)
    for colour, (_, lines) in zip(step_colours(dataset.sizes["step"]), table.groupby("step"), strict=True):
        _draw_line(left, lines.distance, lines.coupling, lines, colour, None)
    left.set_xlabel("distance $|l-l'|$ between blocks")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylabel(coupling_label(variant, k))
    null = {"color": style.colour(style.NULL), "linewidth": 1.2, "dashes": (4, 3)}
    left.axhline(table.random_bases.mean(), **null)
    for at, (name, lines) in enumerate(near_and_far_table(dataset, variant, k).groupby("pairs", sort=False)):
        x = _draw_steps(right, lines, "coupling", style.dataset_colour(name, at + 1), name)
    right.plot(x, table.groupby("step").random_bases.mean(), **null, label="random bases")
    for axes in (left, right):
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    right.sharey(left)
    right.legend(loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=2, columnspacing=1.2)
    _step_bar(figure, dataset["step"].values)
    return figure


def graphs_over_training(dataset: xr.Dataset, variant: str, k: int) -> Figure:
    """Draws blocks on a circle, joined by their coupling, at three steps (the paper's figures 1c to 1e)."""
    chosen = graph_steps(dataset, variant, k)
    graphs = [symmetric_coupling(each, variant, k) for each in chosen.values()]
    top = float(np.nanmax(graphs))
    figure, panels = square_panels(chosen, left=0.1, bottom=0.65, gap=0.2)
    for axes, name, values in zip(panels, chosen, graphs, strict=True):
        draw_circle(axes, values, top, style.colour(style.UNTRAINED if name == "step 0" else style.TRAINED))
    null = 1 - np.mean([each["null"].sel(k=k).item() for each in chosen.values()])
    samples = {f"{null:.2f} (random bases)": null} | {f"{share * top:.2f}": share * top for share in (0.25, 0.5, 1.0)}
    draw_edge_legend(figure, samples, top, f"{coupling_label(variant, k)}, mean of both directions and over prompts")
    return figure


def scores_over_training(dataset: xr.Dataset) -> Figure:
    """Draws line-shape score and expodistance against training, of all blocks and of windows (figures 27 to 29)."""
    table = score_table(dataset)
    figure = Figure(figsize=(style.WIDTH, 4.6))
    panels = figure.subplots(2, 2, sharey="col")
    figure.subplots_adjust(left=0.085, right=0.99, top=0.94, bottom=0.1, wspace=0.2, hspace=0.33)
    inks = [style.colour(style.TRAINED), *(style.dataset_colour("", at) for at in range(3))]
    names = ["all", *drawn_windows(dataset)]
    for column, (score, label) in enumerate(SCORES.items()):
        for name, ink in zip(names, inks, strict=False):
            axes = panels[0 if name == "all" else 1, column]
            lines = table[(table.score == score) & (table.blocks == name)].reset_index()
            x = _draw_steps(axes, lines, "median", ink, name)
            if name == "all" and lines.step[0] == 0:
                _mark_untrained(axes, x[0], lines["median"][0])
        panels[0, column].set_title("all blocks")
        panels[1, column].set_title(f"windows of {dataset.attrs['window']} blocks")
        for axes in panels[:, column]:
            axes.set_ylabel(label)
            axes.grid(axis="y")
    log_axis(panels[0, 1])
    panels[1, 0].legend()
    for axes in panels[0]:
        axes.set_xlabel("")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    panels[0, 0].legend(handles[1:], labels[1:])
    return figure


def profiles_over_training(dataset: xr.Dataset) -> Figure:
    """Draws norm, and line-shape score and expodistance in windows, against depth at each step (figures 27 and 30)."""
    figure, panels = _row(3, 3.6)
    table, colours = profile_table(dataset), step_colours(dataset.sizes["step"])
    for axes, (quantity, (dimension, label)) in zip(panels, PROFILES.items(), strict=True):
        for colour, (_, lines) in zip(colours, table[table.quantity == quantity].groupby("step"), strict=True):
            axes.plot(lines.depth, lines["median"], color=colour, marker="o", markersize=2.5, linewidth=1.3)
        axes.set_xlabel("level (0: embedding)" if dimension == "level" else "middle block of the window")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(label, fontsize=9)
        if quantity != "window_line_shape_score":
            log_axis(axes)
    _step_bar(figure, dataset["step"].values)
    return figure


def step_colours(count: int) -> list[tuple[float, ...]]:
    """Gives one colour per step, from little ink to much."""
    return [tuple(colour) for colour in style.ink()(np.linspace(0.3, 0.93, count))]


def _draw_line(
    axes: Axes, x: Sequence[float], y: pd.Series, ends: pd.DataFrame, ink: object, label: str | None
) -> None:
    axes.plot(x, y, color=ink, marker="o", markersize=3.5, label=label)
    _draw_ends(axes, x, ends, ink)


def _draw_steps(axes: Axes, table: pd.DataFrame, name: str, ink: object, label: str) -> np.ndarray:
    """A line over steps; its part over the break of the axis is dotted, and step 0 has the colour of the untrained."""
    x = step_axis(axes, table.step)
    y, first = table[name].to_numpy(), int(table.step.iloc[0] == 0)
    axes.plot(x[first:], y[first:], color=ink, marker="o", markersize=3.5, label=label)
    _draw_ends(axes, x[first:], table[first:], ink)
    if first:
        axes.plot(x[:2], y[:2], color=ink, linewidth=1.0, linestyle=(0, (1, 2)))
        axes.plot(x[0], y[0], "o", color=ink, markersize=3.5)
        _draw_ends(axes, x[:1], table[:1], ink)
    return x


def _mark_untrained(axes: Axes, place: float, value: float) -> None:
    axes.plot(
        place, value, "o", color=style.colour(style.UNTRAINED), markersize=6, label="untrained (step 0)", zorder=4
    )


def _draw_ends(axes: Axes, x: Sequence[float], ends: pd.DataFrame, ink: object) -> None:
    if len(ends) == 1:
        axes.plot([x[0]] * 2, [ends.low.iloc[0], ends.high.iloc[0]], color=ink, alpha=0.4, linewidth=3, zorder=1)
    elif ends.low.notna().any():
        axes.fill_between(x, ends.low, ends.high, color=ink, alpha=0.2, linewidth=0)


def _row(count: int, height: float, top: float = 0.25) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(style.WIDTH, height))
    panels = figure.subplots(1, count)
    figure.subplots_adjust(
        left=0.085 if count == 2 else 0.06, right=0.99, top=1 - top / height, bottom=1.22 / height, wspace=0.2
    )
    for axes in panels:
        axes.grid(axis="y")
    return figure, panels


def _step_bar(figure: Figure, steps: np.ndarray) -> None:
    """A colour bar with one patch per step, under all panels."""
    count = len(steps)
    scale = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), ListedColormap(step_colours(count)))
    bar = colour_bar(figure, scale)
    labelled = thinned(count)
    bar.set_ticks(labelled, labels=[short_step(steps[at]) for at in labelled])
    bar.ax.tick_params(which="both", length=0)
    bar.set_label("training step")
