"""A weighted graph whose nodes stand on a circle, numbered from 1 at the top, clockwise."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from companion.figures import parts, style

# Points; wider lines between 30 nodes would make one area of the strongest.
_WIDEST = 2.8


def draw(axes: Axes, weights: np.ndarray, top: float, colour: str) -> None:
    """Draw nodes and the edges of positive weight; width and opacity grow in proportion, `top` is the widest."""
    count = len(weights)
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    x, y = np.cos(angle), np.sin(angle)
    pairs = [(i, j) for i in range(count) for j in range(i) if weights[i, j] > 0]
    for i, j in sorted(pairs, key=lambda pair: weights[pair]):
        axes.plot(x[[i, j]], y[[i, j]], **_edge(weights[i, j] / top, colour))
    axes.scatter(x, y, s=20, color=colour, linewidths=0, zorder=3)
    # Numbers stand outside: neighbours are joined along the rim, which they would hide.
    for node in range(count):
        axes.text(1.11 * x[node], 1.11 * y[node], node + 1, ha="center", va="center_baseline", fontsize=8)
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    parts.blank(axes)


def circles(
    titles: Sequence[str], coupling: xr.DataArray, inks: Sequence[str], chance: float, beyond: bool = False
) -> Figure:
    """Draw blocks on circles on one scale, joined by coupling, or by its excess over chance if `beyond`."""
    meaning, form = f"{coupling.label}, mean of both directions and over prompts", ".2f"
    samples = {f"{chance:.2f} (by chance)": chance}
    if beyond:
        meaning, form = "coupling of two transformer blocks, beyond chance", "+.2f"
        coupling, samples = coupling - chance, {}
    figure, row = parts.panels(titles, 0.7, square=True)
    weights = coupling.transpose(..., "block_b", "block_a").values
    top = max(float(np.nanmax(weights)), 1e-9)
    for axes, one, ink in zip(row, weights, inks, strict=True):
        draw(axes, one, top, ink)
    shares = {format(share * top, form): share * top for share in (0.25, 0.5, 1.0)}
    ink, kept = style.colour("text"), {name: weight for name, weight in {**samples, **shares}.items() if weight > 0}
    edges = [Line2D([], [], **_edge(weight / top, ink), label=name) for name, weight in kept.items()]
    figure.legend(handles=edges, title=meaning, loc="outside lower center", ncols=len(edges))
    return figure


def _edge(share: float, colour: str) -> dict[str, Any]:
    share = min(share, 1.0)
    return {"linewidth": _WIDEST * share, "alpha": 0.9 * share, "color": colour, "solid_capstyle": "butt"}
