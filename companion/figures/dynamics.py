"""Linear dynamics: products of I + J, the remainder that they omit, and growth along shared directions."""

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.figures.take import of_networks
from companion.tables import effects
from companion.tables.arrays import cells, from_one, joined, quartiles, with_ends
from coupling_lib.datasets.summaries import interval

GROWTH = {
    "singular": (r"$\prod(1+\sigma)$: predicted from singular values", {"dashes": (5, 1.5)}),
    "along": (r"$\prod|1+u^\top J\,u|$: predicted along $u$", {"dashes": (1.2, 1.2)}),
    "response": (r"$|u^\top\prod(I+J)\,u|$: linearised network", {}),
    "state": (r"$|u^\top x^l|\,/\,|u^\top x^0|$: the state itself", {"dashes": (6, 1.5, 1, 1.5)}),
    "null": ("linearised network, by chance", {"dashes": (4, 3)}),
}
"""Kinds of growth along a direction, with their labels and line styles."""

_BOOK = with_ends("product-{}", "product") | {
    "random": "product-null-{}", "released": "released-{}", "share": "embedding-share-{}", "u.v": "left-right-{}",
    "predicted": "growth-predicted-{}", "growth": "growth-{}",
}  # fmt: skip
"""Names of the summary's columns in the book, for a network."""


@of_networks
def take_carried(both: xr.Dataset, quantity: str = "cosine") -> xr.Dataset:
    """Select how products of I + J_l with states agree with the states: from the embedding, and to the last state."""
    name = quantity.replace(" ", "_")
    carried = both[f"carried_{name}"]
    routes = {
        "from embedding": carried.isel(start=0, drop=True),
        "to last": carried.isel(level=-1, drop=True).rename(start="level").assign_coords(level=both.level),
        "by chance": both[f"null_{name}"],
    }
    return interval(joined(routes, "route")).assign_attrs(quantity=quantity)


@of_networks
def take_routes(both: xr.Dataset) -> xr.Dataset:
    """Select the agreement of each linearisation with the last state, in direction and in length."""
    return interval(joined({"cosine": both.end_cosine, "norm ratio": both.end_norm_ratio}, "quantity"))


@of_networks
def take_remainders(both: xr.Dataset) -> xr.Dataset:
    """Select the linear share of each block, and the composition of the last state (level 0 is the embedding)."""
    linear = from_one(both.linear_norm_ratio.rename(block="level"), "level")
    return interval(joined({"linear part": linear, "share of last state": both.contribution}, "quantity"))


@of_networks
def take_growth(both: xr.Dataset) -> xr.Dataset:
    """Select growth along every shared direction, as natural logarithms."""
    growth = joined({kind: both[f"growth_{kind}"] for kind in GROWTH}, "kind").astype(float)
    return quartiles(from_one(growth, "direction"))


@of_networks
def take_directions(both: xr.Dataset) -> xr.DataArray:
    """Select the growth per block along every shared direction, predicted twice and measured: medians, as factors."""
    final = take_growth(both)["median"].isel(level=-1, drop=True).sel(kind=["singular", "along", "response"])
    return np.exp(final / both.sizes["block"]).rename("growth_per_block")


@of_networks
def take_left_right(both: xr.Dataset) -> xr.Dataset:
    """Select the cosine of each left singular vector with its right one, with its sign, and its mean over ranks."""
    cosine = from_one(both.left_right_cosine.mean("prompt"), "block", "rank")
    return xr.Dataset({"cosine": cosine, "mean_over_ranks": cosine.mean("rank")}, attrs={"width": both.attrs["width"]})


def draw_carried(carried: xr.Dataset) -> Figure:
    """Draw the agreement of products of I + J_l with the states that the network reaches."""
    titles = {"from embedding": "From the embedding to level $l$", "to last": "From level $l$ to the last"}
    figure, row = parts.panels([*titles.values()], 3.5, plain=True, sharey=True)
    for axes, route in zip(row, titles, strict=True):
        parts.bands(axes, carried.sel(route=route), "level", marker="o", markersize=3)
        parts.block_axis(axes, "level $l$")
    for name, ink, one in parts.networks(carried.sel(route="by chance")):
        line = {"linewidth": 1.2, "dashes": (4, 3), "label": f"{name}, by chance"}
        parts.band(row[0], one, "level", (ink, 0.75), 0.12, **line)
    if carried.quantity == "cosine":
        row[0].set(ylim=(None, 1.05), ylabel="cosine with the true state")
    else:
        parts.log_axis(row[0])
        row[0].set_ylabel("length relative to the true state")
    parts.legend_under(figure, row, columns=4)
    return figure


def draw_routes(routes: xr.Dataset) -> Figure:
    """Draw the agreement of each linearisation with the last state: direction left, length right."""
    titles = {"cosine": "Cosine with the last state", "norm ratio": "Length relative to it"}
    figure, row = parts.panels([*titles.values()], 2.9, plain=True, named=True, sharey=True)
    names = routes.reading.values
    for axes, quantity in zip(row, titles, strict=True):
        for position, (name, ink, one) in enumerate(parts.networks(routes.sel(quantity=quantity))):
            height = np.arange(len(names)) + 0.22 * (position - (routes.sizes["network"] - 1) / 2)
            axes.plot(one["mean"], height, "o", color=ink, markersize=4.5, label=name)
            axes.hlines(height, one.low, one.high, color=ink, linewidth=1.6)
        parts.rows_axis(axes, names, room=0.5)
        axes.axvline(1, color=style.colour("text"), linewidth=0.8)
    row[1].set_xscale("log")
    parts.legend_under(figure, row)
    return figure


