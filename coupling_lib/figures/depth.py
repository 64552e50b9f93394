r"""Coupling across depth: every block's Jacobian against every block's singular vectors, drawn.

All functions take a mapping from a name ("untrained", "trained", or any model's) to the data set that
`coupling_lib.measures.depth.measure_depth` made, and draw one panel or colour per name. Blocks count from 1 in
figures, from 0 in arguments. What each figure plots is a table of `coupling_lib.figures.depth_data`.

*Coupling* is 1 minus a normalised mismatch; the figure names which. Pairs of a block with itself are left out of
means and scales: A is diagonal there by construction and says nothing about coupling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from coupling_lib.figures import style
from coupling_lib.figures.circle import draw_circle, draw_edge_legend
from coupling_lib.figures.depth_data import (
    Datasets,
    coupling_label,
    distance_couplings,
    distance_word,
    pair_mismatches,
    relative_matrices,
    symbol_and_formula,
    symmetric_coupling,
)
from coupling_lib.figures.panels import block_ticks, colour_bar, draw_grids, label_pairs, square_panels
from coupling_lib.metrics.statistics import mean_interval
from coupling_lib.models import registry


def matrix_grid(datasets: Datasets, blocks: Sequence[int], k: int) -> Figure:
    """Draws a grid of coupling matrices, one grid per data set (the paper's figure 3)."""
    figure, panels = square_panels(datasets, bottom=1.1)
    grids = [relative_matrices(dataset, blocks, k) for dataset in datasets.values()]
    # A block with itself does not set the scale.
    image, centres = draw_grids(panels, grids, scaled=~np.eye(len(blocks), dtype=bool))
    for axes in panels:
        block_ticks(axes, centres, blocks)
    label_pairs(panels)
    bar = colour_bar(figure, image, extend="max")
    bar.set_label(rf"$|A_{{ll'}}|\;/\;\sigma_1(J_l)$  with  $A_{{ll'}}=U_{{l'}}^{{\top}}J_l\,V_{{l'}}$,  $K={k}$")
    return figure


def mismatch_map(datasets: Datasets, variant: str, k: int, null: float | None = None) -> Figure:
    """Draws the mismatch of every pair of blocks, averaged over prompts, on one shared scale."""
    figure, panels = square_panels(datasets, bottom=1.1)
    image = _draw_maps(panels, datasets.values(), variant, k, null)
    label_pairs(panels)
    _label_mismatch(colour_bar(figure, image), variant, k, null)
    return figure


def models_figure(models: Mapping[str, Datasets], variant: str, k: int, null: float) -> Figure:
    """Draws several models side by side: the mismatch of every pair of blocks, and coupling against distance."""
    columns = min(len(models), 4)
    rows = -(-len(models) // columns)
    left, gap, curves, bar_room = 0.62, 0.38, 2.35, 1.0
    side = min(2.9, (style.WIDTH - left - 0.05 - gap * (columns - 1)) / columns)
    height = curves + bar_room + rows * (side + 0.72)
    figure = Figure(figsize=(style.WIDTH, height))
    start = left + (style.WIDTH - left - 0.05 - columns * side - gap * (columns - 1)) / 2
    panels = []
    for index, name in enumerate(models):
        row, column = divmod(index, columns)
        x, y = start + column * (side + gap), height - 0.3 - side - row * (side + 0.72)
        panels.append(figure.add_axes((x / style.WIDTH, y / height, side / style.WIDTH, side / height)))
        panels[-1].set_title(_short(name), pad=6)
        panels[-1].set_xlabel("block $l'$  (singular vectors)")
        panels[-1].set_ylabel("" if column else "block $l$  (Jacobian)")
    image = _draw_maps(panels, [datasets["trained"] for datasets in models.values()], variant, k, null)
    _label_mismatch(colour_bar(figure, image, above=curves + 0.62), variant, k, null)
    axes = figure.add_axes((0.085, 0.48 / height, 0.905, (curves - 0.5) / height))
    for position, (name, datasets) in enumerate(models.items()):
        ink, marker = _model_look(datasets["trained"], position)
        _draw_band(axes, distance_couplings(datasets["trained"], variant, k), ink, _short(name), marker)
        blank = distance_couplings(datasets["untrained"], variant, k).mean(axis=0)
        axes.plot(np.arange(1, len(blank) + 1), blank, color=ink, linewidth=1.2, linestyle=":")
    axes.axhline(1 - null, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label=style.null_label(null))
    axes.plot([], [], color=style.colour("text"), linewidth=1.2, linestyle=":", label="untrained")
    axes.set_xlabel("distance $|l-l'|$ between blocks")
    axes.set_ylabel(coupling_label(variant, k))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.grid(axis="y")
    axes.legend()
    return figure


def adjacency_graph(datasets: Datasets, variant: str, k: int, null: float | None = None) -> Figure:
    """Draws blocks on a circle, joined by their coupling (the paper's figures 1c to 1e)."""
    graphs = [symmetric_coupling(dataset, variant, k) for dataset in datasets.values()]
    top = float(np.nanmax(graphs))
    figure, panels = square_panels(datasets, left=0.1, bottom=0.65, gap=0.2)
    for position, (axes, name, values) in enumerate(zip(panels, datasets, graphs, strict=True)):
        draw_circle(axes, values, top, style.dataset_colour(name, position))
    samples = {} if null is None else {f"{1 - null:.2f} (random bases)": 1 - null}
    samples |= {f"{share * top:.2f}": share * top for share in (0.25, 0.5, 1.0)}
    draw_edge_legend(figure, samples, top, f"{coupling_label(variant, k)}, mean of both directions and over prompts")
    return figure


def landing_figure(datasets: Datasets, variant: str, k: int, null: float) -> Figure:
    """Draws the adjacency graph as a frontispiece: only what exceeds chance, almost no labels."""
    graphs = [symmetric_coupling(dataset, variant, k) - (1 - null) for dataset in datasets.values()]
    top = max(float(np.nanmax(graphs)), 1e-9)
    figure, panels = square_panels(datasets, left=0.1, bottom=0.65, gap=0.2)
    for position, (axes, name, values) in enumerate(zip(panels, datasets, graphs, strict=True)):
        draw_circle(axes, values, top, style.dataset_colour(name, position))
    samples = {f"+{share * top:.2f}": share * top for share in (0.25, 0.5, 1.0)}
    draw_edge_legend(figure, samples, top, "coupling of two transformer blocks, beyond that of random bases")
    return figure


def coupling_distribution(datasets: Datasets, variant: str, k: int, null: float | None = None) -> Figure:
    """Draws coupling over prompts, and against the distance between blocks."""
    figure = Figure(figsize=(style.WIDTH, 3.1))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.9))
    figure.subplots_adjust(left=0.085, right=0.99, top=0.93, bottom=0.155, wspace=0.07)
    for position, (name, dataset) in enumerate(datasets.items()):
        ink = style.dataset_colour(name, position)
        coupling = 1 - pair_mismatches(dataset, variant, k)
        _draw_strip(left, position, np.nanmean(coupling, axis=(1, 2)), ink)
        _draw_band(right, distance_couplings(dataset, variant, k), ink, name)
    left.set_xticks(range(len(datasets)), list(datasets))
    left.set_xlim(-0.6, len(datasets) - 0.4)
    left.set_ylabel(coupling_label(variant, k))
    left.set_xlabel("all pairs, one dot per prompt")
    right.set_xlabel("distance $|l-l'|$ between blocks")
    right.xaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        axes.grid(axis="y")
        if null is not None:
            axes.axhline(
                1 - null, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label=style.null_label(null)
            )
    left.set_ylim(bottom=min(0, left.get_ylim()[0]))
    right.legend()
    return figure


