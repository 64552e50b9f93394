r"""The grid of vision transformers, drawn: weight decay by stochastic depth, each model trained and measured.

What each figure plots is a table of `coupling_lib.figures.vision_data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupling_lib.figures import style
from coupling_lib.figures.curves import legend_under, panel_row
from coupling_lib.figures.depth_data import coupling_label
from coupling_lib.figures.vision_data import (
    NAMED_RATES,
    SEEDED_DECAY,
    Reading,
    coupling_table,
    first_seed,
    fits_by_rate,
    seeds_table,
)

_DASHES = (4, 3)
_DOTS = (1, 1.5)
_ACCURACY = "test accuracy (%)"


def accuracy_against_coupling(
    grid: pd.DataFrame,
    reading: Reading,
    stated: Mapping[float, float] | None = None,
    rates: Sequence[float] = NAMED_RATES,
) -> Figure:
    """Draws test accuracy against coupling, a line per rate of stochastic depth (the paper's figure 6a)."""
    table, fits = first_seed(coupling_table(grid, reading)), fits_by_rate(grid, reading, stated).set_index("drop_path")
    figure = Figure(figsize=(style.WIDTH, 4.0))
    axes = figure.add_axes((0.085, 0.25, 0.905, 0.73))
    for position, rate in enumerate(rates):
        part = table[table.drop_path == rate]
        ink, marker = style.dataset_colour("", position), "osD^vP"[position % 6]
        label = f"rate {rate:g}"
        if f"{rate:g}" in fits.index:
            fit = fits.loc[f"{rate:g}"]
            label += f":  $R^2={fit.r_squared:.2f}$ [{fit.low:.2f}, {fit.high:.2f}]"
            label += f",  paper {fit.paper:.2f}" if np.isfinite(fit.paper) else ""
            _draw_fit(axes, part, fit, ink)
        _draw_models(axes, part, ink, marker, label)
    axes.set_xlabel(_label(reading))
    axes.set_ylabel(_ACCURACY)
    axes.grid()
    figure.legend(loc="lower center", ncols=2, columnspacing=1.5)
    return figure


def coupling_against_rate(grid: pd.DataFrame, readings: Sequence[Reading]) -> Figure:
    """Draws coupling against the rate of stochastic depth at one weight decay (the paper's figure 6b)."""
    table = seeds_table(grid, readings)
    names = {"class": "class token", "patch": "last patch"}
    figure, panels = panel_row([names[reading.token] for reading in readings], gap=0.15)
    for axes, reading in zip(panels, readings, strict=True):
        part = table[table.token == reading.token]
        models = coupling_table(grid, reading)
        models = models[models.weight_decay == SEEDED_DECAY]
        ink = style.colour(style.TRAINED)
        axes.fill_between(part.drop_path, part.image_low, part.image_high, color=ink, alpha=0.22, linewidth=0)
        axes.plot(part.drop_path, part.coupling, color=ink, marker="o", markersize=4.5, label="mean over seeds")
        axes.plot(models.drop_path, models.coupling, "o", color=ink, markersize=2.5, alpha=0.6, label="one seed")
        _draw_references(axes, part)
        axes.set_xlabel("rate of stochastic depth")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel(_label(readings[0], with_token=False))
    legend_under(figure, panels)
    return figure


def coupling_by_decay(grid: pd.DataFrame, reading: Reading) -> Figure:
    """Draws coupling against the rate of stochastic depth, a panel per weight decay (the paper's figure 10)."""
    table = first_seed(coupling_table(grid, reading))
    figure, panels = _eight([f"weight decay {decay:g}" for decay in sorted(table.weight_decay.unique())])
    for axes, (_, part) in zip(panels, table.groupby("weight_decay"), strict=True):
        part = part.sort_values("drop_path")
        ink = style.colour(style.TRAINED)
        axes.fill_between(part.drop_path, part.low, part.high, color=ink, alpha=0.22, linewidth=0)
        axes.plot(part.drop_path, part.coupling, color=ink, marker="o", markersize=3.5, label="trained")
        _draw_references(axes, part)
    panels[0].set_ylim(bottom=0)
    figure.supxlabel("rate of stochastic depth", y=0.085, fontsize=9)
    figure.supylabel(_label(reading), x=0.008, fontsize=9)
    legend_under(figure, panels)
    return figure


def accuracy_by_rate(grid: pd.DataFrame, reading: Reading) -> Figure:
    """Draws test accuracy against coupling, a panel per rate of stochastic depth (the paper's figure 11)."""
    table, fits = first_seed(coupling_table(grid, reading)), fits_by_rate(grid, reading).set_index("drop_path")
    titles = [f"rate {rate:g}" for rate in sorted(table.drop_path.unique())]
    figure, panels = _eight(titles, share_x=True, above=0.14)
    ink = style.colour(style.TRAINED)
    for axes, (rate, part) in zip(panels, table.groupby("drop_path"), strict=True):
        _draw_models(axes, part, ink, "o", "one model per weight decay")
        if f"{rate:g}" in fits.index:
            fit = fits.loc[f"{rate:g}"]
            _draw_fit(axes, part, fit, ink)
            text = f"$R^2={fit.r_squared:.2f}$ [{fit.low:.2f}, {fit.high:.2f}]"
            axes.text(0.5, 1.02, text, transform=axes.transAxes, ha="center", va="bottom", fontsize=8)
            axes.set_title(axes.get_title(), pad=16)
    figure.supxlabel(_label(reading), y=0.085, fontsize=9)
    figure.supylabel(_ACCURACY, x=0.008, fontsize=9)
    legend_under(figure, panels)
    return figure


def _label(reading: Reading, with_token: bool = True) -> str:
    where = {"class": ", class token", "patch": ", last patch"}[reading.token] if with_token else ""
    return coupling_label(reading.variant, reading.k) + where


def _draw_models(axes: Axes, part: pd.DataFrame, ink: str, marker: str, label: str) -> None:
    """One dot per model with its interval over images."""
    accuracy = 100 * part.test_accuracy
    axes.hlines(accuracy, part.low, part.high, color=ink, linewidth=0.7, alpha=0.45)
    axes.plot(part.coupling, accuracy, marker, color=ink, markersize=5, markeredgewidth=0, alpha=0.85, label=label)


def _draw_fit(axes: Axes, part: pd.DataFrame, fit: pd.Series, ink: str) -> None:
    ends = np.array([part.coupling.min(), part.coupling.max()])
    axes.plot(ends, 100 * (fit.intercept + fit.slope * ends), color=ink, linewidth=1.2, alpha=0.8)


def _draw_references(axes: Axes, part: pd.DataFrame) -> None:
    """The untrained models and random bases, along the rates."""
    for column, role, dashes, label in (
        ("untrained", style.UNTRAINED, _DOTS, "untrained"),
        ("random_bases", style.NULL, _DASHES, "random bases"),
    ):
        axes.plot(part.drop_path, part[column], color=style.colour(role), linewidth=1.3, dashes=dashes, label=label)


def _eight(titles: Sequence[str], share_x: bool = False, above: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Rows of four small panels with shared axes; room for labels, a legend below, and so much text under titles."""
    rows = -(-len(titles) // 4)
    panel = 1.3
    height = rows * (panel + 0.45 + above) + 0.65
    figure = Figure(figsize=(style.WIDTH, height))
    grid = figure.subplots(rows, 4, sharey=True, sharex=share_x, squeeze=False)
    top, bottom = 1 - (0.27 + above) / height, 0.83 / height
    between = (0.45 + above) / panel
    figure.subplots_adjust(left=0.095, right=0.99, top=top, bottom=bottom, wspace=0.08, hspace=between)
    panels = list(grid.flat)
    for axes in panels[len(titles) :]:
        axes.remove()
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title)
        axes.grid(axis="y")
    return figure, panels[: len(titles)]
