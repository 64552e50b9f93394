"""Draws the pictures of the front page and of the idea: a public decoder, two of its blocks, and two of a toy."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import coupling_lib
from companion.figures import depth, parts, style
from companion.figures.show import show
from companion.tables import origin
from companion.tables.arrays import side_by_side

# How strongly the toy's two blocks respond along their three directions.
FIRST, SECOND = (3.0, 2.0, 1.0), (2.6, 1.8, 1.0)
CASES = ("the same directions", "two of them turned", "unrelated directions")
# A view from above and from the side, so that no axis of the toy hides another.
_VIEW = np.array([[-0.72, 0.69, 0.0], [-0.29, -0.31, 0.9]])
_READING, _K = "normalized_miscoupling", 10
PAIR = (12, 14)
"""Whose Jacobian and whose singular vectors the coupling matrix is of, counted from 1: a clear diagonal."""


def take_toy(seed: int = 3, turn: float = 30.0) -> xr.Dataset:
    """Compute the toy: the second block's input `vectors` in the axes of the first, and the matrix A of both."""
    angle, rng = np.deg2rad(turn), np.random.default_rng(seed)
    turned = np.eye(3)
    turned[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    drawn = [np.linalg.qr(rng.standard_normal((3, 3)))[0] for _ in range(2)]
    J = torch.diag(torch.tensor(FIRST, dtype=torch.float64))
    bases = [(np.eye(3), np.eye(3)), (turned, turned), drawn]
    others = [torch.from_numpy(U @ np.diag(SECOND) @ V.T) for U, V in bases]
    A = np.stack([coupling_lib.coupling_matrix(J, coupling_lib.top_triplets(other, 3), 3).numpy() for other in others])
    dims, coords = ("case", "row", "column"), {"case": list(CASES), "row": [1, 2, 3], "column": [1, 2, 3]}
    vectors = (dims, np.stack([V for _, V in bases]))
    return xr.Dataset({"vectors": vectors, "A": (dims, A), "coupling": ("case", _coupling(A))}, coords)


def take_pair(both: xr.Dataset, blocks: tuple[int, int] = PAIR) -> xr.DataArray:
    """Select |A| of a Jacobian and the vectors of another block, in every network, on the scale of that Jacobian."""
    first, second = blocks
    drawn = depth.take_matrices(both, sorted([first - 1, second - 1]), _K)
    pair = drawn.sel(block_jacobian=first, block_vectors=second)
    return pair.assign_coords(coupling=("network", _coupling(pair.values)))


def draw_toy(toy: xr.Dataset) -> Figure:
    """Draw the directions of both blocks, arrows as long as the responses, and under them the matrix A."""
    figure = Figure(figsize=(style.WIDTH, 4.3), layout="constrained")
    rows = figure.subplots(2, len(CASES), height_ratios=(0.85, 1))
    for (above, below), case in zip(rows.T, toy.case.values, strict=True):
        one = toy.sel(case=case)
        above.set_title(str(case))
        _arrows(above, np.eye(3), FIRST, style.dataset_colour("", 0), 2.6)
        _arrows(above, one.vectors.values, SECOND, style.dataset_colour("", 1), 1.4)
        above.set(xlim=(-2.7, 2.7), ylim=(-1.3, 1.9), aspect="equal")
        parts.blank(above)
        _matrix_panel(below, np.abs(one.A.values), max(FIRST))
        below.set_xlabel(f"coupling {float(one.coupling):.2f}", fontsize=10)
    for axes, colour, name in zip(rows[0][:2], (0, 1), ("first block", "second block"), strict=True):
        ink = style.dataset_colour("", colour)
        axes.plot([], [], color=ink, linewidth=2.6 - 1.2 * colour, label=name)
    rows[1][0].set_ylabel("$|A|$")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def draw_pair(pair: xr.DataArray) -> Figure:
    """Draw |A| of one pair of blocks in each network on one scale, with the coupling that it amounts to."""
    figure, row = parts.panels(list(pair.network.values), 1.15, square=True)
    # The strongest responses would leave the rest of the diagonal in the dark.
    most = float(pair.quantile(0.98))
    for axes, network in zip(row, pair.network.values, strict=True):
        one = pair.sel(network=network)
        image = axes.imshow(one.values, cmap=style.ink(), vmin=0, vmax=most, interpolation="none")
        for place in range(_K):
            axes.add_patch(Rectangle((place - 0.5, place - 0.5), 1, 1, fill=False, edgecolor=style.colour("text")))
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(f"coupling {float(one.coupling):.2f}", fontsize=10)
    first, second = int(pair.block_jacobian), int(pair.block_vectors)
    label = rf"$|A|\;/\;\sigma_1$: Jacobian of block {first}, singular vectors of block {second}, $K={_K}$"
    parts.colour_bar(row, image, label, extend="max")
    return figure


def idea_toy() -> str:
    """Write the toy as a part of a page."""
    return _part(
        draw_toy,
        take_toy(),
        name="idea-toy",
        caption="Two blocks in three dimensions. An arrow points in a direction to which a block responds; its "
        "length is the response. Below, |A|: the first block's Jacobian in the directions of the second. By chance "
        "coupling is about 0.18.",
        provenance="a drawing; computed from directions chosen for it, no model is measured · make book",
    )


def idea_pair() -> str:
    """Write two real blocks before and after training as a part of a page."""
    both = _before_and_after()
    pair = take_pair(both)
    return _part(
        draw_pair,
        pair,
        name="idea-pair",
        caption="The coupling matrix of blocks {} and {} of SmolLM2-135M-Instruct (Q4_1) at the last token of "
        "one prompt, before and after training: a pair with a clear diagonal (outlined). The colour scale ends at the "
        "98th percentile.".format(*PAIR),
        provenance=origin.line(*both.records, command="make book"),
    )


def shared_directions() -> str:
    """Write the picture of the directions that blocks of a public decoder share, for the front page."""
    both = _before_and_after()
    shared = coupling_lib.shared_part(both)
    null = coupling_lib.null_of(shared.sel(network="trained"), _READING)
    return _part(
        depth.draw_graph,
        # The finding first: on a phone it stands above what it is compared with.
        depth.take_graph(shared, _READING, _K, null).sel(network=["trained", "untrained"]),
        beyond=True,
        name="coupling-before-and-after-training",
        caption="The 30 blocks of SmolLM2-135M-Instruct (Q4_1), after and before training. A line joins two blocks "
        f"that share their {_K} strongest directions more than by chance; wider lines mean more. Uniform "
        "scaling is left out: it needs no shared direction. Before training the lines are too thin to be seen.",
        provenance=origin.line(*both.records, command="make book"),
    )


@functools.cache
def _before_and_after() -> xr.Dataset:
    """Measure the public decoder with fresh and with its own weights, or read that from the store."""
    prompts, networks = coupling_lib.load_prompts(n=12), {}
    for name in ("untrained", "trained"):
        model = coupling_lib.load_model("smollm2-135m", untrained=name == "untrained")
        networks[name] = coupling_lib.sweep(coupling_lib.measure_depth, model, prompts, ks=(_K,), variables=depth.DRAWN)
    return side_by_side(**networks)


def _coupling(matrices: np.ndarray) -> list[float]:
    """Return 1 minus the normalised mis-coupling of each matrix."""
    return [1 - float(coupling_lib.miscoupling(torch.from_numpy(A.copy()), normalized=True)) for A in matrices]


def _arrows(axes: Axes, vectors: np.ndarray, lengths: tuple[float, ...], ink: str, width: float) -> None:
    """Draw three arrows of space on the page, each away from its origin and, thinner, to the other side."""
    for vector, length in zip(vectors.T, lengths, strict=True):
        end = _VIEW @ (vector * length * 0.82)
        arrow = {"arrowstyle": "-|>", "color": ink, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, (0, 0), arrowprops=arrow)


def _matrix_panel(axes: Axes, values: np.ndarray, top: float) -> None:
    """Draw a matrix without axes, with its numbers inside."""
    axes.imshow(values, cmap=style.ink(), vmin=0, vmax=top, interpolation="none")
    axes.set(xticks=[], yticks=[])
    for place in np.ndindex(values.shape):
        share = values[place] / top
        # The map runs from the page's colour to the strongest contrast with it.
        ink = style.colour("page") if share > 0.45 else style.colour("text")
        axes.text(place[1], place[0], f"{values[place]:.1f}", ha="center", va="center", color=ink, fontsize=10)


def _part(draw: Callable[..., Figure], data: xr.Dataset | xr.DataArray, **given: object) -> str:
    return f"```{{raw}} html\n{show(draw, data, **given).data}\n```\n"