def _draw_maps(
    panels: Sequence[Axes], datasets: Iterable[xr.Dataset], variant: str, k: int, null: float | None
) -> AxesImage:
    """Mismatch of every pair of blocks, a panel per measurement, on one scale that holds the null."""
    maps = [pair_mismatches(dataset, variant, k).mean(axis=0) for dataset in datasets]
    ends = [end(values) for values in maps for end in (np.nanmin, np.nanmax)] + ([] if null is None else [null])
    for axes, values in zip(panels, maps, strict=True):
        axes.set_facecolor(style.colour("mask"))
        image = axes.imshow(values, cmap=style.ink().reversed(), vmin=min(ends), vmax=max(ends), interpolation="none")
        block_ticks(axes, np.arange(len(values)), range(len(values)))
    return image


def _label_mismatch(bar: Colorbar, variant: str, k: int, null: float | None) -> None:
    """Names what a colour bar shows, turns it round so that coupling grows to the right, and marks the null."""
    symbol, formula = symbol_and_formula(variant)
    bar.set_label(f"{distance_word(variant)} ${symbol}={formula}$,  $K={k}$,  mean over prompts")
    bar.ax.invert_xaxis()
    if null is not None:
        bar.ax.plot([null, null], [0, 1.9], color=style.colour("text"), linewidth=1.2, clip_on=False)
        offset = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        bar.ax.annotate("random bases", (null, 1.7), annotation_clip=False, **offset)


def _short(name: str) -> str:
    """A model's name without the folders or the organisation before it."""
    return name.rstrip("/").rsplit("/", 1)[-1]


def _model_look(dataset: xr.Dataset, position: int) -> tuple[str, str]:
    """Colour and marker of a model: its family's where it has one, else those of its place."""
    name = str(dataset.attrs.get("model", ""))
    entry = registry.lookup(name)
    for family in (name, entry.family if entry else ""):
        ink, marker = style.family_style(family)
        if ink != style.colour(style.NULL):
            return ink, marker
    return style.dataset_colour("", position), "osD^vP"[position % 6]


def _draw_strip(axes: Axes, place: float, values: np.ndarray, ink: str) -> None:
    spread = np.random.default_rng(0).uniform(-0.16, 0.16, len(values))
    axes.scatter(place + spread, values, s=14, color=ink, alpha=0.65, linewidths=0)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    axes.plot([place + 0.3] * 2, [low, high], color=ink, linewidth=4, solid_capstyle="butt", alpha=0.6)
    axes.plot([place + 0.22, place + 0.38], [middle, middle], color=ink, linewidth=2)


def _draw_band(axes: Axes, values: np.ndarray, ink: str, name: str, marker: str = "o") -> None:
    distance = np.arange(1, values.shape[1] + 1)
    axes.plot(distance, values.mean(axis=0), color=ink, marker=marker, markersize=3.5, label=name)
    if len(values) > 1:
        interval = mean_interval(values)
        axes.fill_between(distance, interval.low, interval.high, color=ink, alpha=0.25, linewidth=0)
