"""Errors of narrow weights and narrow arithmetic: of singular values, of singular vectors, of coupling.

The first precision is the reference; a precision keeps its colour and marker through all figures.
"""

import warnings

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from companion.figures import parts, style
from companion.figures.take import VARIANT, of_one
from companion.tables import effects
from companion.tables.arrays import from_one, joined, quartiles, records_of
from coupling_lib import provenance
from coupling_lib.datasets.summaries import Chance, depth_summary, interval, off_diagonal, pair_couplings

QUANTITIES = {
    "value_error": "singular values: relative error",
    "angle": "vectors: principal angle (degrees)",
    "coupling_error": "coupling: absolute error",
}
"""Errors that are distinguished by their source, with their labels."""

_MARKERS = {"bfloat16": (0, "o"), "int8": (1, "s"), "nf4": (2, "D"), "fp4": (3, "^"), "float16": (4, "v")}
_NARROW = {"precision": slice(1, None)}
"""All precisions but the reference."""
_SMALLEST = 1e-7
"""Errors are drawn from here on; below lies the rounding of float32 itself."""


@of_one
def take_values(ds: xr.Dataset) -> xr.Dataset:
    """Select the relative error of singular values from narrow weights, against rank and against depth: quartiles."""
    errors = _value_errors(ds).isel(_NARROW)
    by_rank = quartiles(errors, ["prompt", "block"]).rename(rank="place")
    by_block = quartiles(errors, ["prompt", "rank"]).rename(block="place")
    found = joined({"rank": from_one(by_rank, "place"), "block": from_one(by_block, "place")}, "against")
    return found.assign_attrs(reference=_reference(ds))


@of_one
def take_vectors(ds: xr.Dataset) -> xr.Dataset:
    """Select how far top singular spaces turn: principal angles by order, and the share of directions kept by block."""
    angles = from_one(quartiles(ds.angle.sel(source="weights").isel(_NARROW), ["side", "example", "block"]), "order")
    chance = from_one(ds.random_angle, "order")
    kept = from_one(_kept(ds).isel(_NARROW).mean("example"), "block")
    return angles.assign(random_angle=chance, kept=kept, random_kept=(np.cos(np.deg2rad(chance)) ** 2).mean("order"))


@of_one
def take_pairs(ds: xr.Dataset) -> xr.Dataset:
    """Select the coupling of every ordered pair of different blocks, mean over prompts, beside the reference's."""
    pairs = pair_couplings(ds).mean("prompt").rename(block_1="block_jacobian", block_2="block_vectors")
    coupling = from_one(pairs.isel(_NARROW), "block_jacobian", "block_vectors")
    reference = xr.zeros_like(coupling) + pairs.isel(precision=0, drop=True).values
    notes = {"reference": _reference(ds), "null": _null(ds)}
    return xr.Dataset({"reference": reference, "coupling": coupling}, attrs=notes)


@of_one
def take_coupling(ds: xr.Dataset, untrained: xr.Dataset | None = None) -> xr.Dataset:
    """Select the mean coupling in every precision, its difference from the reference, and how alike their pairs are."""
    coupling = pair_couplings(ds)
    each = coupling.mean(["block_1", "block_2"])
    own, change = interval(each), interval(each - each.isel(precision=0, drop=True))
    pairs = coupling.mean("prompt").stack(pair=["block_1", "block_2"]).dropna("pair")
    alike = [np.corrcoef(pairs[0], row)[0, 1] for row in pairs.values]
    change = change.rename(mean="difference", low="difference_low", high="difference_high")
    found = xr.merge([own.rename(mean="coupling"), change]).assign(correlation=("precision", alike))
    blank = None if untrained is None else coupling_of(untrained, ds.attrs["k"])
    notes = {"k": ds.attrs["k"], "reference": _reference(ds), "null": _null(ds), "untrained": blank}
    return found.assign_attrs(notes, records=records_of([untrained, ds]))


@of_one
def take_sources(ds: xr.Dataset) -> xr.Dataset:
    """Select typical errors by where they come from, narrow weights or narrow arithmetic: quartiles."""
    errors = [ds.value_error, ds.angle, off_diagonal(ds.coupling_error)]
    with warnings.catch_warnings():
        # An arithmetic that a precision does not have stays a gap.
        warnings.filterwarnings("ignore", message="All-NaN slice")
        found = [quartiles(one, [dim for dim in one.dims if dim not in ("precision", "source")]) for one in errors]
    return joined(dict(zip(QUANTITIES, found, strict=True)), "quantity")


