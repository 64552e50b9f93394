r"""One vision transformer on images, drawn: matrices beside the image, pairs of tokens, stochastic depth left on.

What each figure plots is a table of `coupling_lib.figures.vision_model_data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from coupling_lib.figures import style
from coupling_lib.figures.curves import mean_interval
from coupling_lib.figures.depth_data import coupling_label, relative_matrices
from coupling_lib.figures.panels import block_ticks, colour_bar, draw_grids
from coupling_lib.figures.vision_model_data import drop_path_table, relations_table

_DASHES = (4, 3)


def image_and_matrices(
    picture: np.ndarray,
    networks: Mapping[str, xr.Dataset],
    blocks: Sequence[int],
    k: int,
    patch: tuple[int, int, int, int] | None = None,
) -> Figure:
    """Draws an image and beside it the coupling matrices of pairs of blocks (the paper's figure 3, for an image)."""
    count = len(networks)
    image_side, left, gap, bottom, top = 1.35, 0.5, 0.42, 1.12, 0.3
    side = min(4.2, (style.WIDTH - image_side - left - gap * (count - 1) - 0.25) / count)
    height = bottom + side + top
    figure = Figure(figsize=(style.WIDTH, height))

    def placed(x: float, y: float, extent: float) -> Axes:
        return figure.add_axes((x / style.WIDTH, y / height, extent / style.WIDTH, extent / height))

    axes = placed(0.05, bottom + side - image_side, image_side)
    axes.imshow(picture, cmap="gray" if picture.ndim == 2 else None, vmin=0, vmax=1, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("Image", pad=6)
    if patch is not None:
        x, y, wide, high = patch
        edge = style.dataset_colour("", 0)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), wide, high, fill=False, edgecolor=edge, linewidth=2))
    panels = [placed(0.05 + image_side + left + i * (side + gap), bottom, side) for i in range(count)]
    image, centres = draw_grids(
        panels,
        [relative_matrices(dataset, blocks, k) for dataset in networks.values()],
        scaled=~np.eye(len(blocks), dtype=bool),
    )
    for name, panel in zip(networks, panels, strict=True):
        block_ticks(panel, centres, blocks)
        panel.set_title(name.capitalize() if name in (style.TRAINED, style.UNTRAINED) else name, pad=6)
        panel.set_xlabel("block $l'$  (singular vectors)")
    panels[0].set_ylabel("block $l$  (Jacobian)")
    bar = colour_bar(figure, image, extend="max")
    bar.set_label(rf"$|A_{{ll'}}|\;/\;\sigma_1(J_l)$  with  $A_{{ll'}}=U_{{l'}}^{{\top}}J_l\,V_{{l'}}$,  $K={k}$")
    return figure


def relations(networks: Mapping[str, xr.Dataset], nulls: xr.Dataset, variant: str, k: int) -> Figure:
    """Draws coupling at single tokens and between tokens in both orders."""
    table = relations_table(networks, variant)
    names = list(nulls.relation.values)
    figure = Figure(figsize=(style.WIDTH, 3.4))
    axes = figure.add_axes((0.085, 0.235, 0.905, 0.735))
    shifts = np.linspace(-0.2, 0.2, len(networks)) if len(networks) > 1 else [0.0]
    for shift, network in zip(shifts, networks, strict=True):
        ink = style.dataset_colour(network, 0)
        for place, relation in enumerate(names):
            chosen = table[(table.network == network) & (table.relation == relation)]
            _draw_strip(axes, place + shift, chosen.coupling.to_numpy(), ink)
    grey = style.colour(style.NULL)
    for place, relation in enumerate(names):
        chance = 1 - float(nulls["value"].sel(relation=relation).mean())
        axes.plot([place - 0.42, place + 0.42], [chance, chance], color=grey, linewidth=1.2, dashes=_DASHES)
    axes.set_xticks(range(len(names)), [name.replace(" to ", r" $\to$ ") for name in names])
    axes.set_xlim(-0.55, len(names) - 0.45)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(coupling_label(variant, k))
    axes.set_xlabel(r"token, or $t_1\to t_2$")
    axes.grid(axis="y")
    handles = [Line2D([], [], color=style.dataset_colour(n, 0), marker="o", markersize=4, label=n) for n in networks]
    label = f"random bases ± {style.one_digit(float(nulls['error'].max()))}"
    handles.append(Line2D([], [], color=grey, linewidth=1.2, dashes=_DASHES, label=label))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles))
    return figure


def drop_path_effect(dataset: xr.Dataset, null: float) -> Figure:
    """Draws coupling measured with stochastic depth off and left on."""
    table = drop_path_table(dataset)
    figure = Figure(figsize=(style.WIDTH, 2.2))
    axes = figure.add_axes((0.21, 0.22, 0.77, 0.74))
    rate = dataset.attrs["rate"]
    for place, (state, part) in enumerate(table.groupby("drop_path", sort=False)):
        ink = style.colour(style.TRAINED) if state == "off" else style.dataset_colour("", 1)
        spread = np.random.default_rng(0).uniform(-0.14, 0.14, len(part))
        axes.scatter(part.coupling, place + spread, s=12, color=ink, alpha=0.55, linewidths=0)
        summary = mean_interval(part.groupby("image").coupling.mean().to_numpy())
        axes.plot([summary.low, summary.high], [place + 0.26] * 2, color=ink, linewidth=4, alpha=0.6)
        axes.plot([summary.middle] * 2, [place + 0.18, place + 0.34], color=ink, linewidth=2)
    axes.axvline(1 - null, color=style.colour(style.NULL), linewidth=1.2, dashes=_DASHES)
    place = {"xytext": (4, 0), "textcoords": "offset points", "va": "top", "fontsize": 8}
    axes.annotate(style.null_label(null), (1 - null, 1.5), color=style.colour(style.NULL), **place)
    axes.set_yticks([0, 1], ["drop path off", f"left on, rate {rate:g}"])
    axes.set_ylim(-0.4, 1.55)
    axes.set_xlim(left=0)
    axes.set_xlabel(coupling_label(dataset.attrs["variant"], int(dataset.attrs["k"])))
    axes.grid(axis="x")
    return figure


def _draw_strip(axes: Axes, place: float, values: np.ndarray, ink: str) -> None:
    spread = np.random.default_rng(0).uniform(-0.07, 0.07, len(values))
    axes.scatter(place + spread, values, s=12, color=ink, alpha=0.5, linewidths=0)
    summary = mean_interval(values)
    axes.plot([place + 0.13] * 2, [summary.low, summary.high], color=ink, linewidth=4, solid_capstyle="butt", alpha=0.6)
    axes.plot([place + 0.07, place + 0.19], [summary.middle] * 2, color=ink, linewidth=2)
