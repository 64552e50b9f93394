"""Variants of coupling side by side: values, rank correlations over pairs of blocks, and the effect of each choice.

A reading is a variant, called by its name in `metrics.variants.VARIANTS`; the names say where it stands: "released" in
the released code, "old" in an older one. `nulls` are what `null_of` gives of each network.
Choices and boundaries take the networks by boundary as well, as `{"block": networks, "hidden_states": networks}`.
Networks without the name of a boundary are of "block", the last block's own output.
"""

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from companion.figures import parts, style, take
from companion.figures.take import VARIANT, K, of_networks
from companion.tables import readings as tables
from companion.tables.arrays import cells, records_of, with_ends
from coupling_lib.metrics.variants import VARIANTS

DRAWN, DRAWN_K = (*VARIANTS, "by_distance", "singular_values", "frobenius_norm"), 10
"""Variables of `measure_depth` that figures draw, and the K at which they draw single pairs where none is asked for."""
_NULLS = "nulls = cl.null_of(ds) of each network, side by side"
_COLUMNS, _ROW = 5, 0.24
"""Panels in a row of small panels; height in inches of a row of a dot plot."""
_BOUNDARIES = {
    "block": ("the block's own output", {"marker": "o"}),
    "hidden_states": ("after the final norm", {"marker": "D", "markerfacecolor": "none", "dashes": (2, 1.5)}),
}


@of_networks
def take_values(both: xr.Dataset, nulls: xr.Dataset | None = None) -> xr.Dataset:
    """Select the mean value of every variant at every K, and its distance from chance."""
    return tables.mean_readings(both, take.per_network(both, nulls, _NULLS))


@of_networks
def take_beyond_chance(both: xr.Dataset, k: K = None, nulls: xr.Dataset | None = None) -> xr.Dataset:
    """Select the values of `take_values` at one K."""
    return take_values(both, nulls).assign_attrs(k=take.chosen_k(both, k))


@of_networks
def take_agreement(both: xr.Dataset, k: K = None) -> xr.Dataset:
    """Select the rank correlation between variants over pairs of blocks, of the trained network or the last."""
    one = both.sel(network=take.main_network(both.network.values))
    found = tables.rank_agreement(one, take.chosen_k(both, k))
    return found.assign_attrs(k=take.chosen_k(both, k))


def take_choices(measured: take.Models, k: K = None, nulls: xr.Dataset | None = None) -> pd.DataFrame:
    """Select the coupling under each choice, all else being equal, of the boundaries that were measured."""
    found = take.networks_by_name(measured, "block")
    both, k = found["block"], take.chosen_k(found["block"], k)
    choices = tables.compare_choices(found, take.per_network(both, nulls, _NULLS), k)
    return take.with_records(choices, records_of(both))


def take_boundaries(
    measured: take.Models, variant: str = VARIANT, k: K = None, nulls: xr.Dataset | None = None
) -> xr.Dataset:
    """Select the coupling of each block, counted from 1, with all others, for each boundary of the last block."""
    found = take.networks_by_name(measured, "block")
    both, k = found["block"], take.chosen_k(found["block"], k)
    by_block = tables.coupling_by_block(found, variant, k)
    null = take.per_network(both, nulls, _NULLS).sel(network=take.main_network(both.network.values))
    null = take.null_beside(both, variant, k, null)
    counted = by_block.assign_coords(block=by_block.block + 1).assign_attrs(null=null)
    return take.with_records(counted, records_of(both))


@of_networks
def take_summary(both: xr.Dataset, k: K = None, nulls: xr.Dataset | None = None) -> pd.DataFrame:
    """Return the mean value of every variant, a row each, with two decimals."""
    means = take_values(both, nulls)
    chosen = means.sel(k=take.chosen_k(both, k))
    columns = {name: chosen["mean"].sel(network=name) for name in means.network.values}
    columns |= {"by chance": chosen.null.isel(network=-1), "beyond chance": chosen.share.isel(network=-1)}
    # Adding 0 removes the sign of a value rounded to zero.
    return pd.DataFrame(columns, index=means["variant"].to_index()).round(2) + 0.0


