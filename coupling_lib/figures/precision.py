"""Errors of narrow weights and narrow arithmetic, drawn: of singular values, of vectors, of coupling.

All functions take the data set that `coupling_lib.measures.precision.measure_precision` makes; its first precision is
the reference. A precision keeps its colour and marker through all figures. What each figure plots is a table of
`coupling_lib.figures.precision_data`.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from coupling_lib.figures import style
from coupling_lib.figures.precision_data import (
    QUANTITIES,
    all_value_errors,
    coupling_table,
    kept_share,
    narrow_precisions,
    pair_table,
    source_table,
)

_LOOKS = {"bfloat16": (0, "o"), "int8": (1, "s"), "nf4": (2, "D"), "fp4": (3, "^"), "float16": (4, "v")}
_SMALLEST = 1e-7
"""Errors are drawn from here on; below lies the rounding of float32 itself."""


def value_errors(ds: xr.Dataset) -> Figure:
    """Draws the relative error of singular values, against their rank and against depth."""
    figure, (left, right) = _two_panels()
    errors = all_value_errors(ds)
    for name in narrow_precisions(ds):
        chosen = errors.sel(precision=name).transpose("prompt", "block", "rank").values
        by_rank = chosen.reshape(-1, chosen.shape[-1])
        by_block = np.moveaxis(chosen, 1, 2).reshape(-1, chosen.shape[1])
        for axes, values in ((left, by_rank), (right, by_block)):
            _draw_band(axes, np.arange(1, values.shape[1] + 1), values, name)
    left.set_ylabel(r"relative error $|\sigma_i^{\prime}/\sigma_i-1|$")
    left.set_xlabel("rank $i$ of the singular value")
    right.set_xlabel("block $l$")
    left.set_yscale("log")
    # From one power of ten to another, so that the axis has numbers however narrow the errors' range is.
    left.set_ylim(
        *(10.0 ** end(np.log10(limit)) for end, limit in zip((np.floor, np.ceil), left.get_ylim(), strict=True))
    )
    left.yaxis.set_minor_formatter(NullFormatter())
    _finish(left, right)
    return figure


def vector_errors(ds: xr.Dataset) -> Figure:
    """How far the top singular spaces turn: principal angles by order, and the share of directions kept by depth."""
    figure, (left, right) = _two_panels(sharey=False)
    figure.subplots_adjust(wspace=0.2)
    k = ds.sizes["order"]
    for name in narrow_precisions(ds):
        angles = ds["angle"].sel(precision=name, source="weights")
        pooled = angles.transpose("side", "example", "block", "order").values.reshape(-1, k)
        _draw_band(left, np.arange(1, k + 1), pooled, name)
        for side, pattern in (("U", "-"), ("V", ":")):
            kept = kept_share(ds).sel(precision=name, side=side).mean("example").values
            ink, marker = _look(name)
            look = {"color": ink, "marker": marker, "markersize": 3.5, "linestyle": pattern}
            right.plot(np.arange(1, len(kept) + 1), 100 * kept, **look)
    grey = {"color": style.colour(style.NULL), "linewidth": 1.2}
    left.plot(np.arange(1, k + 1), ds["random_angle"], dashes=(4, 3), label="random spaces", **grey)
    right.axhline(100 * float(np.mean(np.cos(np.deg2rad(ds["random_angle"].values)) ** 2)), dashes=(4, 3), **grey)
    left.set_ylabel("principal angle (degrees)")
    left.set_xlabel("order of the angle")
    left.set_ylim(0, 90)
    left.set_yticks(range(0, 91, 15))
    right.set_ylabel(f"top-{k} directions kept (%)")
    right.set_xlabel("block $l$    (solid: $U$, dotted: $V$)")
    right.set_ylim(0, 103)
    _finish(left, right)
    return figure


def pair_scatter(ds: xr.Dataset, null: float) -> Figure:
    """Draws the coupling of every pair of blocks in each precision against that in the reference."""
    names = narrow_precisions(ds)
    table = pair_table(ds)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    side = min(2.6, (style.WIDTH - 0.75) / columns - 0.12)
    height = rows * (side + 0.3) + 0.5
    figure = Figure(figsize=(style.WIDTH, height))
    low, high = min(table["reference"].min(), table["coupling"].min()), table[["reference", "coupling"]].max().max()
    room = 0.06 * (high - low) or 0.01
    start = 0.62 + (style.WIDTH - 0.7 - columns * (side + 0.12)) / 2
    for position, name in enumerate(names):
        row, column = divmod(position, columns)
        x, y = start + column * (side + 0.12), height - (row + 1) * (side + 0.3)
        axes = figure.add_axes((x / style.WIDTH, y / height, side / style.WIDTH, side / height))
        part = table[table["precision"] == name]
        for draw in (axes.axhline, axes.axvline):
            draw(1 - null, color=style.colour(style.NULL), linewidth=1, dashes=(4, 3))
        axes.plot([low, high], [low, high], color=style.colour("text"), linewidth=0.7)
        axes.scatter(part["reference"], part["coupling"], s=9, color=_look(name)[0], alpha=0.6, linewidths=0)
        axes.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
        axes.set_title(name, pad=5)
        axes.xaxis.get_major_locator().set_params(nbins=4)
        axes.yaxis.get_major_locator().set_params(nbins=4)
        if column:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel(r"coupling $1-\tilde m$")
        if row == rows - 1:
            axes.set_xlabel("coupling in float32")
        if not position:
            axes.annotate(
                "random bases", (high + room, 1 - null), xytext=(-2, -2), textcoords="offset points",
                ha="right", va="top", fontsize=7, color=style.colour(style.NULL),
            )  # fmt: skip
    return figure


def mean_coupling(ds: xr.Dataset, untrained: float, null: float) -> Figure:
    """Draws the mean coupling in every precision, and its difference from the reference prompt by prompt."""
    figure, (left, right) = _two_panels(sharey=False)
    figure.subplots_adjust(wspace=0.26)
    table = coupling_table(ds)
    places = np.arange(len(table))
    for axes, columns in (
        (left, ("coupling", "low", "high")),
        (right, ("difference", "difference_low", "difference_high")),
    ):
        for place, row in zip(places, table[list(columns)].values, strict=True):
            if axes is right and place == 0:
                continue
            ink, marker = _look(table["precision"][place]) if place else (style.colour(style.TRAINED), "o")
            axes.vlines(place, row[1], row[2], color=ink, linewidth=3, alpha=0.5)
            axes.plot(place, row[0], marker, color=ink, markersize=5.5)
    grey = style.colour(style.NULL)
    left.axhline(1 - null, color=grey, linewidth=1.2, dashes=(4, 3), label=style.null_label(null))
    left.axhline(untrained, color=style.colour(style.UNTRAINED), linewidth=1.2, label="untrained, float32")
    left.set_ylim(bottom=0)
    left.set_ylabel(rf"mean coupling $1-\tilde m$  $(K={ds.attrs['k']})$")
    left.legend(loc="lower left")
    right.axhline(0, color=style.colour("text"), linewidth=0.8)
    right.set_ylabel("difference from float32")
    for axes, shown in ((left, places), (right, places[1:])):
        axes.set_xticks(shown, table["precision"].iloc[shown])
        axes.set_xlim(shown[0] - 0.6, shown[-1] + 0.6)
        axes.grid(axis="y")
    return figure


def error_sources(ds: xr.Dataset) -> Figure:
    """Draws typical errors by where they come from: narrow weights, or narrow arithmetic at the same weights."""
    names = [str(name) for name in ds["precision"].values]
    sources = [str(name) for name in ds["source"].values]
    table = source_table(ds)
    figure = Figure(figsize=(style.WIDTH, 0.42 * len(names) + 1.25))
    panels = figure.subplots(1, len(QUANTITIES), sharey=True)
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.115, right=0.985, top=1 - 0.4 / height, bottom=0.62 / height, wspace=0.1)
    for axes, (quantity, label) in zip(panels, QUANTITIES.items(), strict=True):
        part = table[table["quantity"] == quantity]
        for number, source in enumerate(sources):
            chosen = part[(part["source"] == source) & (part["median"] > 0)]
            if source == sources[0]:
                chosen = chosen[chosen["precision"] != names[0]]  # the reference against itself
            ink, marker = _look(source)
            rows = np.array([names.index(name) for name in chosen["precision"]]) + 0.22 * (number - 1)
            lower = np.maximum(chosen["lower_quartile"], _SMALLEST)
            axes.hlines(rows, lower, chosen["upper_quartile"], color=ink, linewidth=2.4, alpha=0.45)
            axes.plot(chosen["median"], rows, marker, color=ink, markersize=4.5, label=source)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(label)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper center", ncols=len(sources), frameon=False)
    return figure


def _two_panels(sharey: bool = True) -> tuple[Figure, tuple[Axes, Axes]]:
    figure = Figure(figsize=(style.WIDTH, 3.1))
    panels = figure.subplots(1, 2, sharey=sharey)
    figure.subplots_adjust(left=0.095, right=0.99, top=0.9, bottom=0.15, wspace=0.08)
    return figure, tuple(panels)


def _finish(left: Axes, right: Axes) -> None:
    for axes in (left, right):
        axes.grid(axis="y")
        axes.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = left.get_legend_handles_labels()
    left.figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)


def _draw_band(axes: Axes, places: np.ndarray, values: np.ndarray, name: str) -> None:
    """Median and quartiles over the first axis."""
    low, middle, high = np.maximum(np.quantile(values, (0.25, 0.5, 0.75), axis=0), _SMALLEST)
    ink, marker = _look(name)
    axes.fill_between(places, low, high, color=ink, alpha=0.2, linewidth=0)
    axes.plot(places, middle, color=ink, marker=marker, markersize=3.5, label=name)


def _look(name: str) -> tuple[str, str]:
    """Colour and marker of a precision, or of where an error comes from; narrow arithmetic looks like its type."""
    if name.split()[0] not in _LOOKS:
        return style.colour("text"), "X"
    position, marker = _LOOKS[name.split()[0]]
    return style.dataset_colour("", position), marker
