r"""Coupling across tokens, drawn: grids of matrices beside maps of mismatch, and the mean over prompts.

What each figure plots is a table or an array of `coupling_lib.figures.tokens_data`. Blocks and positions count from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from coupling_lib.figures import style
from coupling_lib.figures.depth_data import Datasets, coupling_label, distance_word, symbol_and_formula
from coupling_lib.figures.panels import draw_grids
from coupling_lib.figures.tokens_data import (
    KIND_NAMES,
    Reports,
    blocks_name,
    comparison_name,
    mean_and_interval,
    null_coupling,
    prompt_couplings,
    relative_token_matrices,
    token_labels,
    token_mismatches,
)

# Inches: panels, and what lies around them.
_SIDE, _LEFT, _GAP, _ROW_GAP, _TOP, _BOTTOM = 2.9, 1.05, 0.3, 0.42, 0.58, 1.2


def token_grids(datasets: Datasets, variant: str, null: float | None = None) -> Figure:
    """Draws coupling over pairs of tokens of one prompt, one row per network (the paper's figures 4 and 17 to 19)."""
    first = next(iter(datasets.values()))
    labels = token_labels(first)
    # What the longest label takes, standing on its side.
    room = 0.066 * max(len(label) for label in labels) + 0.06
    height = room + _TOP + len(datasets) * _SIDE + (len(datasets) - 1) * _ROW_GAP + _BOTTOM
    figure = Figure(figsize=(style.WIDTH, height))
    start = _LEFT + (style.WIDTH - _LEFT - 2 * _SIDE - _GAP) / 2
    rows = []
    for row, name in enumerate(datasets):
        bottom = height - _TOP - _SIDE - row * (_SIDE + _ROW_GAP)
        boxes = [(start + column * (_SIDE + _GAP), bottom, _SIDE, _SIDE) for column in range(2)]
        rows.append([_axes_at(figure, box) for box in boxes])
        rows[-1][0].set_title(name.capitalize() if name in (style.TRAINED, style.UNTRAINED) else name, pad=6)
    grids = [relative_token_matrices(dataset) for dataset in datasets.values()]
    same = first.attrs["block"] == first.attrs["other"]
    scaled = ~np.eye(len(grids[0]), dtype=bool) if same else np.ones(grids[0].shape[:2], dtype=bool)
    image, centres = draw_grids([left for left, _ in rows], grids, scaled)
    maps = [token_mismatches(dataset, variant)[0, : len(scaled), : len(scaled)] for dataset in datasets.values()]
    shown = _draw_maps([right for _, right in rows], maps, null)
    for row, (left, right) in enumerate(rows):
        lowest = row == len(rows) - 1
        _token_ticks(left, centres, labels, on_x=lowest, on_y=True)
        _token_ticks(right, np.arange(len(labels)), labels, on_x=lowest, on_y=False)
        left.set_ylabel(f"token $t$  (Jacobian, block {first.attrs['block'] + 1})")
        if lowest:
            for axes in (left, right):
                axes.set_xlabel(f"token $t'$  (vectors, block {first.attrs['other'] + 1})")
                # All labels of tokens end at the same height, whatever their length.
                axes.xaxis.set_label_coords(0.5, -room / _SIDE)
    middle = (start + _SIDE + _GAP / 2) / style.WIDTH
    figure.text(middle, 1 - 0.1 / height, comparison_name(first), ha="center", va="top")
    _bar(figure, image, (start, 0.52), rf"$|A|\;/\;\sigma_1(J)$,  $K={first.attrs['k']}$", "max" if same else "neither")
    symbol, _ = symbol_and_formula(variant)
    _bar(
        figure,
        shown,
        (start + _SIDE + _GAP, 0.52),
        f"{distance_word(variant)} ${symbol}$,  $K={first.attrs['k']}$",
        mark=null,
    )
    return figure


def token_summary(reports: Reports, variant: str, nulls: Mapping[str, xr.Dataset]) -> Figure:
    """Draws mean coupling over pairs of different tokens, for every kind of comparison."""
    first = next(iter(reports.values()))
    pairs = list(dict.fromkeys((dataset.attrs["block"], dataset.attrs["other"]) for dataset in first.values()))
    figure = Figure(figsize=(style.WIDTH, 3.2))
    panels = figure.subplots(1, len(pairs), squeeze=False)[0]
    figure.subplots_adjust(left=0.085, right=0.99, top=0.9, bottom=0.2, wspace=0.16)
    for axes, pair in zip(panels, pairs, strict=True):
        kinds = {
            dataset.attrs["kind"]: name
            for name, dataset in first.items()
            if (dataset.attrs["block"], dataset.attrs["other"]) == pair
        }
        _draw_kinds(axes, reports, kinds, variant, nulls)
        axes.set_title(blocks_name(first[next(iter(kinds.values()))]).capitalize())
    panels[0].set_ylabel(coupling_label(variant, next(iter(first.values())).attrs["k"]))
    handles, names = panels[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(names), bbox_to_anchor=(0.5, -0.015))
    return figure


def _draw_kinds(
    axes: Axes, reports: Reports, kinds: Mapping[str, str], variant: str, nulls: Mapping[str, xr.Dataset]
) -> None:
    width, lowest = 0.8 / len(reports), 0.0
    for position, (network, report) in enumerate(reports.items()):
        ink = style.dataset_colour(network, position)
        for place, name in enumerate(kinds.values()):
            values = prompt_couplings(report[name], variant)
            centre = place + (position - (len(reports) - 1) / 2) * width
            spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(values)) * width
            axes.scatter(centre - 0.14 * width + spread, values, s=14, color=ink, alpha=0.65, linewidths=0)
            mean, low, high = mean_and_interval(values)
            lowest = min(lowest, values.min())
            x = centre + 0.2 * width
            axes.plot([x, x], [low, high], color=ink, linewidth=4, solid_capstyle="butt", alpha=0.6)
            label = network if place == 0 else None
            axes.plot([x - 0.12 * width, x + 0.12 * width], [mean, mean], color=ink, linewidth=2, label=label)
    for place, name in enumerate(kinds.values()):
        worst = max(float(null["error"].mean()) for null in nulls.values())
        label = f"random bases ± {style.one_digit(worst)}" if place == 0 else None
        ends = [place - 0.45, place + 0.45]
        mean, low, high = null_coupling(nulls[name])
        axes.fill_between(ends, low, high, color=style.colour(style.NULL), alpha=0.15, linewidth=0)
        axes.plot(ends, [mean, mean], color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label=label)
    axes.set_xticks(range(len(kinds)), [KIND_NAMES[kind] for kind in kinds])
    axes.set_ylim(bottom=min(0, 1.05 * lowest))
    axes.grid(axis="y")


