r"""Coupling prompt by prompt, drawn: against difficulty, length and data set; with and without an instruction.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.prompts.measure_prompts` made. What each figure plots is a table of
`coupling_lib.figures.prompts_data`. Blocks count from 1.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.depth_data import Datasets, coupling_label
from coupling_lib.figures.prompts_data import ALONE, correlations, prompt_table, prompts_alone, version_couplings
from coupling_lib.metrics.statistics import Correlation, linear_fit, mean_interval


def prompt_scatter(datasets: Datasets, variant: str, k: int, null: float | None = None) -> Figure:
    """Coupling of every prompt against its reasoning steps, its length and its data set (the paper's figure 9)."""
    table = prompt_table(datasets, variant, k)
    alone = prompts_alone(table)
    figure = Figure(figsize=(style.WIDTH, 5.6))
    grid = figure.add_gridspec(2, 2, left=0.085, right=0.99, top=0.985, bottom=0.125, wspace=0.07, hspace=0.25)
    left = figure.add_subplot(grid[0, 0])
    right, below = figure.add_subplot(grid[0, 1], sharey=left), figure.add_subplot(grid[1, :], sharey=left)
    right.tick_params(labelleft=False)
    for position, name in enumerate(datasets):
        ink = style.dataset_colour(name, position)
        of_name = alone[alone["network"] == name]
        found = correlations(table, name)
        for axes, x, quantity in ((left, "steps", "steps"), (right, "tokens", "length")):
            _draw_relation(axes, of_name[of_name[x].notna()], x, ink)
            axes.text(0.99, 0.99 - 0.075 * position, _written(name, found[quantity]), color=ink, va="top", ha="right",
                      transform=axes.transAxes, fontsize=8)  # fmt: skip
        _draw_sets(below, of_name, sorted(alone["dataset"].unique()), ink, (position + 0.5) / len(datasets) - 0.5, name)
    left.set_xlabel("reasoning steps of the solution")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set_xlabel("length of the prompt (tokens)")
    for axes in (left, below):
        axes.set_ylabel(coupling_label(variant, k))
    for axes in (left, right, below):
        axes.grid(axis="y")
        if null is not None:
            axes.axhline(
                1 - null, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label=style.null_label(null)
            )
    # Room for a line of text per network above the highest dot.
    low, high = min(0.0, alone["coupling"].min()), max(alone["coupling"].max(), 1 - (1 if null is None else null))
    left.set_ylim(low, high + (high - low) * (0.06 + 0.09 * len(datasets)))
    figure.legend(*below.get_legend_handles_labels(), loc="lower center", ncols=len(datasets) + 1)
    return figure


def version_profiles(datasets: Datasets, variant: str, k: int, null: float | None = None) -> Figure:
    """Draws coupling per block for questions alone and with a sentence added (the paper's figure 15)."""
    figure = Figure(figsize=(style.WIDTH, 5.2))
    panels = figure.subplots(2, len(datasets), sharex="col", sharey="row", squeeze=False, height_ratios=(1.25, 1))
    figure.subplots_adjust(left=0.125, right=0.99, top=0.94, bottom=0.15, wspace=0.06, hspace=0.1)
    for column, (name, dataset) in enumerate(datasets.items()):
        above, below = panels[:, column]
        couplings = version_couplings(dataset, variant, k)
        for position, (version, values) in enumerate(couplings.items()):
            ink = style.dataset_colour(version, position)
            label = "question alone" if version == ALONE else f"with {_ADDED.get(version, version)}"
            _draw_band(above, values, ink, label, position)
            if version != ALONE:
                _draw_band(below, values - couplings[ALONE], ink, label, position)
        below.axhline(0, color=style.colour("text"), linewidth=0.7)
        if null is not None:
            above.axhline(
                1 - null, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label=style.null_label(null)
            )
        above.set_title(name.capitalize() if name in (style.TRAINED, style.UNTRAINED) else name, pad=6)
        below.set_xlabel("block $l$")
        below.xaxis.get_major_locator().set_params(integer=True)
        for axes in (above, below):
            axes.grid(axis="y")
    panels[0, 0].set_ylabel(coupling_label(variant, k) + "\nof block $l$ with all others")
    panels[1, 0].set_ylabel("difference from\nquestion alone")
    panels[0, 0].set_ylim(bottom=min(0, panels[0, 0].get_ylim()[0]))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels))
    return figure


_ADDED = {"step by step": "“step by step”", "control sentence": "control sentence"}
_MARKERS = "osD"


def _draw_relation(axes: Axes, table: pd.DataFrame, x: str, ink: str) -> None:
    places, values = table[x].to_numpy(dtype=float), table["coupling"].to_numpy()
    # Prompts with as many steps would lie on top of each other.
    spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(places)) if x == "steps" else 0
    axes.scatter(places + spread, values, s=14, color=ink, alpha=0.65, linewidths=0)
    if len(places) > 2 and np.ptp(places) > 0:
        fit = linear_fit(places, values)
        ends = np.array([places.min(), places.max()])
        axes.plot(ends, fit.intercept + fit.slope * ends, color=ink, linewidth=1.2)


def _draw_sets(axes: Axes, table: pd.DataFrame, sets: list[str], ink: str, offset: float, name: str) -> None:
    for place, dataset in enumerate(sets):
        values = table.loc[table["dataset"] == dataset, "coupling"].to_numpy()
        centre = place + 0.7 * offset
        spread = np.random.default_rng(0).uniform(-0.06, 0.06, len(values))
        axes.scatter(centre - 0.05 + spread, values, s=14, color=ink, alpha=0.65, linewidths=0)
        label = name if place == 0 else None
        axes.plot([centre + 0.06, centre + 0.14], [values.mean()] * 2, color=ink, linewidth=2, label=label)
        if len(values) > 1:
            interval = mean_interval(values)
            ends = [float(interval.low), float(interval.high)]
            axes.plot([centre + 0.1] * 2, ends, color=ink, linewidth=4, solid_capstyle="butt", alpha=0.6)
    crowded = len(sets) > 7
    axes.set_xticks(range(len(sets)), sets, rotation=20 if crowded else 0, ha="right" if crowded else "center")
    axes.set_xlim(-0.6, len(sets) - 0.4)


def _draw_band(axes: Axes, values: np.ndarray, ink: str, label: str, position: int) -> None:
    blocks = np.arange(1, values.shape[1] + 1)
    marker = _MARKERS[position % len(_MARKERS)]
    axes.plot(blocks, values.mean(axis=0), color=ink, marker=marker, markersize=3.5, label=label)
    if len(values) > 1:
        interval = mean_interval(values)
        axes.fill_between(blocks, interval.low, interval.high, color=ink, alpha=0.2, linewidth=0)


def _written(name: str, found: Correlation | None) -> str:
    if found is None:
        return f"{name}: too few prompts"
    # Adding zero takes the sign off a rounded nothing.
    r, low, high = (f"{round(value, 2) + 0:.2f}".replace("-", "−") for value in found[:3])
    return rf"{name}: $\rho$ = {r} [{low}, {high}], n = {found.n}"
