"""Layout that the figures of several subjects share: square panels in a row, block numbers, one colour bar."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from coupling_lib.figures import style

_TOP, _RIGHT = 0.3, 0.05
_LARGEST = 4.2


def square_panels(
    names: Collection[str], left: float = 0.55, bottom: float = 0.5, gap: float = 0.4
) -> tuple[Figure, list[Axes]]:
    """Makes a row of equal square panels that fills the column of the book, each under its name."""
    count = len(names)
    side = min(_LARGEST, (style.WIDTH - left - _RIGHT - gap * (count - 1)) / count)
    width = left + count * side + gap * (count - 1) + _RIGHT
    height = bottom + side + _TOP
    figure = Figure(figsize=(style.WIDTH, height))
    start = left + (style.WIDTH - width) / 2
    panels = []
    for index, name in enumerate(names):
        x = start + index * (side + gap)
        axes = figure.add_axes((x / style.WIDTH, bottom / height, side / style.WIDTH, side / height))
        axes.set_title(name.capitalize() if name in (style.TRAINED, style.UNTRAINED) else name, pad=6)
        panels.append(axes)
    return figure, panels


def label_pairs(panels: Sequence[Axes]) -> None:
    """Names the axes of panels that show pairs of blocks: rows the Jacobian, columns the singular vectors."""
    panels[0].set_ylabel("block $l$  (Jacobian)")
    for axes in panels:
        axes.set_xlabel("block $l'$  (singular vectors)")


def block_ticks(axes: Axes, places: Iterable[float], blocks: Sequence[int]) -> None:
    """Numbers blocks from 1 on both axes, as many as there is room for."""
    places = list(places)
    inches = axes.get_position().width * axes.figure.get_figwidth()
    step = -(-len(blocks) // max(1, int(4.6 * inches)))
    labels = [str(block + 1) for block in blocks]
    axes.set_xticks(places[::step], labels[::step])
    axes.set_yticks(places[::step], labels[::step])
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)


def colour_bar(figure: Figure, image: ScalarMappable, extend: str = "neither", above: float = 0.47) -> Colorbar:
    """Puts one horizontal colour bar under all panels."""
    height = figure.get_figheight()
    place = figure.add_axes((0.25, above / height, 0.5, 0.1 / height))
    bar = figure.colorbar(image, cax=place, orientation="horizontal", extend=extend)
    bar.outline.set_visible(False)
    return bar


def draw_grids(panels: Sequence[Axes], grids: Sequence[np.ndarray], scaled: np.ndarray) -> tuple[AxesImage, np.ndarray]:
    """Draws grids of small matrices, each grid as one image with transparent gaps, all on one scale."""
    count, k = grids[0].shape[1:3]
    entries = np.concatenate([grid[scaled].ravel() for grid in grids])
    top = float(entries[np.isfinite(entries)].max(initial=0.0)) or 1.0
    stride = k + max(1, round(k / 10))
    for axes, grid in zip(panels, grids, strict=True):
        canvas = np.full((count * stride - (stride - k),) * 2, np.nan)
        for i, j in np.ndindex(count, count):
            canvas[i * stride : i * stride + k, j * stride : j * stride + k] = grid[i, j]
        image = axes.imshow(canvas, cmap=style.ink(), vmin=0, vmax=top, interpolation="none")
    return image, np.arange(count) * stride + (k - 1) / 2
