"""Axes that several subjects share: training steps with a step 0, and logarithms with readable numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from coupling_lib.figures import style

_MOST_LABELS = 9


def step_axis(axes: Axes, steps: Sequence[int]) -> np.ndarray:
    """Makes the x axis one of training steps: logarithmic, with a place of its own for step 0."""
    steps = np.asarray(steps)
    places = np.log10(np.maximum(steps, 1))
    positive = places[steps > 0]
    gap = max(0.35, 0.16 * np.ptp(positive))
    places[steps == 0] = positive[0] - gap
    labelled = thinned(len(steps))
    axes.set_xticks(places[labelled], [short_step(steps[at]) for at in labelled])
    margin = 0.04 * np.ptp(places)
    axes.set_xlim(places[0] - margin, places[-1] + margin)
    axes.set_xlabel("training step (log scale)")
    if steps[0] == 0:
        _draw_break(axes, positive[0] - gap / 2, 0.012 * np.ptp(places))
    return places


def short_step(step: int) -> str:
    """Writes a step as an axis does: thousands with a k."""
    if step < 1000:
        return str(step)
    return f"{step / 1000:.1f}".removesuffix(".0") + "k" if step < 10_000 else f"{step / 1000:.0f}k"


def thinned(count: int) -> list[int]:
    """Chooses which of many steps are labelled."""
    stride = -(-count // _MOST_LABELS)
    evenly = range(count - 1, -1, -stride)
    return sorted({0, *(at for at in evenly if at >= stride or at == 0)})


def log_axis(axes: Axes) -> None:
    """Makes the y axis of a panel logarithmic, with plain numbers, and enough of them where little is covered."""
    if not 0 < axes.dataLim.minposy < np.inf:
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = np.log10(high / low)
    subs = (1,) if decades > 2.5 else (1, 2, 5) if decades > 0.9 else (1, 1.5, 2, 3, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_break(axes: Axes, x: float, half: float) -> None:
    across = axes.get_xaxis_transform()
    axes.plot(
        [x - half, x + half], [0, 0], color=style.colour("page"), linewidth=3, transform=across, clip_on=False, zorder=5
    )
    for place in (x - half, x + half):
        ends = [place - half / 2, place + half / 2]
        axes.plot(
            ends, [-0.02, 0.02], color=style.colour("text"), linewidth=0.8, transform=across, clip_on=False, zorder=6
        )
