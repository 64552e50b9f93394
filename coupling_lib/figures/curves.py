"""What figures of quantities against depth share: panels in a row, lines with bands, numbered blocks, summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from coupling_lib.figures import style
from coupling_lib.metrics import statistics

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.08, 0.3, 0.47
_FIRST_LINE, _LINE = 0.28, 0.21


class Summary(NamedTuple):
    """A middle and a lower and upper value, arrays of one shape."""

    middle: NDArray[np.float64]
    """Mean or median."""
    low: NDArray[np.float64]
    """Lower end of the interval, or lower quartile; not a number where there is none."""
    high: NDArray[np.float64]
    """Upper end of the interval, or upper quartile."""


def mean_interval(values: ArrayLike) -> Summary:
    """Summarise prompts by their mean and its 95 % interval."""
    values = np.asarray(values, dtype=float)
    if len(values) > 1:
        return Summary(*statistics.mean_interval(values))
    missing = np.full(values.shape[1:], np.nan)
    return Summary(values[0], missing, missing)


def quartiles(values: ArrayLike) -> Summary:
    """Summarise prompts by their median and quartiles."""
    low, middle, high = np.quantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75), axis=0)
    return Summary(middle, low, high)


def panel_row(
    titles: Sequence[str],
    height: float = 2.5,
    share: bool = True,
    gap: float = 0.1,
    above: float = 0.0,
    legend: int = 1,
) -> tuple[Figure, list[Axes]]:
    """Makes a row of equally wide panels that fills the column of the book, each under its title."""
    bottom = _BOTTOM + _FIRST_LINE * (legend > 0) + _LINE * max(0, legend - 1)
    total = height + _TOP + above + bottom
    figure = Figure(figsize=(style.WIDTH, total))
    width = (style.WIDTH - _LEFT - _RIGHT - gap * (len(titles) - 1)) / len(titles)
    panels: list[Axes] = []
    for index, title in enumerate(titles):
        left = (_LEFT + index * (width + gap)) / style.WIDTH
        shared = panels[0] if share and panels else None
        axes = figure.add_axes((left, bottom / total, width / style.WIDTH, height / total), sharey=shared)
        if shared is not None:
            axes.tick_params(labelleft=False)
        axes.set_title(title.capitalize() if title in (style.TRAINED, style.UNTRAINED) else title, pad=6 + 72 * above)
        axes.grid(axis="y")
        panels.append(axes)
    return figure, panels


def legend_under(figure: Figure, panels: Sequence[Axes], columns: int | None = None) -> None:
    """Puts one legend under a row of panels, each label once, where no line can run into it."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    count = columns or len(entries)
    spacing = {"borderaxespad": 0.2, "columnspacing": 1.4, "handlelength": 1.8}
    figure.legend(entries.values(), entries, loc="lower center", ncols=count, **spacing)


def draw_band(axes: Axes, x: ArrayLike, summary: Summary, colour: str, alpha: float = 0.22, **line: object) -> None:
    """Draws a line and, where it has one, the band around it."""
    axes.plot(x, summary.middle, color=colour, **line)
    if np.isfinite(summary.low).any():
        axes.fill_between(x, summary.low, summary.high, color=colour, alpha=alpha, linewidth=0)


def block_axis(axes: Axes, label: str = "block $l$") -> None:
    """Names a horizontal axis of blocks and numbers it with whole numbers."""
    axes.set_xlabel(label)
    axes.xaxis.get_major_locator().set_params(integer=True)


def shades(count: int) -> list[str]:
    """Gives colours for things in an order, such as blocks by depth: from a middle tone to the strongest."""
    return [to_hex(style.ink()(place)) for place in np.linspace(0.38, 0.92, count)]
