"""Perturbations: noise on an embedding, followed through the network and through its linearisation.

Draws are averaged within each prompt, and intervals are those of the mean over prompts
(`coupling_lib.datasets.statistics`), so that they cover prompts and draws together.
"""

import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from companion.figures import parts, style
from companion.figures.take import of_networks
from companion.tables import effects
from companion.tables.arrays import cells, joined, with_ends
from coupling_lib.datasets.summaries import interval

CARRIERS = {
    "network": ("network", {"linewidth": 3.6, "alpha": 0.45}),
    "linear": ("linearised", {"linewidth": 1.4, "dashes": (4, 1.6)}),
    "random": ("linearised, by chance", {"linewidth": 1.4, "dashes": (1.2, 1.6)}),
}
"""Carriers of a perturbation: their label in figures, and line styles of which two that coincide are both seen."""
_COSINE = "cosine with the clean state"


@of_networks
def take_depth(both: xr.Dataset) -> xr.Dataset:
    """Select the cosine of perturbed with clean states at every level, in the network and linearised."""
    return interval(both.cosine.sel(carrier=["network", "linear"]).mean("draw"))


@of_networks
def take_ends(both: xr.Dataset) -> xr.Dataset:
    """Select the cosine with the clean state after the first and after the last block, by noise level."""
    ends = both.cosine.isel(level=[1, -1]).rename(level="block").assign_coords(block=["first", "last"])
    return interval(ends.mean("draw")).assign_attrs(kind=both.attrs.get("kind", ""))


@of_networks
def take_error(both: xr.Dataset) -> xr.Dataset:
    """Select amplification at the smallest noise, and the linearisation's error after the last block."""
    amplification = interval(both.amplification.sel(noise=[both.noise.min()]).mean("draw"))
    error = interval(both.linear_error.isel(level=[-1]).mean("draw")).expand_dims(carrier=["linear"])
    found = joined({"amplification": amplification, "error": error}, "quantity")
    return found.assign_attrs(kind=both.attrs.get("kind", ""))


def draw_depth(cosines: xr.Dataset) -> Figure:
    """Draw the cosine of perturbed with clean states against depth, one colour per noise level (figure 32)."""
    figure, row = parts.panels(cosines.network.values, 4.2, sharey=True, y=_COSINE)
    for axes, name in zip(row, cosines.network.values, strict=True):
        for noise, ink in zip(cosines.noise.values, parts.shades(cosines.sizes["noise"]), strict=True):
            for carrier, marker, label in (("network", "o", f"noise {noise:g}"), ("linear", "D", None)):
                marks = {"marker": marker, "markersize": 5.5, "markevery": [1, cosines.sizes["level"] - 1]}
                one = cosines.sel(network=name, noise=noise, carrier=carrier)
                parts.band(axes, one, "level", ink, 0.16, label=label, **marks, **CARRIERS[carrier][1])
        for carrier in cosines.carrier.values:
            label, properties = CARRIERS[carrier]
            axes.plot([], [], color=style.colour("text"), label=label, **properties)
        parts.block_axis(axes, "level $l$ (0 is the embedding)")
    parts.legend_under(figure, row[:1], columns=max(3, cosines.sizes["noise"]))
    return figure


def draw_ends(cosines: xr.Dataset) -> Figure:
    """Draw the cosine with the clean state against the noise level, after the first and after the last block."""
    figure, row = parts.panels(cosines.network.values, 3.8, sharey=True, y=_COSINE)
    for axes, (_, own, one) in zip(row, parts.networks(cosines), strict=True):
        for carrier, (title, line) in CARRIERS.items():
            ink = style.colour(style.NULL) if carrier == "random" else own
            for block, marker, fill in (("first", "s", "none"), ("last", "o", "full")):
                marks = {"marker": marker, "markersize": 5.5, "fillstyle": fill, "label": f"{block} block, {title}"}
                parts.band(axes, one.sel(carrier=carrier, block=block), "noise", ink, 0.13, **marks, **line)
        _noise_axis(axes, cosines)
    parts.legend_under(figure, row[-1:], columns=3)
    return figure


def draw_error(quantities: xr.Dataset) -> Figure:
    """Draw the amplification of the smallest noise by blocks, and the error of the linearisation."""
    noise, last = quantities.noise.min().item(), quantities.level.max().item()
    titles = [f"Amplification of noise {noise:g}", "Error of the linearisation, last block"]
    figure, row = parts.panels(titles, 3.8, plain=True)
    amplification = quantities.sel(quantity="amplification", noise=noise)
    for carrier, (title, line) in CARRIERS.items():
        for name, ink, one in parts.networks(amplification.sel(carrier=carrier)):
            parts.band(row[0], one, "level", ink, 0.13, label=f"{name}, {title}", **line)
    errors = quantities.sel(quantity="error", carrier="linear", level=last)
    parts.bands(row[1], errors, "noise", marker="o", markersize=4, label=None)
    for axes, label in zip(row, (r"$\Vert\delta^l\Vert\,/\,\Vert\delta^0\Vert$", "relative error"), strict=True):
        parts.log_axis(axes)
        axes.set_ylabel(label)
    parts.block_axis(row[0], "level $l$")
    _noise_axis(row[1], quantities)
    parts.legend_under(figure, row, columns=3)
    return figure


@of_networks
def take_summary(both: xr.Dataset, noise: float | None = None) -> pd.DataFrame:
    """Summarise one noise level, by default the middle one: the cosine at three places."""
    noise = middle_noise(both) if noise is None else noise
    cosine = interval(both.cosine.sel(noise=noise, method="nearest", drop=True).mean("draw"))
    places = {"embedding": ("mean", 0), "first block": ("mean", 1), "last block": ("mean", -1)}
    places |= {"low": ("low", -1), "high": ("high", -1)}
    columns = {name: cosine[part].isel(level=level, drop=True) for name, (part, level) in places.items()}
    return xr.Dataset(columns).to_dataframe(dim_order=["network", "carrier"])[list(places)]


def middle_noise(ds: xr.Dataset) -> float:
    """Return the noise level in the middle of those that were measured."""
    return float(ds.noise[ds.sizes["noise"] // 2])


def numbers_of(both: xr.Dataset, noise: float | None = None) -> dict[str, float | str]:
    """Return the numbers that the book quotes at one noise level, by default the middle one, by name."""
    noise = middle_noise(both) if noise is None else noise
    found = {"noise": f"{noise:g}", "noise-smallest": f"{both.noise.min().item():g}", "prompts": both.sizes["prompt"]}
    names = {"first block": "first-{1}-{0}"} | with_ends("last-{1}-{0}", "last block")
    found |= cells(take_summary(both, noise), names)
    smallest = take_error(both)["mean"].sel(quantity="error", carrier="linear").isel(level=-1, noise=0)
    found |= {f"error-{name}": smallest.sel(network=name).item() for name in both.network.values}
    return found | effects.numbers(effects.of_perturbation(both.sel(network="trained"), noise))


def _noise_axis(axes: Axes, data: xr.Dataset) -> None:
    noise, absolute = data.noise, data.attrs.get("kind") == "absolute"
    axes.set(xscale="log", xlabel=f"noise, {'standard deviation' if absolute else 'relative to the embedding'}")
    axes.set_xticks(noise, [f"{level:g}" for level in noise.values])
    axes.xaxis.set_minor_locator(NullLocator())