def draw_remainders(remainders: xr.Dataset) -> Figure:
    """Draw the linear share of each block, and the composition of the last state."""
    titles = {
        "linear part": r"$\Vert J_l\,x^{l-1}\Vert\,/\,\Vert f^l(x^{l-1})\Vert$",
        "share of last state": "Share of the last state",
    }
    figure, row = parts.panels([*titles.values()], 3.5, plain=True)
    for axes, quantity in zip(row, titles, strict=True):
        parts.bands(axes, remainders.sel(quantity=quantity), "level", marker="o", markersize=3)
    row[0].axhline(1, color=style.colour("text"), linewidth=0.9)
    row[0].set_yscale("log")
    parts.block_axis(row[0])
    row[1].axhline(0, color=style.colour("text"), linewidth=0.7)
    parts.block_axis(row[1], "level: 0 the embedding, $l$ the remainder of block $l$")
    parts.legend_under(figure, row)
    return figure


def draw_growth(growth: xr.Dataset, direction: int = 1) -> Figure:
    """Draw growth along a shared direction, measured and predicted, as factors."""
    figure, row = parts.panels(growth.network.values, 4.3, sharey=True, y=f"growth along direction {direction}")
    for axes, (_, own, one) in zip(row, parts.networks(growth.sel(direction=direction)), strict=True):
        for kind, (label, line) in GROWTH.items():
            ink = style.colour(style.NULL) if kind == "null" else own
            parts.band(axes, np.exp(one.sel(kind=kind)), "level", ink, 0.13, linewidth=1.5, label=label, **line)
        axes.set_yscale("log")
        parts.block_axis(axes, "level $l$")
    parts.legend_under(figure, row[-1:], columns=2)
    return figure


def draw_directions(growth: xr.DataArray) -> Figure:
    """Draw, for every shared direction, its growth in the linearised network against the two predictions."""
    titles = {"singular": "Predicted from singular values", "along": "Predicted along the direction"}
    figure, row = parts.panels([*titles.values()], 3.5, plain=True, y="growth per block")
    for axes, kind in zip(row, titles, strict=True):
        shown = growth.sel(kind=[kind, "response"])
        for name, ink, one in parts.networks(shown):
            axes.plot(*one.transpose("kind", ...).values, "o", color=ink, markersize=4, label=name)
        ends = [shown.min() - 0.02, shown.max() + 0.02]
        axes.plot(ends, ends, color=style.colour("text"), linewidth=0.9, label="prediction is right")
        axes.set_xlabel("predicted growth per block")
    parts.legend_under(figure, row)
    return figure


def draw_left_right(cosines: xr.Dataset) -> Figure:
    """Draw the cosine of every left singular vector with its right one, with its sign."""
    figure, row = parts.panels(cosines.network.values, 3.5, sharey=True, y=r"$u_i^\top v_i$")
    spread = int(cosines.attrs["width"]) ** -0.5
    for axes, (_, ink, one) in zip(row, parts.networks(cosines), strict=True):
        blocks, values = xr.broadcast(one.block, one.cosine)
        dots = {"color": ink, "markersize": 3.2, "alpha": 0.55, "label": "one rank"}
        axes.plot(blocks.values.ravel(), values.values.ravel(), "o", **dots)
        axes.plot(one.block, one.mean_over_ranks, color=ink, label="mean over ranks")
        null = {"color": style.colour(style.NULL), "alpha": 0.2, "linewidth": 0}
        axes.axhspan(-spread, spread, label="by chance: two thirds of pairs", **null)
        axes.axhline(0, color=style.colour("text"), linewidth=0.7)
        parts.block_axis(axes)
    parts.legend_under(figure, row[-1:])
    return figure


@of_networks
def take_summary(both: xr.Dataset) -> pd.DataFrame:
    """Summarise linear dynamics in a few numbers: means over prompts, and medians of growth per block."""
    product = interval(both.end_cosine.sel(reading="product"))
    logs = {kind: both[f"growth_{kind}"].isel(level=-1, direction=0) for kind in ("singular", "response")}
    growth = {kind: np.exp(values.median("prompt") / both.sizes["block"]) for kind, values in logs.items()}
    columns = {
        "product": product["mean"],
        "low": product.low,
        "high": product.high,
        "random": both.null_cosine.isel(level=-1).mean("prompt"),
        "released": both.end_cosine.sel(reading="released").mean("prompt"),
        "share": both.contribution.isel(level=0).mean("prompt"),
        "u.v": both.left_right_cosine.mean(("prompt", "block", "rank")),
        "predicted": growth["singular"],
        "growth": growth["response"],
    }
    return pd.DataFrame({name: values.values for name, values in columns.items()}, index=both.network.values)


def numbers_of(both: xr.Dataset) -> dict[str, float]:
    """Return the numbers that the book quotes, by name."""
    found = {"prompts": both.sizes["prompt"]} | effects.numbers(effects.of_dynamics(both.sel(network="trained")))
    for network, _, one in parts.networks(both):
        errors = one.null_cosine_error.isel(level=-1).values
        found[f"product-null-{network}-error"] = np.sqrt(np.sum(errors**2)) / len(errors)
        found[f"linear-part-{network}"] = one.linear_norm_ratio.median().item()
    found |= cells(take_summary(both), _BOOK)
    for network, _, one in parts.networks(both):
        ends = interval(one.left_right_cosine.mean(("block", "rank")))
        found |= {f"left-right-{network}-{end}": ends[end].item() for end in ("low", "high")}
    return found
