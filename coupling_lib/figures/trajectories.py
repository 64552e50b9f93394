r"""Trajectories: how straight, how even and how exponential a token's path through the stream is, drawn.

*Models* and *networks* are what `coupling_lib.figures.trajectories_data` says; what each figure plots is a table
there. Trained and untrained keep their colours.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coupling_lib.figures import style
from coupling_lib.figures.axes import log_axis
from coupling_lib.figures.trajectories_data import (
    SCORES,
    Models,
    Networks,
    path_ranges,
    profile_table,
    quartiles,
    score_table,
)

_LOGARITHMIC = ("expodistance", "norm", "relative_step")


def scores_by_model(models: Models) -> Figure:
    """Draws the scores of whole trajectories, model by model (the paper's figures 5a and 5b)."""
    table = score_table(models)
    upright = len(models) > 2
    height = 4.5 if upright else 3.4
    figure = Figure(figsize=(style.WIDTH, height))
    panels = figure.subplots(1, len(SCORES))
    top, bottom = 1 - 0.6 / height, (1.4 if upright else 0.35) / height
    figure.subplots_adjust(left=0.065, right=0.99, top=top, bottom=bottom, wspace=0.25)
    for axes, (score, label) in zip(panels, SCORES.items(), strict=True):
        for place, (model, networks) in enumerate(models.items()):
            shift = np.linspace(-0.2, 0.2, len(networks)) if len(networks) > 1 else [0.0]
            for offset, network in zip(shift, networks, strict=True):
                values = table[(table.model == model) & (table.network == network)][score].to_numpy()
                _draw_strip(axes, place + offset, values, style.dataset_colour(network, 0))
        axes.set_title(label)
        axes.set_xlim(-0.5, len(models) - 0.5)
        rotation = {"rotation": 90} if upright else {}
        axes.set_xticks(range(len(models)), [_short_name(name) for name in models], **rotation)
        axes.grid(axis="y")
        if table[score].isna().all():
            axes.set_yticks([])
            axes.text(0.5, 0.5, "does not exist:\nno net growth", transform=axes.transAxes, ha="center", va="center")
        if score in _LOGARITHMIC:
            log_axis(axes)
    grey = style.colour(style.NULL)
    for place, networks in enumerate(models.values()):
        root = np.sqrt(next(iter(networks.values())).sizes["block"])
        panels[0].plot([place - 0.42, place + 0.42], [root, root], color=grey, linewidth=1.2, dashes=(4, 3))
    panels[0].axhline(1, color=grey, linewidth=1.2, dashes=(1, 1.5))
    handles = [*_network_handles(models), *_reference_handles(grey)]
    figure.legend(handles=handles, loc="upper center", ncols=len(handles))
    return figure


def profiles(networks: Networks, window: int) -> Figure:
    """Norm, step length, line-shape score in windows and entropy against depth (the paper's figures 24 and 26)."""
    table = profile_table(networks)
    titles = {
        "norm": r"norm $\Vert x^l\Vert_2$",
        "relative_step": "step length / mean step length",
        "window_line_shape_score": f"line-shape score of {window} blocks",
        "entropy_normed": "entropy of the next token (nats)",
    }
    shown = [name for name in titles if (table.quantity == name).any()]
    figure, panels = _grid(len(shown))
    for axes, quantity in zip(panels, shown, strict=True):
        _draw_profiles(axes, table[table.quantity == quantity], "-")
        axes.set_title(titles[quantity], fontsize=10 if len(shown) == 4 else 9)
        axes.set_xlabel({"relative_step": "block", "window_line_shape_score": "middle block"}.get(quantity, "level"))
        if quantity in _LOGARITHMIC:
            log_axis(axes)
        if quantity == "relative_step":
            axes.axhline(1, color=style.colour(style.NULL), linewidth=1.2, dashes=(1, 1.5))
        if quantity == "entropy_normed":
            _draw_profiles(axes, table[table.quantity == "entropy"], (0, (4, 2)))
            axes.set_ylim(bottom=0)
            ink = style.colour("text")
            lines = [Line2D([], [], color=ink), Line2D([], [], color=ink, dashes=(4, 2))]
            axes.legend(lines, ["final norm first", "state as it is"], loc="best")
    figure.legend(handles=_network_handles({"": networks}), loc="upper center", ncols=len(networks))
    return figure


def principal_components(networks: Networks) -> Figure:
    """Draws the paths of the tokens of one prompt in the plane of their last states (the paper's figures 12 to 14)."""
    if any("path" not in dataset for dataset in networks.values()):
        figure = Figure(figsize=(style.WIDTH, 0.6))
        figure.text(0.5, 0.5, "no principal components: the first prompt has fewer than three tokens", ha="center")
        return figure
    ranges = path_ranges(next(iter(networks.values())).sizes["block"])
    rows, columns = len(networks), len(ranges)
    figure = Figure(figsize=(style.WIDTH, 0.35 + 2.35 * rows))
    panels = figure.subplots(rows, columns, squeeze=False)
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.1, right=0.99, top=1 - 0.3 / height, bottom=0.5 / height, wspace=0.27, hspace=0.25)
    for row, (network, dataset) in zip(panels, networks.items(), strict=True):
        path = dataset["path"].transpose("position", "level", "component").values
        share = dataset["path_share"].values
        for axes, levels in zip(row, ranges.values(), strict=True):
            _draw_paths(axes, path[:, list(levels)], style.dataset_colour(network, 0))
        row[0].set_ylabel(f"{network}\ncomponent 2 ({share[1]:.0%})")
        row[columns // 2].set_xlabel(f"component 1  ({share[0]:.0%} of the variance of last states)")
    for axes, name in zip(panels[0], ranges, strict=True):
        axes.set_title(name)
    return figure


def _draw_strip(axes: Axes, place: float, values: np.ndarray, ink: str) -> None:
    spread = np.random.default_rng(0).uniform(-0.07, 0.07, len(values))
    axes.scatter(place + spread, values, s=12, color=ink, alpha=0.5, linewidths=0)
    middle, low, high = quartiles(values).values()
    axes.plot([place + 0.13] * 2, [low, high], color=ink, linewidth=4, solid_capstyle="butt", alpha=0.6)
    axes.plot([place + 0.07, place + 0.19], [middle, middle], color=ink, linewidth=2)


def _draw_profiles(axes: Axes, table: pd.DataFrame, dashes: object) -> None:
    for network, lines in table.groupby("network", sort=False):
        ink = style.dataset_colour(network, 0)
        axes.plot(lines.depth, lines["median"], color=ink, linestyle=dashes, marker="o", markersize=2.5, linewidth=1.4)
        axes.fill_between(lines.depth, lines.low, lines.high, color=ink, alpha=0.2, linewidth=0)


def _draw_paths(axes: Axes, path: np.ndarray, ink: str) -> None:
    """Paths of tokens; the last one on top."""
    for token, way in enumerate(path):
        last = token == len(path) - 1
        shown = {"color": style.colour("text"), "zorder": 4} if last else {"color": ink, "alpha": 0.55}
        axes.plot(*way.T, linewidth=1.8 if last else 0.8, **shown)
        axes.plot(*way[-1], "o", markersize=4 if last else 2.5, markeredgewidth=0, **shown)
    axes.axhline(0, color=style.colour("faint"), linewidth=0.5, zorder=0)
    axes.axvline(0, color=style.colour("faint"), linewidth=0.5, zorder=0)
    axes.locator_params(nbins=5)


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """Two rows of two panels, or one row of three."""
    rows, columns = (2, 2) if count == 4 else (1, count)
    height = 2.35 * rows + 0.45
    figure = Figure(figsize=(style.WIDTH, height))
    panels = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.065,
        right=0.99,
        top=1 - 0.55 / height,
        bottom=0.45 / height,
        wspace=0.17 if rows == 2 else 0.25,
        hspace=0.5,
    )
    for axes in panels.flat:
        axes.grid(axis="y")
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure, list(panels.flat)


def _short_name(name: str) -> str:
    """The last part of a hub id or a path, cut where it is long."""
    last = name.rstrip("/").rpartition("/")[2]
    return last if len(last) <= 18 else f"{last[:17]}…"


def _network_handles(models: Models) -> list[Line2D]:
    names = dict.fromkeys(network for networks in models.values() for network in networks)
    return [Line2D([], [], color=style.dataset_colour(name, 0), marker="o", markersize=4, label=name) for name in names]


def _reference_handles(grey: str) -> list[Line2D]:
    return [
        Line2D([], [], color=grey, linewidth=1.2, dashes=(4, 3), label=r"$\sqrt{L}$: unrelated steps"),
        Line2D([], [], color=grey, linewidth=1.2, dashes=(1, 1.5), label="1: straight line"),
    ]
