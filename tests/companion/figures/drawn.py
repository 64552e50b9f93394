"""What every figure is held to: the same bytes each time, all of its text inside the picture."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from matplotlib.legend import Legend
from matplotlib.text import Text

from companion.figures import style

# Room for what a font's hinting adds, in pixels.
_EDGE = 2


def assert_repeats(draw: Callable[[], Figure], theme: str) -> None:
    """Draw twice, and compare the files; one of them is small enough for a page."""
    with style.theme(theme):
        first, second = (style.save_svg(draw()) for _ in range(2))
    assert first == second
    assert len(first) < 400_000


def assert_text_inside(draw: Callable[[], Figure], theme: str = "light", tick_labels: str = "") -> None:
    """Draw, and look for text beyond the edge: titles, labels, annotations, legends, and tick labels of an axis."""
    with style.theme(theme):
        assert_text_is_inside(draw(), tick_labels)


def assert_text_is_inside(figure: Figure, tick_labels: str = "xy", saved: bool = False) -> None:
    """Look for text beyond the edge of a figure: titles, labels, annotations, legends, and tick labels of an axis."""
    canvas = FigureCanvasAgg(figure)
    if not saved:  # what was saved has its layout
        canvas.draw()
    texts = [t for axes in figure.axes for t in [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]]
    texts += [t for one in figure.findobj(FigureBase) for t in one.texts]
    texts += [t for legend in figure.findobj(Legend) for t in [*legend.get_texts(), legend.get_title()]]
    for axes in figure.axes:
        for name in tick_labels if axes.axison else "":
            texts += [label for label in getattr(axes, f"get_{name}ticklabels")() if _is_drawn(axes, label, name)]
    for text in texts:
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= -_EDGE and box.x1 <= figure.bbox.width + _EDGE, (text, box)
            assert box.y0 >= -_EDGE and box.y1 <= figure.bbox.height + _EDGE, (text, box)


def _is_drawn(axes: Axes, label: Text, name: str) -> bool:
    """Tell the labels within the limits of an axis; matplotlib makes one more at either end."""
    low, high = sorted(getattr(axes, f"get_{name}lim")())
    return label.get_visible() and low <= label.get_position()["xy".index(name)] <= high
