"""Lenses: predictions at each depth, their distance from the answer, and the effect of including a token's futures."""

import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.figures.take import of_networks, of_one
from companion.figures.tokens import token_label
from companion.tables.arrays import cells, with_ends
from coupling_lib.datasets.summaries import interval

_PROPERTIES = {
    "logit lens": {"dashes": (4, 1.6)},
    "own lens": {"linewidth": 2.6},
    "mean lens": {"dashes": (1.2, 1.6)},
    "lens with futures": {"dashes": (6, 1.6, 1.2, 1.6)},
    "affine fit": {},
    "no state": {"dashes": (4, 3), "linewidth": 1.2},
}


@of_networks
def take_divergence(both: xr.Dataset) -> xr.Dataset:
    """Select the distance of every lens from the model's own answer, at every depth but the last, where it is 0."""
    return interval(both.divergence.isel(depth=slice(None, -1)))


def draw_divergence(divergence: xr.Dataset) -> Figure:
    """Draw the divergence against depth, one line per lens, a panel per network."""
    figure, row = parts.panels(divergence.network.values, 3.9, sharey=True, y="KL from the model's answer (nats)")
    for axes, name in zip(row, divergence.network.values, strict=True):
        for place, lens in enumerate(divergence.lens.values):
            ink = style.colour(style.NULL) if lens == "no state" else style.dataset_colour(lens, place)
            one = divergence.sel(network=name, lens=lens)
            parts.band(axes, one, "depth", ink, 0.13, label=lens, **_PROPERTIES[lens])
        parts.block_axis(axes, "depth $l$ (0 is the embedding)")
        parts.log_axis(axes)
    parts.legend_under(figure, row[:1], columns=3)
    return figure


@of_networks
def take_futures(both: xr.Dataset) -> xr.DataArray:
    """Select the distance of the lens with futures from that of a token's own position, at every depth but the last."""
    return both.futures_apart.isel(prompt=0, drop=True).isel(depth=slice(None, -1))


def draw_futures(apart: xr.DataArray) -> Figure:
    """Draw this distance against depth, one line per network."""
    figure, axes, right = parts.one_panel(3.1, beside=1.3)
    for name, ink, one in parts.networks(apart):
        axes.plot(one.depth, one, color=ink, label=name)
    parts.block_axis(axes, "depth $l$ (0 is the embedding)")
    parts.from_zero(axes)
    axes.set_ylabel("distance, relative")
    parts.legend_beside(right, [axes])
    return figure


@of_one
def take_readout(words: xr.Dataset) -> xr.Dataset:
    """Select the predictions at every depth for one text, the last depth first."""
    return words.isel(depth=slice(None, None, -1))


def draw_readout(read: xr.Dataset) -> Figure:
    """Draw the tokens of every depth as a grid, the last depth on top, each shaded by its probability."""
    figure, row = parts.panels(read.lens.values, 0.9 + 0.26 * read.sizes["depth"], sharey=True, y="depth $l$")
    for axes, lens in zip(row, read.lens.values, strict=True):
        one = read.sel(lens=lens)
        axes.imshow(one.probability, cmap=style.ink(), vmin=0, vmax=2, aspect="auto", interpolation="none")
        for y, words in enumerate(one.token.values):
            for x, word in enumerate(words):
                axes.text(x, y, token_label(str(word)), ha="center", va="center", fontsize=8)
        axes.set(xticks=range(read.sizes["rank"]), xticklabels=read["rank"].values, xlabel="rank")
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    row[0].set_yticks(range(read.sizes["depth"]), read.depth.values)
    return figure


@of_networks
def take_summary(both: xr.Dataset) -> pd.DataFrame:
    """Summarise the inner depths: the divergence of each lens with its interval, and its share of agreement."""
    inner = both.isel(depth=slice(1, -1)).mean("depth")
    table = interval(inner.divergence).rename(mean="divergence").assign(agrees=inner.agrees.mean("prompt"))
    return table.to_dataframe(dim_order=["network", "lens"])[["divergence", "low", "high", "agrees"]]


def numbers_of(both: xr.Dataset) -> dict[str, float | str]:
    """Return the numbers that the book quotes, means over the inner depths, and the agreement of interventions."""
    found: dict[str, float | str] = {"prompts": both.sizes["prompt"], "fitted-on": int(both.attrs["fitted_on"])}
    names = with_ends("{1}-{0}", "divergence") | {"agrees": "{1}-agrees-{0}"}
    found |= cells(take_summary(both), names)
    for name in both.network.values:
        one = both.sel(network=name).isel(depth=slice(1, -1))
        gain = interval((one.divergence.sel(lens="logit lens") - one.divergence.sel(lens="own lens")).mean("depth"))
        found |= {label: float(gain[part]) for part, label in with_ends(f"gain-{name}").items()}
        found[f"slope-worst-{name}"] = float(abs(both.slope.sel(network=name) - 1).max())
        found[f"futures-{name}"] = float(one.futures_apart.isel(prompt=0).mean())
    return found