def draw_values(means: xr.Dataset) -> Figure:
    """Draw every variant's raw values against the number of singular vectors: a small panel and scale each."""
    variants, ks = means["variant"].values, means.k.values
    rows = -(-(len(variants) + 1) // _COLUMNS)
    figure = Figure(figsize=(style.WIDTH, 1.2 * rows + 0.2), layout="constrained")
    grid = figure.subplots(rows, _COLUMNS, sharex=True).ravel()
    for axes, name in zip(grid, variants, strict=False):
        for position, (network, ink, one) in enumerate(parts.networks(means.sel(variant=name))):
            axes.vlines(range(len(ks)), one.low, one.high, color=ink, linewidth=2.2, alpha=0.5)
            axes.plot(one["mean"], color=ink, marker="o", markersize=3, linewidth=1.2, label=network)
            line = {"color": style.colour(style.NULL), "linewidth": 1, "zorder": 1.5}
            dashes, label = (4, 2) if position else (1.2, 1.6), f"by chance, {network}'s spectra"
            axes.plot(one.null, dashes=dashes, label=label, **line)
        axes.set_title(name, fontsize=7, fontweight="normal", pad=3, loc="left", x=-0.2)
        axes.set_xticks(range(len(ks)), ks)
        axes.tick_params(labelsize=7)
        axes.yaxis.get_major_locator().set_params(nbins=3)
        axes.margins(x=0.1, y=0.2)
    spare = grid[len(variants) :]
    for axes in spare:
        axes.set_axis_off()
    handles = grid[0].get_legend_handles_labels()
    spare[len(spare) // 2].legend(*handles, loc="center", fontsize=8).set_in_layout(False)
    # The panels above the empty cells are the lowest of their columns.
    for axes in grid[len(variants) - _COLUMNS : len(variants)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("$K$", labelpad=1, fontsize=8)
    return figure


def draw_beyond_chance(means: xr.Dataset) -> Figure:
    """Draw the distance of each variant from chance, as a share of the distance to perfect coupling."""
    variants, k = means["variant"].values, means.attrs["k"]
    figure, axes, right = parts.one_panel(_ROW * len(variants) + 0.8, beside=1.35)
    axes.axvline(0, **parts.null_style("by chance"))
    percent = 100 * means[["share", "share_low", "share_high"]]
    for position, (network, ink, shares) in enumerate(parts.networks(percent)):
        rows = np.arange(len(variants)) + (0.17 if position else -0.17)
        for other in means.k.values[means.k.values != k]:
            axes.plot(shares.share.sel(k=other), rows, ".", color=ink, alpha=0.4, markersize=4, markeredgewidth=0)
        here = shares.sel(k=k)
        parts.dots(axes, rows, here.share, (here.share_low, here.share_high), ink, label=network)
    parts.rows_axis(axes, [name.replace("_", " ") for name in variants])
    # A variant that is not normalised lies far outside the others; the scale is linear where these are.
    axes.set_xscale("symlog", linthresh=5, linscale=1.6)
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in (-100, -20, -5, 0, 5, 20, 100) if low <= tick <= high])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"per cent of the way from chance\nto perfect coupling\n($K={k}$; small dots: other $K$)")
    parts.legend_beside(right, [axes])
    return figure


def draw_agreement(agreement: xr.Dataset) -> Figure:
    """Draw the rank correlation between variants over pairs of blocks, as numbers on shaded tiles."""
    names, values = agreement["variant"].values, agreement["mean"].values
    # A phone shows a third of the columns at a time, each with the names of the rows.
    thirds = np.array_split(np.arange(len(names)), 3)
    figure = Figure(figsize=(style.WIDTH, _ROW * len(names) + 2.6), layout="constrained")
    row = figure.subplots(1, 3, sharey=True, width_ratios=[len(third) for third in thirds])
    dark, light = sorted((style.colour("page"), style.colour("text")), key=_luminance)
    for axes, third in zip(row, thirds, strict=True):
        image = axes.imshow(values[:, third], cmap=style.ink(), vmin=0, vmax=1, interpolation="none", aspect="auto")
        for (i, j), value in np.ndenumerate(values[:, third]):
            properties = {"ha": "center", "va": "center_baseline", "fontsize": 8}
            # A correlation without a leading zero.
            text = f"{value:.2f}".replace("-0.00", "0.00").replace("1.00", "1").replace("0.", ".").replace("-", "−")
            # Light on a dark ground and the reverse; contrast with black and white is the same at 0.18 (WCAG).
            ink = dark if _luminance(image.to_rgba(value)) > 0.18 else light
            axes.text(j, i, text, color=ink, **properties)
        axes.set_yticks(range(len(names)), names)
        axes.set_xticks(range(len(third)), names[third], rotation=90)
        axes.xaxis.tick_top()
        axes.tick_params(length=0, pad=3)
        axes.spines[:].set_visible(False)
    label = f"rank correlation over pairs of blocks  ($K={agreement.attrs['k']}$, mean over prompts)"
    parts.colour_bar(row, image, label, extend="min")
    return figure


def _luminance(colour: str | tuple[float, ...]) -> float:
    """Return the relative luminance, 0 for black and 1 for white, with a power for sRGB's curve."""
    return float(np.power(to_rgb(colour), 2.2) @ (0.2126, 0.7152, 0.0722))


