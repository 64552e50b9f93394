"""Spectra: singular values against depth, the whole spectrum of a block, and agreement of left and right.

`fits` and `nulls` are what `spectra_fits` and `spectra_null` give of each network.
"""

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from companion.figures import parts, style, take
from companion.figures.take import of_networks
from companion.tables import effects
from companion.tables.arrays import cells, from_one, joined, quartiles, with_ends
from coupling_lib.datasets.summaries import interval

FIRST = 10
"""Number of the largest singular values that are drawn in a network's own colour, as in the paper's figures."""

_COLUMNS = {
    "stable rank": "stable-rank-{}", **with_ends("alignment-{}", "alignment"), "exchanged": "exchanged-{}",
    "R2": "r2-{}", "R2 low": "r2-{}-low", "R2 high": "r2-{}-high",
}  # fmt: skip
"""Columns of the summary, and the names of their numbers in the book."""
_FITS = "fits = spectra_fits(ds) of each network, side by side, of coupling_lib.measures.spectra"
_NULLS = "nulls = spectra_null(ds) of each network, side by side, of coupling_lib.measures.random_bases"
_VALUE = r"singular value $\sigma_i(J_l)$"


@of_networks
def take_top(both: xr.Dataset) -> xr.Dataset:
    """Select the largest singular values against depth, medians with quartiles."""
    return _from_one(quartiles(both.singular_values))


@of_networks
def take_inverse(both: xr.Dataset, fits: xr.Dataset | None = None) -> xr.Dataset:
    r"""Select $1/\sigma_1$ against depth, of every prompt and their median, the line, and how well lines fit."""
    fits = take.per_network(both, fits, _FITS)
    each = 1 / both.singular_values.isel(rank=0, drop=True)
    inverse = _from_one(xr.Dataset({"median": each.median("prompt"), "each": each}))
    lines = fits.intercept.mean("prompt") + fits.slope.mean("prompt") * inverse.block
    shown = lines.where(inverse.block > fits.attrs["first_block"])
    r_squared = interval(fits.r_squared).rename(mean="r_squared", low="r_squared_low", high="r_squared_high")
    taken = inverse.assign(line=shown.transpose("network", "block"), slope=fits.slope.mean("prompt"), **r_squared)
    return taken.assign_attrs(first_block=fits.attrs["first_block"] + 1)


@of_networks
def take_whole(both: xr.Dataset) -> xr.Dataset:
    """Select the spectra of the blocks that were measured in full, and the exponent of each one's power law."""
    spectrum = both.spectrum.rename(whole="block", index="rank")
    exponent = both.decay_exponent.mean("prompt").rename(whole="block")
    return _from_one(quartiles(spectrum).assign(exponent=exponent))


@of_networks
def take_alignment(both: xr.Dataset, nulls: xr.Dataset | None = None) -> xr.Dataset:
    """Select stable rank and agreement of left and right vectors against depth, beside random bases."""
    nulls = take.per_network(both, nulls, _NULLS)
    exchanged = 1 - nulls.exchanged_miscoupling.mean("sample")
    closed, none = xr.zeros_like(exchanged), xr.full_like(exchanged, np.nan)
    chance = {"stable rank": none, "alignment": closed + nulls.left_right_alignment, "exchanged coupling": exchanged}
    errors = {"stable rank": none, "alignment": closed, "exchanged coupling": _exchanged_errors(nulls)}
    taken = interval(joined(_agreement(both), "quantity")).transpose("network", "quantity", "block")
    taken = taken.assign(null=joined(chance, "quantity"), null_error=joined(errors, "quantity"))
    return _from_one(taken).assign_attrs(k=both.sizes["rank"])


@of_networks
def take_summary(both: xr.Dataset, fits: xr.Dataset | None = None, nulls: xr.Dataset | None = None) -> pd.DataFrame:
    """Summarise spectra in a table: means over blocks, then over prompts."""
    fits, last, lines = take.per_network(both, fits, _FITS), take.per_network(both, nulls, _NULLS).isel(network=-1), {}
    for name, _, one in parts.networks(both):
        rank, alignment, exchanged = (values.mean("block") for values in _agreement(one).values())
        aligned, r_squared = interval(alignment), interval(fits.r_squared.sel(network=name))
        lines[name] = [rank.mean(), *aligned.values(), exchanged.mean(), *r_squared.values()]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=list(_COLUMNS)).astype(float)
    chance = {"alignment": float(last.left_right_alignment), "exchanged": 1 - float(last.exchanged_miscoupling.mean())}
    table.loc["by chance"] = pd.Series(chance).reindex(table.columns)
    return table


def numbers_of(both: xr.Dataset, fits: xr.Dataset, nulls: xr.Dataset) -> dict[str, float | str]:
    """Return the numbers that the book quotes of a model before and after training and the verdicts' effects."""
    summary = take_summary(both, fits, nulls)
    chance = summary.loc["by chance"]
    found = cells(summary.drop(index="by chance"), _COLUMNS)
    found |= {f"decay-{name}": one.decay_exponent.mean().item() for name, _, one in parts.networks(both)}
    found |= effects.numbers(effects.of_spectra(both, fits))
    found |= {
        "alignment-null": chance["alignment"],
        "alignment-null-error": 0.0,  # closed form
        "exchanged-null": chance["exchanged"],
        "exchanged-null-error": _exchanged_errors(nulls).isel(network=-1).mean().item(),
        "fit-from": f"{fits.attrs['first_block'] + 1}",
        "prompts": both.sizes["prompt"],
    }
    for name, _, one in parts.networks(both):
        ends = interval(one.stable_rank.mean("block"))
        found |= {f"stable-rank-{name}-{end}": ends[end].item() for end in ("low", "high")}
    return found


