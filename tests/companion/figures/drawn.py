"""What every figure is held to: the same bytes each time, all of its text inside the picture. What a figure shows."""

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text

from companion.figures import show, style

# Room for what a font's hinting adds, in pixels.
_EDGE = 2


def words(texts: Iterable[Text]) -> list[str]:
    """Return what texts say: labels of ticks, annotations, or the entries of a legend."""
    return [text.get_text() for text in texts]


def titles(panels: Iterable[Axes]) -> list[str]:
    return [axes.get_title() for axes in panels]


def by_label(axes: Axes) -> dict[str, Line2D]:
    """Return the lines of a panel by their labels."""
    return {line.get_label(): line for line in axes.lines}


def heights(axes: Axes) -> dict[str, np.ndarray]:
    """Return what the lines of a panel show, by their labels."""
    return {label: line.get_ydata() for label, line in by_label(axes).items()}


def dots(axes: Axes, marker: str | None = None) -> set[tuple[float, float]]:
    """Return the points of a panel that no line joins, all of them or those of one marker."""
    lines = [line for line in axes.lines if line.get_linestyle() == "None" and marker in (None, line.get_marker())]
    return {(float(x), float(y)) for line in lines for x, y in zip(*line.get_data(), strict=True)}


# What a theme changes in a drawing: colours, what is drawn in pixels of them, and names that are hashes of both.
_IN_COLOUR = re.compile(rb'base64,[^"]+|(?<=#)[0-9a-f]{6}\b|(?<=["#])[a-z]+[0-9a-f]{10}(?=[")])')


def points_of(table: pd.DataFrame, x: str, y: str) -> set[tuple[float, float]]:
    return {(float(a), float(b)) for a, b in zip(table[x], table[y], strict=True)}


def assert_good_pictures(draws: Sequence[Callable[[], Figure]], dark: bool = True) -> None:
    """Draw figures: small enough for a page, all text inside; in the dark the last one repeats and is the same."""
    shapes = []
    for theme, draw in [*(("light", draw) for draw in draws), *([("dark", draws[-1])] * dark)]:
        with style.theme(theme):
            figure = draw()
            picture = style.save_svg(figure)
            # Larger ones are shown as pixels.
            assert len(picture) < show.LARGEST_SVG or len(style.save_png(figure)) < show.LARGEST_SVG, theme
            assert_text_is_inside(figure, saved=True)
            # Pixels in a drawing depend on its colours.
            assert draw is not draws[-1] or b"base64," not in picture or style.save_svg(draw()) == picture, theme
        shapes.append(_IN_COLOUR.sub(b"", picture))
    # Drawn once more in other colours, it is the same to the byte: it repeats, and no text moves with the theme.
    assert not dark or shapes[-1] == shapes[-2]


def assert_text_is_inside(figure: Figure, saved: bool = False) -> None:
    """Find text beyond the edge of a figure: titles, labels, annotations, legends, and tick labels."""
    canvas = FigureCanvasAgg(figure)
    if not saved:  # what was saved has its layout
        canvas.draw()
    texts = [t for axes in figure.axes for t in [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]]
    texts += [t for one in figure.findobj(FigureBase) for t in one.texts]
    texts += [t for legend in figure.findobj(Legend) for t in [*legend.get_texts(), legend.get_title()]]
    for axes in figure.axes:
        for name in "xy" if axes.axison else "":
            texts += [label for label in getattr(axes, f"get_{name}ticklabels")() if _is_drawn(axes, label, name)]
    for text in texts:
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= -_EDGE and box.x1 <= figure.bbox.width + _EDGE, (text, box)
            assert box.y0 >= -_EDGE and box.y1 <= figure.bbox.height + _EDGE, (text, box)


def _is_drawn(axes: Axes, label: Text, name: str) -> bool:
    """Return the labels within the limits of an axis; matplotlib makes one more at either end."""
    low, high = sorted(getattr(axes, f"get_{name}lim")())
    return label.get_visible() and low <= label.get_position()["xy".index(name)] <= high
