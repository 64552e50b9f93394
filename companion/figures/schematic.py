r"""Drawing of the construction of coupling: the stream, the blocks, their Jacobians, and what is compared with what.

Green stands for the block whose Jacobian is measured, $l$; purple for the one whose singular vectors are used, $l'$.
The small matrices are no symbols: they are computed, from directions drawn at random, as their labels say.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from companion.figures import parts, style

_ABOVE, _BELOW = 2.7, 2.05
"""Heights of the two rows of the drawing, in inches, as all its lengths are."""
_TILE = 0.5
_STEP = 0.34
_SIZE = 7
"""Rows and columns of the small matrices."""

COUPLINGS = {
    "Depth coupling": ("one token, two blocks", (3, 3, 0), (3, 3, 2)),
    "Self-coupling": ("two tokens, one block or two", (1, 1, 1), (3, 3, 1)),
    "Context coupling, fixed input": ("from one token into two", (0, 1, 1), (0, 3, 1)),
    "Context coupling, fixed output": ("from two tokens into one", (0, 3, 1), (2, 3, 1)),
}
"""Comparisons: a label on a line, and the two Jacobians as (token varied, token read, block), all from 0."""


def take_construction(seed: int = 1) -> xr.DataArray:
    """Compute the matrices of the drawing: two Jacobians with the same singular vectors, and one with others."""
    rng = np.random.default_rng(seed)
    U, V, other_U, other_V = (np.linalg.qr(rng.standard_normal((_SIZE, _SIZE)))[0] for _ in range(4))
    S, values = np.diag(np.linspace(1, 0.35, _SIZE)), np.diag(np.linspace(0.9, 0.5, _SIZE))
    J1 = U @ values @ V.T
    uncoupled = U.T @ (other_U @ values @ other_V.T) @ V
    found = {"U": U, "S": S, "V": V, "J2": U @ S @ V.T, "J1": J1, "coupled": U.T @ J1 @ V, "uncoupled": uncoupled}
    places = np.arange(_SIZE) + 1
    coords = {"matrix": list(found), "row": places, "column": places}
    return xr.DataArray(list(found.values()), coords, name="entry", attrs={"origin": "a drawing; no model is measured"})


def draw_construction(matrices: xr.DataArray) -> Figure:
    """Draw how the coupling matrix is made, and the pairs of Jacobians it is applied to (the paper's figure 2)."""
    figure, wide = Figure(figsize=(style.WIDTH, _ABOVE + _BELOW)), style.NARROW - 0.1
    _draw_stream(_place(figure, 0.3, 0, 2.3, _ABOVE))
    named = {str(name): matrices.sel(matrix=name).values for name in matrices.matrix.values}
    _draw_equations(_place(figure, style.WIDTH - wide, 0, wide, _ABOVE), named)
    width = style.WIDTH / len(COUPLINGS)
    for index, (title, (line, *jacobians)) in enumerate(COUPLINGS.items()):
        axes = _place(figure, index * width, _ABOVE, width, _BELOW)
        _draw_lattice(axes, width / 2 - 1.5 * _STEP, jacobians)
        broken = title.replace(", ", ",\n")
        axes.text(width / 2, 1.82, broken, ha="center", va="center", fontweight="bold", fontsize=8.5)
        axes.text(width / 2, 0.12, line, ha="center", va="center_baseline", fontsize=8)
    return figure


def _place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes to a figure at a position in inches from its lower left corner."""
    high = figure.get_figheight()
    axes = figure.add_axes((left / style.WIDTH, 1 - (top + height) / high, width / style.WIDTH, height / high))
    axes.set(xlim=(0, width), ylim=(0, height))
    parts.blank(axes)
    return axes


def _inks() -> tuple[str, str]:
    """Return the colours of the block whose Jacobian is measured, and of the one whose vectors are used."""
    return style.dataset_colour("", 0), style.dataset_colour("", 1)


def _draw_stream(axes: Axes, x: float = 0.35, y: float = 0.15) -> None:
    """Draw the residual stream of four tokens through two blocks, and the Jacobian of each block at the last token."""
    measured, used = _inks()
    places = x + 0.42 * np.arange(4)
    for place, name in zip(places, ("$x_1$", "$x_2$", r"$\cdots$", "$x_n$"), strict=True):
        last = place == places[-1]
        properties = {"color": style.colour("text"), "linewidth": 1.6 if last else 0.9, "alpha": 1 if last else 0.45}
        arrow = {"arrowstyle": "-|>", "shrinkA": 0, **properties}
        axes.annotate("", (place, y + 2.28), (place, y + 0.2), arrowprops=arrow, zorder=3 if last else 1)
        axes.text(place, y + 0.04, name, ha="center", va="center_baseline")
    for bottom, name, ink in ((y + 0.52, "l", measured), (y + 1.4, "l'", used)):
        box = (places[0] - 0.2, bottom), places[-1] - places[0] + 0.4, 0.42
        shape = {"boxstyle": "round,pad=0,rounding_size=0.09", "zorder": 2}
        axes.add_patch(FancyBboxPatch(*box, facecolor=style.colour("page"), edgecolor=ink, linewidth=1.2, **shape))
        axes.add_patch(FancyBboxPatch(*box, facecolor=ink, edgecolor="none", alpha=0.18, linewidth=0, **shape))
        axes.text(places[1] + 0.21, bottom + 0.21, f"block ${name}$", ha="center", va="center_baseline", zorder=4)
        _draw_jacobian(axes, (places[-1], bottom - 0.13), (places[-1], bottom + 0.55), ink, bend=0.75)
        axes.text(places[-1] + 0.36, bottom + 0.21, f"$J_{{{name}}}$", va="center_baseline", color=ink)
    axes.text(x - 0.2, y + 2.42, "residual stream, a line per token", fontsize=8, va="center_baseline")


def _draw_equations(axes: Axes, found: dict[str, np.ndarray], x: float = 0.04, y: float = 0.15) -> None:
    """Draw the decomposition of one Jacobian, and its vectors around the other Jacobian."""
    (measured, used), text = _inks(), style.colour("text")
    upper, lower, step = y + 1.6, y + 0.32, _TILE + 0.14
    right, end = x + _TILE + 0.3, x + 3 * step - 0.14
    top = np.abs(found["coupled"]).max()
    for place, row, matrix, label, ink, largest in (
        (x, upper, found["J2"], r"$J_{l'}$", used, None),
        (right, upper, found["U"], "$U_{l'}$", used, None),
        (right + step, upper, found["S"], "$S_{l'}$", used, None),
        (right + 2 * step, upper, found["V"].T, r"$V_{l'}^{\top}$", used, None),
        (x, lower, found["U"].T, r"$U_{l'}^{\top}$", used, None),
        (x + step, lower, found["J1"], "$J_l$", measured, None),
        (x + 2 * step, lower, found["V"], "$V_{l'}$", used, None),
        (end + 0.32, lower, found["coupled"], "$A_{ll'}$  coupled", text, top),
        (end + 0.85 + _TILE, lower, found["uncoupled"], "$A_{ll'}$  not coupled", text, top),
    ):
        _draw_tile(axes, place, row, matrix, label, ink, largest)
    signs = (x + _TILE + 0.15, upper, "="), (end + 0.16, lower, "="), (end + 0.585 + _TILE, lower, "or")
    for place, row, sign in signs:
        size = 11 if sign == "=" else 9
        axes.text(place, row + _TILE / 2, sign, ha="center", va="center_baseline", fontsize=size)
    heads = (upper, "The singular vectors of one block ..."), (lower, "... around the Jacobian of another")
    for row, head in heads:
        axes.text(x, row + 0.74, head, fontsize=9, fontweight="bold")
    for row, ink, meaning in ((0.38, used, "vectors of block $l'$"), (0.14, measured, "Jacobian of block $l$")):
        place, height = right + 3 * step - 0.06, upper + row
        axes.add_patch(Rectangle((place, height - 0.05), 0.1, 0.1, facecolor=ink, edgecolor="none"))
        axes.text(place + 0.16, height, meaning, fontsize=8, va="center_baseline")


def _draw_tile(
    axes: Axes, x: float, y: float, matrix: np.ndarray, label: str, ink: str, top: float | None = None
) -> None:
    """Draw a small matrix without its signs, framed in the colour of its block, its name underneath."""
    size = np.abs(matrix) / (top or np.abs(matrix).max())
    cell = _TILE / _SIZE
    colours = style.ink()(size * 0.85)
    for i, j in np.ndindex(size.shape):
        corner = (x + j * cell, y + _TILE - (i + 1) * cell)
        axes.add_patch(Rectangle(corner, cell, cell, facecolor=colours[i, j], edgecolor=colours[i, j], linewidth=0.2))
    axes.add_patch(Rectangle((x, y), _TILE, _TILE, facecolor="none", edgecolor=ink, linewidth=1.5))
    axes.text(x + _TILE / 2, y - 0.15, label, ha="center", va="center_baseline", fontsize=9)


def _draw_lattice(axes: Axes, first: float, jacobians: Sequence[tuple[int, int, int]]) -> None:
    """Draw four tokens and three blocks, and the two Jacobians that are compared."""
    bottom, rise = 0.42, 0.37
    for level in range(3):
        box = (first - 0.16, bottom + level * rise + 0.12), 3 * _STEP + 0.32, rise - 0.24
        properties = {"facecolor": style.colour("faint"), "edgecolor": "none", "alpha": 0.75}
        axes.add_patch(FancyBboxPatch(*box, boxstyle="round,pad=0,rounding_size=0.05", **properties))
    for place in first + _STEP * np.arange(4):
        axes.plot([place, place], [bottom, bottom + 3 * rise], color=style.colour("mask"), linewidth=0.8, zorder=1)
        axes.plot([place] * 4, bottom + rise * np.arange(4), "o", color=style.colour("mask"), markersize=3, zorder=2)
    for (start, end, block), ink in zip(jacobians, _inks(), strict=True):
        ends = [(first + token * _STEP, bottom + level * rise) for token, level in ((start, block), (end, block + 1))]
        _draw_jacobian(axes, *ends, ink, bend=0)


def _draw_jacobian(axes: Axes, start: Sequence[float], end: Sequence[float], ink: str, bend: float) -> None:
    """Draw an arrow from the state that is varied to the state that is read, with a dot on each."""
    properties = {"color": ink, "linewidth": 1.8, "shrinkA": 2.5, "shrinkB": 2.5, "zorder": 5}
    head, curve = "-|>,head_length=3.2,head_width=1.7", f"arc3,rad={bend}"
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle=head, connectionstyle=curve, **properties))
    axes.plot(*zip(start, end, strict=True), "o", color=ink, markersize=4.2, zorder=6, linestyle="none")