def _draw_maps(panels: Sequence[Axes], maps: Sequence[np.ndarray], null: float | None) -> AxesImage:
    marks = [] if null is None else [null]
    low, high = min(np.nanmin(maps), *marks, np.inf), max(np.nanmax(maps), *marks, -np.inf)
    for axes, values in zip(panels, maps, strict=True):
        axes.set_facecolor(style.colour("mask"))
        image = axes.imshow(values, cmap=style.ink().reversed(), vmin=low, vmax=high, interpolation="none")
    return image


def _token_ticks(axes: Axes, places: np.ndarray, labels: Sequence[str], on_x: bool, on_y: bool) -> None:
    # One label needs an eighth of an inch.
    step = -(-len(labels) // int(8 * _SIDE))
    axes.set_xticks(places[::step], labels[::step] if on_x else [""] * len(labels[::step]), rotation=90)
    axes.set_yticks(places[::step], labels[::step] if on_y else [""] * len(labels[::step]))
    axes.tick_params(length=0, pad=3, labelsize=7)
    axes.spines[:].set_visible(False)


def _bar(
    figure: Figure,
    image: AxesImage,
    corner: tuple[float, float],
    label: str,
    extend: str = "neither",
    mark: float | None = None,
) -> None:
    axes = _axes_at(figure, (*corner, _SIDE, 0.1))
    bar = figure.colorbar(image, cax=axes, orientation="horizontal", extend=extend)
    bar.outline.set_visible(False)
    bar.set_label(label)
    if mark is not None:
        axes.invert_xaxis()
        axes.plot([mark, mark], [0, 1.9], color=style.colour("text"), linewidth=1.2, clip_on=False)
        offset = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate("random bases", (mark, 1.7), annotation_clip=False, **offset)


def _axes_at(figure: Figure, inches: tuple[float, float, float, float]) -> Axes:
    width, height = figure.get_size_inches()
    x, y, w, h = inches
    return figure.add_axes((x / width, y / height, w / width, h / height))