def draw_choices(choices: pd.DataFrame) -> Figure:
    """Draw one measurement under many choices: the coupling with each choice changed, all else being equal."""
    labels = choices[["point", "reading"]].drop_duplicates()
    # The name of a group stands above it.
    labels["row"] = np.arange(len(labels)) + 1.4 * pd.factorize(labels.point)[0]
    networks, grey = choices.network.unique(), style.colour(style.NULL)
    figure, (axes, numbers) = parts.panels(["", ""], _ROW * labels.row.max() + 1.6, named=True, sharey=True)
    for position, network in enumerate(networks):
        part, ink = choices[choices.network == network].merge(labels), style.dataset_colour(network, position)
        shifted = part.row + (0.17 if position else -0.17)
        parts.dots(axes, shifted, part.coupling, (part.low, part.high), ink, label=network)
        chance = axes.scatter(part.null, shifted, marker="|", s=45, color=grey, linewidths=1.6, zorder=2)
        _write_column(numbers, (position + 0.9) / (len(networks) + 1), network, part.row, part.coupling, ink)
    chance.set_label("by chance")
    _write_column(numbers, (len(networks) + 0.9) / (len(networks) + 1), "chance", part.row, part.null, grey)
    parts.rows_axis(axes, labels.reading, labels.row)
    axes.set_ylim(top=-1.7)
    numbers.tick_params(length=0, labelbottom=False)
    numbers.spines[:].set_visible(False)
    numbers.grid(False)
    for point, row in labels.groupby("point").row.min().items():
        where = {"xycoords": axes.get_yaxis_transform(), "xytext": (-5, 0), "textcoords": "offset points"}
        properties = {"ha": "right", "va": "center_baseline", "fontweight": "bold", "fontsize": 8.5}
        axes.annotate(point, (0, row - 1), annotation_clip=False, **where, **properties)
        for one in (axes, numbers) if row else ():
            one.axhline(row - 1.7, color=style.colour("faint"), linewidth=0.6)
    axes.axvline(0, color=style.colour("faint"), linewidth=0.8)
    axes.set_xlabel("coupling, mean over\npairs of blocks and prompts")
    parts.legend_under(figure, [axes])
    return figure


def _write_column(axes: Axes, end: float, title: str, rows: pd.Series, values: pd.Series, ink: str) -> None:
    """Write numbers in a column of a panel, under their title."""
    properties = {"ha": "right", "va": "center_baseline", "fontsize": 8, "color": ink}
    for row, text in [(-1, title), *zip(rows, (f"{value:.3f}".replace("-", "−") for value in values), strict=True)]:
        axes.text(end, row, text, transform=axes.get_yaxis_transform(), **properties)


def draw_boundaries(by_block: xr.Dataset) -> Figure:
    """Draw the coupling of each block with all others, for both boundaries of the last block."""
    figure, axes, right = parts.one_panel(3.2)
    for network, ink, one in parts.networks(by_block):
        for boundary in by_block.boundary.values:
            meaning, properties = _BOUNDARIES[boundary]
            line = {"markersize": 4, "label": f"{network}, {meaning}"} | properties
            parts.band(axes, one.sel(boundary=boundary), "block", ink, 0.13, **line)
    parts.chance(axes, by_block.null)
    parts.block_axis(axes)
    axes.set_ylabel(f"coupling with other blocks  ($K={by_block.attrs['k']}$)")
    parts.legend_beside(right, [axes])
    return figure


def numbers_of(measured: take.Models, k: K = None, nulls: xr.Dataset | None = None) -> dict[str, float]:
    """Return the numbers that prose may quote, by name; chance is that of the last network, the trained one."""
    both = take.networks_by_name(measured, "block")["block"]
    k, prompts = take.chosen_k(both, k), both.sizes["prompt"]
    means, agreement = take_values(both, nulls), take_agreement(both, k)
    choices = take_choices(measured, k, nulls)
    at = means.sel(k=k, drop=True)
    own = at[["mean", "low", "high"]].to_dataframe(dim_order=["variant", "network"])
    last = at.isel(network=-1, drop=True).to_dataframe()
    last = last.assign(error=(last.share_high - last.share_low) / (2 * 1.96), n=prompts)
    chance, beyond = {"null": "{}-random-bases", "null_error": "{}-random-bases-error"}, "{}-beyond-chance"
    chance |= {"share": beyond} | {f"share_{end}": f"{beyond}-{end}" for end in ("low", "high")}
    chance |= {"error": f"{beyond}-error", "n": f"{beyond}-n"}
    numbered = choices.assign(number=choices.groupby("network").cumcount() + 1).set_index(["number", "network"])
    choice = {"null": "choice-{}-{}-null", "null_error": "choice-{}-{}-null-error"}
    alike = agreement["mean"].sel(other="normalized_miscoupling").to_series()
    return (
        {"prompts": prompts} | {f"agreement-{name}": float(value) for name, value in alike.items()}
        | cells(own, with_ends("{}-{}")) | cells(last, chance)
        | cells(numbered, choice | with_ends("choice-{}-{}", "coupling"))
    )  # fmt: skip
