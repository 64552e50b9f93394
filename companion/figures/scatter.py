"""Scatter plots of models: styles of model families, the least-squares line, a text in the corner."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from companion.figures import parts, style

_TUNED = "Llama-2 and models tuned from it"
_GROUPS = {"GPT-2": "GPT-2", "Llama-2": _TUNED, "Vicuna": _TUNED, "Orca-2": _TUNED}
"""Families with a style of their own, and the group of each; all others share one style."""
_OTHERS = "other families"


def families(axes: Axes, table: pd.DataFrame, x: str, y: str) -> None:
    """Draw models as dots, two groups of families with styles of their own."""
    # A family may have a generation after its name.
    groups = table.family.map(lambda family: _GROUPS.get(family.split(" (")[0], _OTHERS))
    for place, name in enumerate((_OTHERS, *dict.fromkeys(_GROUPS.values()))):
        part, ink = table[groups == name], style.colour(style.NULL)
        properties = {"markersize": 4, "alpha": 0.7}
        if name != _OTHERS:
            ink, properties = style.dataset_colour(name, place - 1), {"marker": style.marker(place), "alpha": 0.9}
        if len(part):
            parts.points(axes, part[x], part[y], ink, label=name, **properties)


def line(axes: Axes, x: ArrayLike, y: ArrayLike, degree: int = 1, **properties: object) -> float:
    """Draw the least-squares line through points, or a curve of a higher degree, and return their correlation."""
    ends = np.linspace(np.min(x), np.max(x), 2 if degree == 1 else 100)
    properties = {"color": style.colour("text"), "linewidth": 1, "zorder": 0} | properties
    axes.plot(ends, np.polyval(np.polyfit(x, y, degree), ends), **properties)
    return float(np.corrcoef(x, y)[0, 1])


def write(axes: Axes, text: str, place: tuple[float, float] = (0.04, 0.97), **properties: object) -> None:
    """Write a short text into a panel, by default at its top left."""
    axes.annotate(text, place, xycoords="axes fraction", **({"va": "top", "fontsize": 8.5} | properties))