def draw_top(values: xr.Dataset) -> Figure:
    """Draw the largest singular values of every block against depth (the paper's figures 33 and 34, right)."""
    networks, last = parts.networks(values), int(values["rank"].max())
    figure, row = parts.panels(values.network.values, 3.9, sharey=True, y=_VALUE)
    own = [ink for _, ink, _ in networks]
    other = next(ink for ink in (style.dataset_colour("other", i) for i in range(len(own) + 1)) if ink not in own)
    for axes, (name, ink, one) in zip(row, networks, strict=True):
        labels = {1: f"{name}, ranks 1 to {min(FIRST, last)}"}
        if axes is row[-1]:
            labels[FIRST + 1] = f"ranks {FIRST + 1} to {last}"
        for rank in values["rank"].values:
            properties = {"linewidth": 1.1, "label": labels.get(rank)}
            parts.band(axes, one.sel(rank=rank), "block", other if rank > FIRST else ink, 0.12, **properties)
        parts.block_axis(axes)
    parts.log_axis(row[0])
    parts.legend_under(figure, row)
    return figure


def draw_inverse(inverse: xr.Dataset) -> Figure:
    r"""Draw $1/\sigma_1$ against depth with its least-squares line (the paper's figures 33 and 34, left)."""
    narrow = inverse.sizes["network"] > 2
    figure, row = parts.panels(inverse.network.values, 4.0 if narrow else 3.7, sharey=True, y=r"$1\,/\,\sigma_1(J_l)$")
    for axes, (name, ink, one) in zip(row, parts.networks(inverse), strict=True):
        for prompt in range(one.sizes["prompt"]):  # by number, as all images have one name
            axes.plot(one.block, one.each.isel(prompt=prompt), ".", markersize=2.5, alpha=0.5, color=ink, zorder=1)
        axes.plot(
            one.block, one["median"], "o", markersize=4, color=ink, label=f"{name}, median of prompts (small dots)"
        )
        axes.plot(one.block, one.line, color=style.colour("text"), linewidth=1.3, label="least-squares line")
        ends = "" if np.isnan(one.r_squared_low) else f"  [{one.r_squared_low:.2f}, {one.r_squared_high:.2f}]"
        fit = f"from block {inverse.first_block}: slope {one.slope:.3f},", f"$R^2={one.r_squared:.2f}${ends}"
        text = ("\n" if narrow else " ").join(fit)
        axes.text(0.5, 1.03, text, transform=axes.transAxes, ha="center", fontsize=8.5)
        axes.set_title(parts.title_of(name), pad=30 if narrow else 19)
        parts.block_axis(axes)
    row[0].set_ylim(bottom=0)
    parts.legend_under(figure, row, columns=2 if narrow else None)
    return figure


def draw_whole(spectra: xr.Dataset) -> Figure:
    """Draw all singular values of a few blocks, both axes logarithmic: a power law is a straight line."""
    figure, row = parts.panels(spectra.network.values, 3.7, sharey=True, y=_VALUE)
    for axes, name in zip(row, spectra.network.values, strict=True):
        for block, ink in zip(spectra.block.values, parts.shades(spectra.sizes["block"]), strict=True):
            one = spectra.sel(network=name, block=block)
            parts.band(axes, one, "rank", ink, label=f"block {block}  ($a={one.exponent:.2f}$)")
        axes.set(xscale="log", yscale="log", xlabel="rank $i$")
        axes.legend(loc="lower left")
    row[0].set_ylim(0.5 * spectra["median"].quantile(0.02), 1.6 * spectra.high.max())
    return figure


def draw_alignment(alignment: xr.Dataset) -> Figure:
    """Draw stable rank and agreement of left with right singular vectors against depth, beside random bases."""
    titles = {
        "stable rank": "Stable rank",
        "alignment": rf"Mean $|u_i^\top v_i|$, $i \leq {alignment.k}$",
        "exchanged coupling": rf"$1-\tilde m$ of $V^\top J\,U$, $K={alignment.k}$",
    }
    figure, row = parts.panels(list(titles.values()), 3.3, plain=True)
    for axes, quantity in zip(row, titles, strict=True):
        here = alignment.sel(quantity=quantity)
        parts.bands(axes, here, "block", marker="o", markersize=3)
        chance = here.isel(network=-1)
        axes.plot(here.block, chance.null, **parts.null_style("by chance"))
        ends = chance.null - chance.null_error, chance.null + chance.null_error
        axes.fill_between(here.block, *ends, color=style.colour(style.NULL), alpha=0.25, linewidth=0)
        axes.set_ylim(bottom=0)
        parts.block_axis(axes)
    parts.legend_under(figure, row)
    return figure


def _exchanged_errors(nulls: xr.Dataset) -> xr.DataArray:
    """Return the standard error of each block's mean exchanged mis-coupling of random bases."""
    draws = nulls.exchanged_miscoupling
    return draws.std("sample", ddof=1) / draws.sizes["sample"] ** 0.5


def _agreement(both: xr.Dataset) -> dict[str, xr.DataArray]:
    """Select the measures of agreement of left and right vectors, of each prompt and block."""
    return {
        "stable rank": both.stable_rank.astype(float),
        "alignment": both.left_right_alignment.astype(float),
        "exchanged coupling": 1 - both.exchanged_miscoupling.astype(float),
    }


def _from_one(ds: xr.Dataset) -> xr.Dataset:
    """Count blocks and ranks from 1."""
    counted = ds.assign_coords(block=ds.block + 1)
    return from_one(counted, "rank") if "rank" in ds.dims else counted
