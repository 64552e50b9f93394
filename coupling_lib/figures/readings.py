"""Rival readings of coupling, side by side: what each measures, how they rank pairs of blocks, what each choice costs.

The functions take what `coupling_lib.measures.readings` makes. A reading is called by its name in
`metrics.variants.VARIANTS`; the names say where it stands: "released" in the released code, "old" in an older one.
What each figure plots is a table of `coupling_lib.figures.readings_data`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from coupling_lib.figures import style
from coupling_lib.figures.panels import colour_bar
from coupling_lib.figures.readings_data import SHARES

_COLUMNS = 5
_ROW = 0.24
"""Height of a row of a dot plot, in inches."""


def values_by_k(means: xr.Dataset) -> Figure:
    """Every variant as it is, against the number of singular vectors: one small panel each, scales of their own."""
    variants = means["variant"].values
    rows = -(-(len(variants) + 1) // _COLUMNS)
    figure = Figure(figsize=(style.WIDTH, 1.18 * rows + 0.3))
    grid = figure.subplots(rows, _COLUMNS, sharex=True)
    figure.subplots_adjust(left=0.05, right=0.99, top=1 - 0.22 / (1.18 * rows), bottom=0.085, wspace=0.34, hspace=0.4)
    ks = means["k"].values
    for axes, name in zip(grid.flat, variants, strict=False):
        chosen = means.sel(variant=name)
        for position, network in enumerate(means["network"].values):
            _draw_line(axes, chosen.sel(network=network), style.dataset_colour(network, position), dashed=position == 0)
        axes.set_title(name, fontsize=7, fontweight="normal", pad=3, loc="left", x=-0.2)
        axes.set_xticks(range(len(ks)), ks)
        axes.set_xlim(-0.35, len(ks) - 0.65)
        axes.tick_params(labelsize=7)
        axes.yaxis.get_major_locator().set_params(nbins=3)
        axes.margins(y=0.2)
    spare = list(grid.flat)[len(variants) :]
    for axes in spare:
        axes.set_axis_off()
    _legend(spare[0], means["network"].values, loc="center", split_null=True)
    # The panels above the empty cells are the lowest of their columns.
    for axes in grid.flat[len(variants) - _COLUMNS : len(variants)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("$K$", labelpad=1, fontsize=8)
    return figure


def beyond_chance(means: xr.Dataset, k: int) -> Figure:
    """Draws how far each variant lies from chance, on the way to perfect coupling."""
    variants = means["variant"].values
    figure, axes = _dot_plot(len(variants), left=1.85, bottom=0.62)
    for position, network in enumerate(means["network"].values):
        chosen, ink = means.sel(network=network), style.dataset_colour(network, position)
        places = np.arange(len(variants)) + (0.17 if position else -0.17)
        for other in means["k"].values:
            if other != k:
                values = 100 * chosen["share"].sel(k=other)
                axes.plot(values, places, ".", color=ink, alpha=0.4, markersize=4, markeredgewidth=0)
        _draw_dots(axes, *(100 * chosen[name].sel(k=k).values for name in SHARES), places, ink)
    axes.axvline(0, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3))
    axes.set_yticks(range(len(variants)), variants)
    # A variant that is not normalised lies far outside the others; the scale is linear where these are.
    axes.set_xscale("symlog", linthresh=5, linscale=1.6)
    ends = axes.get_xlim()
    axes.set_xticks([tick for tick in (-100, -50, -20, -10, -5, 0, 5, 10, 20, 50, 100) if ends[0] <= tick <= ends[1]])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"per cent of the way from random bases to perfect coupling  ($K={k}$; small dots: other $K$)")
    _legend(axes, means["network"].values, loc="best")
    return figure


def agreement_matrix(agreement: xr.Dataset) -> Figure:
    """Draws how much alike the variants rank the pairs of blocks, as numbers on a ground of ink."""
    names, values = agreement["variant"].values, agreement["mean"].values
    left, top, side = 1.75, 1.55, style.WIDTH - 1.8
    height = side + top + 0.8
    figure = Figure(figsize=(style.WIDTH, height))
    axes = figure.add_axes((left / style.WIDTH, 0.8 / height, side / style.WIDTH, side / height))
    image = axes.imshow(values, cmap=style.ink(), vmin=0, vmax=1, interpolation="none")
    for i, j in np.ndindex(values.shape):
        ink = _legible_on(image.to_rgba(values[i, j]))
        axes.text(j, i, _short(values[i, j]), ha="center", va="center_baseline", fontsize=6.5, color=ink)
    places = range(len(names))
    axes.set_yticks(places, names, fontsize=7.5)
    axes.set_xticks(places, names, fontsize=7.5, rotation=90)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)
    bar = colour_bar(figure, image, extend="min")
    bar.set_label(f"rank correlation over pairs of blocks  ($K={agreement.attrs['k']}$, mean over prompts)")
    return figure


def choices_figure(choices: pd.DataFrame) -> Figure:
    """Draws one measurement read in many ways: the coupling that each choice gives, all else being equal."""
    labels = list(dict.fromkeys(zip(choices["point"], choices["reading"], strict=True)))
    points = list(dict.fromkeys(choices["point"]))
    places = {label: number + 0.7 * points.index(label[0]) for number, label in enumerate(labels)}
    networks = list(dict.fromkeys(choices["network"]))
    figure, axes = _dot_plot(max(places.values()) + 1, left=2.62, bottom=0.62, right=1.62, top=0.3)
    for position, network in enumerate(networks):
        part, ink = choices[choices["network"] == network], style.dataset_colour(network, position)
        spots = np.array([places[label] for label in zip(part["point"], part["reading"], strict=True)])
        shifted = spots + (0.17 if position else -0.17)
        _draw_dots(axes, part["coupling"].values, part["low"].values, part["high"].values, shifted, ink)
        axes.scatter(part["null"], shifted, marker="|", s=45, color=style.colour(style.NULL), linewidths=1.6, zorder=2)
        place = 1.09 + 0.16 * position
        _write_column(axes, place, network, part["coupling"], spots, ink)
    shown = choices[choices["network"] == networks[-1]]
    spots = [places[label] for label in zip(shown["point"], shown["reading"], strict=True)]
    _write_column(axes, 1.09 + 0.16 * len(networks), "random", shown["null"], spots, style.colour(style.NULL))
    axes.set_yticks(list(places.values()), [reading for _, reading in places])
    for point in points:
        first = min(place for label, place in places.items() if label[0] == point)
        axes.annotate(
            point, (0, first), xycoords=("axes fraction", "data"), xytext=(-182, 0), textcoords="offset points",
            va="center_baseline", fontweight="bold", fontsize=8.5, annotation_clip=False,
        )  # fmt: skip
        if first:
            axes.axhline(first - 0.85, color=style.colour("faint"), linewidth=0.6)
    axes.axvline(0, color=style.colour("faint"), linewidth=0.8)
    axes.set_xlabel("coupling, mean over pairs of blocks and prompts")
    _legend(axes, networks, loc="lower left", marks="|")
    axes.get_legend().set_bbox_to_anchor((-0.05, 1.0))
    return figure


def boundary_figure(by_block: xr.Dataset, null: float) -> Figure:
    """Draws the coupling of each block with all others, for both boundaries of the last block."""
    figure = Figure(figsize=(style.WIDTH, 3.1))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.99, top=0.96, bottom=0.16)
    looks = {
        "block": ("o", "-", "the block's own output"),
        "hidden_states": ("D", (0, (2, 1.5)), "after the final norm"),
    }
    number = by_block["block"].values + 1
    for position, network in enumerate(by_block["network"].values):
        ink = style.dataset_colour(network, position)
        for boundary in by_block["boundary"].values:
            marker, line, meaning = looks[boundary]
            chosen = by_block.sel(network=network, boundary=boundary)
            hollow = "none" if boundary == "hidden_states" else ink
            axes.plot(number, chosen["mean"], color=ink, linestyle=line, marker=marker, markersize=4,
                      markerfacecolor=hollow, label=f"{network}, {meaning}")  # fmt: skip
            axes.fill_between(number, chosen["low"], chosen["high"], color=ink, alpha=0.13, linewidth=0)
    axes.axhline(1 - null, color=style.colour(style.NULL), linewidth=1.2, dashes=(4, 3), label=style.null_label(null))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("block $l$")
    axes.set_ylabel(f"coupling with other blocks  ($K={by_block.attrs['k']}$)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y")
    axes.legend(ncols=3, loc="lower left", fontsize=7.5)
    return figure


def _draw_line(axes: Axes, chosen: xr.Dataset, ink: str, dashed: bool) -> None:
    """One network in one small panel, with its own null behind it."""
    places = np.arange(chosen.sizes["k"])
    pattern = (1.2, 1.6) if dashed else (4, 2)
    axes.plot(places, chosen["null"], color=style.colour(style.NULL), linewidth=1, dashes=pattern)
    axes.vlines(places, chosen["low"], chosen["high"], color=ink, linewidth=2.2, alpha=0.5)
    axes.plot(places, chosen["mean"], color=ink, marker="o", markersize=3, linewidth=1.2)


def _draw_dots(axes: Axes, values: np.ndarray, low: np.ndarray, high: np.ndarray, places: np.ndarray, ink: str) -> None:
    axes.hlines(places, low, high, color=ink, linewidth=2.2, alpha=0.6)
    axes.plot(values, places, "o", color=ink, markersize=4.5, linestyle="none")


def _dot_plot(rows: float, left: float, bottom: float, right: float = 0.12, top: float = 0.12) -> tuple[Figure, Axes]:
    """An empty panel for rows that are read from top to bottom; margins in inches."""
    height = _ROW * rows + bottom + top
    figure = Figure(figsize=(style.WIDTH, height))
    box = (left / style.WIDTH, bottom / height, (style.WIDTH - left - right) / style.WIDTH, _ROW * rows / height)
    axes = figure.add_axes(box)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    return figure, axes


def _write_column(axes: Axes, place: float, title: str, values: pd.Series, spots: list[float], ink: str) -> None:
    """Numbers right of a dot plot, under their title."""
    where = axes.get_yaxis_transform()
    look = {"transform": where, "ha": "right", "va": "center_baseline", "fontsize": 7.5, "color": ink}
    for value, spot in zip(values, spots, strict=True):
        axes.text(place + 0.06, spot, f"{value:.3f}".replace("-", "−"), **look)
    axes.text(place + 0.06, -0.95, title, **look)


def _legend(axes: Axes, networks: list[str], loc: str, marks: str = "", split_null: bool = False) -> None:
    grey = style.colour(style.NULL)
    handles = [
        Line2D([], [], color=style.dataset_colour(name, i), marker="o", markersize=4.5, linewidth=2, label=name)
        for i, name in enumerate(networks)
    ]
    if split_null:
        patterns = [(1.2, 1.6), (4, 2)]
        handles += [
            Line2D([], [], color=grey, linewidth=1, dashes=pattern, label=f"random bases,\n{name}'s spectra")
            for name, pattern in zip(networks, patterns, strict=False)
        ]
    elif marks:
        handles.append(Line2D([], [], color=grey, marker=marks, markersize=8, linestyle="none", label="random bases"))
    else:
        handles.append(Line2D([], [], color=grey, linewidth=1.2, dashes=(4, 3), label="random bases"))
    axes.legend(handles=handles, loc=loc, fontsize=7 if split_null else 8, ncols=len(handles) if marks else 1)


def _legible_on(ground: tuple[float, ...]) -> str:
    """The colour of page or text that stands out from a ground: a light one from a dark ground, and the reverse."""
    candidates = sorted((style.colour("page"), style.colour("text")), key=_luminance)
    # Where contrast with black and with white is the same (WCAG).
    return candidates[0] if _luminance(ground) > 0.18 else candidates[1]


def _luminance(colour: str | tuple[float, ...]) -> float:
    """Relative luminance, 0 for black and 1 for white."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _short(value: float) -> str:
    text = f"{abs(value):.2f}"
    sign = "−" if value < 0 and text != "0.00" else ""
    return sign + (text[:-3] if text.endswith(".00") and text[0] == "1" else text[1:])