def draw_values(errors: xr.Dataset) -> Figure:
    """Draw the relative error of singular values, against their rank and against depth."""
    figure, row = parts.panels(["", ""], 3.1, sharey=True)
    labels = {"rank": "rank $i$ of the singular value", "block": "block $l$"}
    for axes, (against, label) in zip(row, labels.items(), strict=True):
        for name in errors.precision.values:
            one = errors.sel(against=against, precision=name).dropna("place")
            _draw_band(axes, one.clip(min=_SMALLEST), "place", name)
        parts.block_axis(axes, label)
    row[0].set(ylabel=r"relative error $|\sigma_i^{\prime}/\sigma_i-1|$", yscale="log")
    # From one power of ten to another, so that the axis has numbers however narrow the errors' range is.
    low, high = np.log10(row[0].get_ylim())
    row[0].set_ylim(10.0 ** np.floor(low), 10.0 ** np.ceil(high))
    row[0].yaxis.set_minor_formatter(NullFormatter())
    parts.legend_under(figure, row, title=f"against {errors.reference}")
    return figure


def draw_vectors(spaces: xr.Dataset) -> Figure:
    """Draw how far the top singular spaces turn, beside spaces drawn at random."""
    figure, (left, right) = parts.panels(["", ""], 3.1)
    for name in spaces.precision.values:
        _draw_band(left, spaces.sel(precision=name).clip(min=_SMALLEST), "order", name)
        for side, pattern in (("U", "-"), ("V", ":")):
            ink, marker = _style(name)
            shares = 100 * spaces.kept.sel(precision=name, side=side)
            right.plot(spaces.block, shares, color=ink, marker=marker, markersize=3.5, linestyle=pattern)
    left.plot(spaces.order, spaces.random_angle, **parts.null_style("random spaces"))
    right.axhline(100 * spaces.random_kept, **parts.null_style())
    left.set(ylabel="principal angle (degrees)", ylim=(0, 90), yticks=range(0, 91, 15))
    right.set(ylabel=f"top-{spaces.sizes['order']} directions kept (%)", ylim=(0, 103))
    parts.block_axis(left, "order of the angle")
    parts.block_axis(right, "block $l$    (solid: $U$, dotted: $V$)")
    parts.legend_under(figure, [left])
    return figure


def draw_pairs(pairs: xr.Dataset) -> Figure:
    """Draw the coupling of every pair of blocks in each precision against that in the reference."""
    names = pairs.precision.values
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    height = rows * (min(2.7, style.WIDTH / columns - 0.1) + 0.25) + 0.4
    figure = Figure(figsize=(style.WIDTH, height), layout="compressed")
    row = parts.in_rows(figure, len(names), columns, sharex=True, sharey=True, subplot_kw={"aspect": "equal"})
    ends = [float(end) for end in (pairs.to_array().min(), pairs.to_array().max())]
    room = 0.06 * (ends[1] - ends[0]) or 0.01
    grey = style.colour(style.NULL)
    for axes, name in zip(row, names, strict=True):
        for line in (axes.axhline, axes.axvline):
            line(1 - pairs.null, color=grey, linewidth=1, dashes=(4, 3))
        one = pairs.sel(precision=name)
        axes.plot(ends, ends, color=style.colour("text"), linewidth=0.7)
        axes.scatter(one.reference, one.coupling, s=9, color=_style(name)[0], alpha=0.6, linewidths=0)
        axes.set(xlim=(ends[0] - room, ends[1] + room), ylim=(ends[0] - room, ends[1] + room), title=name)
        axes.set(xlabel=f"coupling in {pairs.attrs['reference']}", ylabel=r"coupling $1-\tilde m$")
        axes.locator_params(nbins=4)
        axes.label_outer()
    place = {"xytext": (-2, -2), "textcoords": "offset points", "ha": "right", "va": "top", "fontsize": 7}
    row[0].annotate("by chance", (ends[1] + room, 1 - pairs.null), color=grey, **place)
    return figure


def draw_coupling(means: xr.Dataset) -> Figure:
    """Draw the mean coupling in every precision, and its difference from the reference prompt by prompt."""
    figure, (left, right) = parts.panels(["", ""], 3.1)
    for place, name in enumerate(means.precision.values):
        one = means.sel(precision=name)
        ink, marker = _style(name) if place else (style.colour(style.TRAINED), "o")
        left.vlines(place, one.low, one.high, color=ink, linewidth=3, alpha=0.5)
        left.plot(place, one.coupling, marker, color=ink, markersize=5.5)
        if place:
            right.vlines(place, one.difference_low, one.difference_high, color=ink, linewidth=3, alpha=0.5)
            right.plot(place, one.difference, marker, color=ink, markersize=5.5)
    if means.untrained is not None:
        left.axhline(means.untrained, color=style.colour(style.UNTRAINED), linewidth=1.2, label="untrained, float32")
    parts.chance(left, means.null)
    left.set_ylabel(rf"mean coupling $1-\tilde m$  $(K={means.attrs['k']})$")
    left.legend(loc="lower left")
    right.axhline(0, color=style.colour("text"), linewidth=0.8)
    right.set_ylabel(f"difference from {means.reference}")
    # Names of as many lines each stand at one height.
    names = [f"{name} ".replace(" ", "\n", 1).rstrip(" ") for name in (means.reference, *means.precision.values[1:])]
    for axes, first in ((left, 0), (right, 1)):
        axes.set_xticks(range(first, len(names)), names[first:])
        axes.set_xlim(first - 0.6, means.sizes["precision"] - 0.4)
    return figure


