r"""How coupling is constructed, as a drawing: the stream, the blocks, their Jacobians, and what is compared with what.

Green stands for the block whose Jacobian is measured, $l$; purple for the one whose singular vectors are used, $l'$.
The small matrices are no symbols: they are computed, from directions drawn at random, as their labels say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from coupling_lib.figures import style

_HEIGHT = 5.1
_TILE = 0.6
_SIZE = 7
"""Rows and columns of the small matrices."""

COUPLINGS = {
    "Depth coupling": ("one token, two blocks", (3, 3, 0), (3, 3, 2)),
    "Self-coupling": ("two tokens, one block or two", (1, 1, 1), (3, 3, 1)),
    "Context coupling, fixed input": ("from one token into two", (0, 1, 1), (0, 3, 1)),
    "Context coupling, fixed output": ("from two tokens into one", (0, 3, 1), (2, 3, 1)),
}
"""What is compared: a line on it, and the two Jacobians as (token varied, token read, block), all from 0."""


def construction() -> Figure:
    """Draws the construction of the coupling matrix, and the pairs of Jacobians it is applied to (paper, figure 2)."""
    figure = Figure(figsize=(style.WIDTH, _HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, style.WIDTH), ylim=(0, _HEIGHT))
    axes.set_axis_off()
    _draw_stream(axes, 0.32, 2.5)
    _draw_equations(axes, 2.62, 2.5)
    width = (style.WIDTH - 0.2) / len(COUPLINGS)
    for index, (title, (line, measured, used)) in enumerate(COUPLINGS.items()):
        _draw_lattice(axes, 0.1 + index * width, width, title, line, measured, used)
    return figure


def example_matrices(seed: int = 1) -> dict[str, np.ndarray]:
    """Computes the matrices of the drawing: two Jacobians with the same singular vectors, and one with others."""
    rng = np.random.default_rng(seed)
    U, V, other_U, other_V = (np.linalg.qr(rng.standard_normal((_SIZE, _SIZE)))[0] for _ in range(4))
    S, values = np.diag(np.linspace(1, 0.35, _SIZE)), np.diag(np.linspace(0.9, 0.5, _SIZE))
    J1 = U @ values @ V.T
    uncoupled = U.T @ (other_U @ values @ other_V.T) @ V
    return {"U": U, "S": S, "V": V, "J2": U @ S @ V.T, "J1": J1, "coupled": U.T @ J1 @ V, "uncoupled": uncoupled}


def example_table() -> pd.DataFrame:
    """Tabulates the matrices of the drawing."""
    rows = [
        (name, i + 1, j + 1, entry)
        for name, matrix in example_matrices().items()
        for (i, j), entry in np.ndenumerate(matrix)
    ]
    return pd.DataFrame(rows, columns=["matrix", "row", "column", "entry"])


def _inks() -> tuple[str, str]:
    """Colours of the block whose Jacobian is measured, and of the one whose vectors are used."""
    return style.dataset_colour("", 0), style.dataset_colour("", 1)


def _draw_stream(axes: Axes, x: float, y: float) -> None:
    """The residual stream of four tokens through two blocks, and the Jacobian of each block at the last token."""
    measured, used = _inks()
    places = x + 0.42 * np.arange(4)
    text = style.colour("text")
    for place in places:
        last = place == places[-1]
        look = {"color": text, "linewidth": 1.6 if last else 0.9, "alpha": 1 if last else 0.45}
        ends = (place, y + 2.28), (place, y + 0.2)
        axes.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "shrinkA": 0, **look}, zorder=3 if last else 1)
    for bottom, name, ink in ((y + 0.52, "$l$", measured), (y + 1.4, "$l'$", used)):
        box = (places[0] - 0.2, bottom), places[-1] - places[0] + 0.4, 0.42
        shape = {"boxstyle": "round,pad=0,rounding_size=0.09", "linewidth": 1.2, "zorder": 2}
        axes.add_patch(FancyBboxPatch(*box, facecolor=style.colour("page"), edgecolor=ink, **shape))
        axes.add_patch(FancyBboxPatch(*box, facecolor=ink, edgecolor="none", alpha=0.18, **(shape | {"linewidth": 0})))
        axes.text(places[1] + 0.21, bottom + 0.21, f"block {name}", ha="center", va="center_baseline", zorder=4)
        ends = (places[-1], bottom - 0.13), (places[-1], bottom + 0.55)
        _draw_jacobian(axes, *ends, ink, bend=0.75)
        axes.text(places[-1] + 0.36, bottom + 0.21, f"$J_{{{name.strip('$')}}}$", va="center_baseline", color=ink)
    for place, name in zip(places, ("$x_1$", "$x_2$", r"$\cdots$", "$x_n$"), strict=True):
        axes.text(place, y + 0.04, name, ha="center", va="center_baseline")
    axes.text(x - 0.2, y + 2.42, "residual stream, a line per token", fontsize=8, va="center_baseline")


def _draw_equations(axes: Axes, x: float, y: float) -> None:
    """The decomposition of one Jacobian, and its vectors around the other Jacobian."""
    measured, used = _inks()
    parts = example_matrices()
    upper, lower = y + 1.6, y + 0.32
    step = _TILE + 0.2
    axes.text(x, upper + 0.74, "The singular vectors of one block ...", fontsize=9, fontweight="bold")
    axes.text(x, lower + 0.74, "... around the Jacobian of another", fontsize=9, fontweight="bold")
    _draw_tile(axes, x, upper, parts["J2"], r"$J_{l'}$", used)
    _sign(axes, x + _TILE + 0.175, upper, "=")
    for index, (name, label) in enumerate((("U", "$U_{l'}$"), ("S", "$S_{l'}$"), ("V", r"$V_{l'}^{\top}$"))):
        matrix = parts[name].T if name == "V" else parts[name]
        _draw_tile(axes, x + _TILE + 0.35 + index * step, upper, matrix, label, used)
    for index, (matrix, label, ink) in enumerate(
        ((parts["U"].T, r"$U_{l'}^{\top}$", used), (parts["J1"], "$J_l$", measured), (parts["V"], "$V_{l'}$", used))
    ):
        _draw_tile(axes, x + index * step, lower, matrix, label, ink)
    place = x + 3 * step - 0.2
    _sign(axes, place + 0.175, lower, "=")
    text = style.colour("text")
    top = np.abs(parts["coupled"]).max()
    _draw_tile(axes, place + 0.35, lower, parts["coupled"], "$A_{ll'}$  coupled", text, top)
    _sign(axes, place + 0.35 + _TILE + 0.3, lower, "or")
    _draw_tile(axes, place + 0.35 + _TILE + 0.6, lower, parts["uncoupled"], "$A_{ll'}$  not coupled", text, top)
    key = (used, "vectors of block $l'$"), (measured, "Jacobian of block $l$")
    for row, (ink, meaning) in enumerate(key):
        spot = x + _TILE + 0.35 + 3 * step + 0.05, upper + 0.38 - 0.24 * row
        axes.add_patch(Rectangle((spot[0], spot[1] - 0.05), 0.1, 0.1, facecolor=ink, edgecolor="none"))
        axes.text(spot[0] + 0.16, spot[1], meaning, fontsize=8, va="center_baseline")


def _draw_tile(
    axes: Axes, x: float, y: float, matrix: np.ndarray, label: str, ink: str, top: float | None = None
) -> None:
    """A small matrix without its signs, framed in the colour of its block, its name underneath."""
    size = np.abs(matrix) / (top or np.abs(matrix).max())
    cell = _TILE / _SIZE
    colours = style.ink()(size * 0.85)
    for i, j in np.ndindex(size.shape):
        corner = (x + j * cell, y + _TILE - (i + 1) * cell)
        axes.add_patch(Rectangle(corner, cell, cell, facecolor=colours[i, j], edgecolor=colours[i, j], linewidth=0.2))
    axes.add_patch(Rectangle((x, y), _TILE, _TILE, facecolor="none", edgecolor=ink, linewidth=1.5))
    axes.text(x + _TILE / 2, y - 0.15, label, ha="center", va="center_baseline", fontsize=9)


def _sign(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y + _TILE / 2, text, ha="center", va="center_baseline", fontsize=11 if text == "=" else 9)


def _draw_lattice(
    axes: Axes,
    x: float,
    width: float,
    title: str,
    line: str,
    measured: tuple[int, int, int],
    used: tuple[int, int, int],
) -> None:
    """Four tokens and three blocks, and the two Jacobians that are compared."""
    step, bottom, rise = 0.34, 0.5, 0.37
    first = x + (width - 3 * step) / 2
    faint = style.colour("faint")
    for level in range(3):
        low = bottom + level * rise
        corner = (first - 0.16, low + 0.12)
        shape = FancyBboxPatch(corner, 3 * step + 0.32, rise - 0.24, boxstyle="round,pad=0,rounding_size=0.05")
        shape.set(facecolor=faint, edgecolor="none", alpha=0.75)
        axes.add_patch(shape)
    for token in range(4):
        place = first + token * step
        axes.plot([place, place], [bottom, bottom + 3 * rise], color=style.colour("mask"), linewidth=0.8, zorder=1)
        axes.plot([place] * 4, bottom + rise * np.arange(4), "o", color=style.colour("mask"), markersize=3, zorder=2)
    inks = _inks()
    for (start, end, block), ink in zip((measured, used), inks, strict=True):
        ends = [(first + token * step, bottom + level * rise) for token, level in ((start, block), (end, block + 1))]
        _draw_jacobian(axes, *ends, ink, bend=0)
    axes.text(x + width / 2, 1.9, _broken(title), ha="center", va="center", fontweight="bold", fontsize=8.5)
    axes.text(x + width / 2, 0.2, line, ha="center", va="center_baseline", fontsize=8)


def _draw_jacobian(axes: Axes, start: Sequence[float], end: Sequence[float], ink: str, bend: float) -> None:
    """An arrow from the state that is varied to the state that is read, with a dot on each."""
    style_of_arrow = "-|>,head_length=3.2,head_width=1.7"
    arrow = FancyArrowPatch(
        start, end, arrowstyle=style_of_arrow, connectionstyle=f"arc3,rad={bend}", color=ink,
        linewidth=1.8, shrinkA=2.5, shrinkB=2.5, zorder=5,
    )  # fmt: skip
    axes.add_patch(arrow)
    axes.plot(*zip(start, end, strict=True), "o", color=ink, markersize=4.2, zorder=6, linestyle="none")


def _broken(title: str) -> str:
    return title.replace(", ", ",\n")
