"""A weighted graph whose nodes stand on a circle, numbered from 1 at the top, clockwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupling_lib.figures import style

_WIDEST = 5.0


def draw_circle(axes: Axes, weights: np.ndarray, top: float, colour: str) -> None:
    """Draws nodes and edges; width and opacity of an edge grow in proportion to its weight."""
    count = len(weights)
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    x, y = np.cos(angle), np.sin(angle)
    pairs = [(i, j) for i in range(count) for j in range(i) if weights[i, j] > 0]
    for i, j in sorted(pairs, key=lambda pair: weights[pair]):
        axes.plot(x[[i, j]], y[[i, j]], **_edge(weights[i, j] / top, colour))
    size, font = min(210, 5000 / count), 8 if count < 25 else 6
    axes.scatter(x, y, s=size, color=style.colour("page"), edgecolors=colour, linewidths=1.3, zorder=3)
    for node in range(count):
        axes.text(x[node], y[node], node + 1, ha="center", va="center_baseline", fontsize=font, zorder=4)
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    axes.set_axis_off()


def draw_edge_legend(figure: Figure, samples: Mapping[str, float], top: float, title: str) -> None:
    """Draws sample edges with their weights in a row, and under them what a weight is."""
    axes = figure.add_axes((0, 0, 1, 0.6 / figure.get_figheight()), xlim=(0, style.WIDTH), ylim=(0, 1))
    axes.set_axis_off()
    axes.text(style.WIDTH / 2, 0.2, title, ha="center")
    shown = {label: weight for label, weight in samples.items() if weight > 0}
    # Inches: a line, a gap, the label at about 0.085 a letter, a gap to the next.
    widths = [0.45 + 0.08 + 0.085 * len(label) for label in shown]
    place = (style.WIDTH - sum(widths) - 0.3 * (len(widths) - 1)) / 2
    for (label, weight), width in zip(shown.items(), widths, strict=True):
        axes.plot([place, place + 0.45], [0.75, 0.75], **_edge(weight / top, style.colour("text")))
        axes.text(place + 0.53, 0.745, label, va="center_baseline")
        place += width + 0.3


def _edge(share: float, colour: str) -> dict[str, Any]:
    share = min(share, 1.0)
    return {"linewidth": _WIDEST * share, "alpha": 0.9 * share, "color": colour, "solid_capstyle": "butt"}