def draw_sources(errors: xr.Dataset) -> Figure:
    """Draw typical errors by where they come from: narrow weights, or narrow arithmetic at the same weights."""
    names, sources = errors.precision.values, errors.source.values
    figure, row = parts.panels([""] * len(QUANTITIES), 0.42 * len(names) + 1.1, sharey=True)
    for axes, (quantity, label) in zip(row, QUANTITIES.items(), strict=True):
        for number, source in enumerate(sources):
            one = errors.sel(quantity=quantity, source=source)
            # The reference's weights against themselves have no error.
            places = np.flatnonzero((one["median"] > 0) & ((source != sources[0]) | (names != names[0])))
            ink, marker = _style(source)
            shown, heights = one.isel(precision=places), places + 0.22 * (number - 1)
            axes.hlines(heights, shown.low.clip(min=_SMALLEST), shown.high, color=ink, linewidth=2.4, alpha=0.45)
            axes.plot(shown["median"], heights, marker, color=ink, markersize=4.5, label=source)
        axes.set(xscale="log", xlabel=label)
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
        parts.rows_axis(axes, names, room=0.5)
    parts.legend_under(figure, row[:1])
    return figure


@of_one
def take_summary(ds: xr.Dataset) -> pd.DataFrame:
    """Summarise a measurement in one row per precision."""
    table, null = take_coupling(ds).to_dataframe(), _null(ds)
    values = 100 * _value_errors(ds).median(("prompt", "block", "rank")).to_series()
    kept = 100 * _kept(ds).mean(("side", "example", "block")).to_series()
    lost = -100 * table["difference"] / (table["coupling"].iloc[0] - (1 - null))
    columns = ["coupling", "difference", "difference_low", "difference_high"]
    found = {"values %": values, "kept %": kept, **{name: table[name] for name in columns}, "lost %": lost}
    return pd.concat({**found, "correlation": table["correlation"]}, axis=1)


def coupling_of(untrained: xr.Dataset, k: int) -> float:
    """Return the mean coupling of a network of `measure_depth` over pairs of different blocks and prompts."""
    return depth_summary(untrained, VARIANT)["mean"].sel(pairs="all pairs", k=k).item()


def numbers_of(ds: xr.Dataset, untrained: xr.Dataset) -> dict[str, float]:
    """Return the numbers that the book quotes, by name."""
    table, null = take_summary(ds), _null(ds)
    found = {"coupling-untrained": coupling_of(untrained, ds.attrs["k"])}
    found |= {"coupling-null": 1 - null, "coupling-null-error": null.error}
    for column in table.columns:
        quantity, _, end = column.removesuffix(" %").partition("_")
        for row in table.index:
            found["-".join(part for part in (quantity, row, end) if part)] = float(table.loc[row, column])
    return found | {"prompts": ds.sizes["prompt"]} | effects.numbers(effects.of_precision(ds))


def _reference(ds: xr.Dataset) -> str:
    """Return the label of the first precision, followed by the number of bits of stored weights where it is lower."""
    stored = provenance.stored_as(ds.attrs)
    return f"{ds.precision.values[0]}{f' of {stored}' * bool(stored)}"


def _null(ds: xr.Dataset) -> Chance:
    """Return the values of random bases with the reference's singular values."""
    return Chance(*(ds[name].isel(precision=0).item() for name in ("null", "null_error")))


def _value_errors(ds: xr.Dataset) -> xr.DataArray:
    values = ds.singular_values.astype(float)
    return abs(values / values.isel(precision=0, drop=True) - 1)


def _kept(ds: xr.Dataset) -> xr.DataArray:
    """Return the share of the reference's top directions that a precision's top directions span."""
    return (np.cos(np.deg2rad(ds.angle.sel(source="weights"))) ** 2).mean("order")


def _draw_band(axes: Axes, summary: xr.Dataset, along: str, name: str) -> None:
    ink, marker = _style(name)
    parts.band(axes, summary, along, ink, 0.2, marker=marker, markersize=3.5, label=name)


def _style(name: str) -> tuple[str, str]:
    """Return colour and marker of a precision, or of an error's source; narrow arithmetic looks like its type."""
    if name.split()[0] not in _MARKERS:
        return style.colour("text"), "X"
    position, marker = _MARKERS[name.split()[0]]
    return style.dataset_colour("", position), marker
