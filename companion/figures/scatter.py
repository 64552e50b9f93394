"""Points of models: families with their look, the line through them, a word in the corner."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from companion.figures import parts, style


def families(axes: Axes, table: pd.DataFrame, x: str, y: str) -> None:
    """Draw models as dots that show their family."""
    for family, part in table.groupby(table.family.map(_family)):
        ink, marker = style.family_style(family)
        parts.points(axes, part[x], part[y], ink, marker=marker, alpha=0.85, label=family)


def _family(name: str) -> str:
    """Return a family without its generation; "other", which stands last, for those without a look of their own."""
    root = name.split(" (")[0]
    return root if style.family_style(root) != style.family_style("other") else "other"


def family_legend(figure: Figure, row: Sequence[Axes], table: pd.DataFrame, rows: int) -> None:
    """Name each family once under a row of panels, in several rows."""
    columns = -(-table.family.map(_family).nunique() // rows)
    parts.legend_under(figure, row, columns=columns, columnspacing=1.2, handletextpad=0.2, fontsize=8)


def line(axes: Axes, x: ArrayLike, y: ArrayLike, degree: int = 1, **look: object) -> float:
    """Draw the least-squares line through points, or a curve of a higher degree, and give their correlation."""
    ends = np.linspace(np.min(x), np.max(x), 2 if degree == 1 else 100)
    look = {"color": style.colour("text"), "linewidth": 1, "zorder": 0} | look
    axes.plot(ends, np.polyval(np.polyfit(x, y, degree), ends), **look)
    return float(np.corrcoef(x, y)[0, 1])


def write(axes: Axes, text: str, place: tuple[float, float] = (0.04, 0.97), **look: object) -> None:
    """Write a short text into a panel, by default at its top left."""
    axes.annotate(text, place, xycoords="axes fraction", **({"va": "top", "fontsize": 8.5} | look))
