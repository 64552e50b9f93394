"""One vision transformer on images: matrices beside the image, pairs of tokens, stochastic depth left on."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from companion.figures import depth, parts, style, take
from companion.figures.labels import coupling_label
from companion.figures.take import VARIANT, K, Null, of_networks, of_one
from companion.tables import effects
from companion.tables.arrays import cells, from_one, joined, with_ends
from coupling_lib.datasets.summaries import interval, mean_couplings

Patch = tuple[int, int, int, int]
"""Bounds of a token's patch in a picture, in pixels: left, top, width and height."""


def take_image(
    measured: xr.Dataset, picture: np.ndarray, patch: Patch | None = None, blocks: Sequence[int] | None = None,
    k: K = None,
) -> xr.DataArray:  # fmt: skip
    """Select coupling matrices of some blocks as `depth.take_matrices` does, beside the first image and its patch."""
    return depth.take_matrices(measured, blocks, k).assign_attrs(picture=picture, patch=patch)


@of_networks
def take_relations(both: xr.Dataset, variant: str = VARIANT, nulls: xr.Dataset | None = None) -> xr.Dataset:
    """Select each image's coupling at single tokens and between tokens, its mean with interval, and random bases."""
    nulls = take.null_of_variant(nulls, variant)
    coupling = mean_couplings(both, variant)
    chance = nulls.mean([dim for dim in nulls.dims if dim != "relation"])
    attributes = {"label": coupling_label(variant, both.attrs["k"])}
    found = xr.Dataset({"coupling": coupling, **interval(coupling)}, attrs=attributes)
    return found.assign(random_bases=1 - chance["value"], random_bases_error=chance["error"])


@of_one
def take_drop_path(dropped: xr.Dataset, null: Null = None) -> xr.Dataset:
    """Select coupling with stochastic depth off and left on, by image and draw, and its mean over images."""
    off, on = 1 - dropped.off, from_one(1 - dropped.on, "draw")
    coupling = joined({"off": off.expand_dims(draw=[0]), "on": on}, "drop_path")
    means = interval(joined({"off": off, "on": on.mean("draw")}, "drop_path"))
    notes = take.notes_on(dropped, dropped.attrs["variant"], None, null)
    return xr.Dataset({"coupling": coupling, **means}, attrs=notes | {"rate": dropped.attrs["rate"]})


def draw_image(matrices: xr.DataArray) -> Figure:
    """Draw an image, and beside it the coupling matrices of pairs of blocks (figure 3, for an image)."""
    picture, patch = matrices.picture, matrices.patch
    names = matrices.network.values
    side = min(4.2, (0.8 * style.WIDTH - 0.5) / len(names) - 0.3)
    figure = Figure(figsize=(style.WIDTH, side + 1.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 4))
    image, row = left.subplots(), right.subplots(1, len(names), squeeze=False)[0]
    for axes, title in zip([image, *row], ["Image", *names], strict=True):
        axes.set_title(parts.title_of(title))
        axes.set_anchor("N")
    image.imshow(picture, cmap="gray" if picture.ndim == 2 else None, vmin=0, vmax=1, interpolation="none")
    image.set(xticks=[], yticks=[])
    if patch is not None:
        x, y, *size = patch
        edge = style.dataset_colour("", 0)
        image.add_patch(Rectangle((x - 0.5, y - 0.5), *size, fill=False, edgecolor=edge, linewidth=2))
    depth.tile(row, matrices)
    return figure


def draw_relations(relations: xr.Dataset) -> Figure:
    """Draw coupling at single tokens and between tokens in both orders."""
    figure, axes, right = parts.one_panel(3.4)
    networks, names = parts.networks(relations), relations.relation.values
    shifts = np.linspace(-0.2, 0.2, len(networks)) if len(networks) > 1 else [0.0]
    for shift, (_, ink, own) in zip(shifts, networks, strict=True):
        for place, relation in enumerate(names):
            one = own.sel(relation=relation)
            parts.strip(axes, place + shift, one.coupling, ink, one, shape=(0.07, 0.13, 0.06), s=12, alpha=0.5)
    for place, chance in enumerate(relations.random_bases.values):
        axes.plot([place - 0.42, place + 0.42], [chance, chance], **parts.null_style())
    axes.set_xticks(range(len(names)), [name.replace(" to ", "\n$\\to$ ") for name in names])
    axes.set(xlim=(-0.55, len(names) - 0.45), ylim=(0, None))
    axes.set(xlabel=r"token, or $t_1\to t_2$", ylabel=relations.label)
    handles = [Line2D([], [], color=ink, marker="o", markersize=4, label=name) for name, ink, _ in networks]
    handles.append(Line2D([], [], **parts.null_style("by chance")))
    right.legend(handles=handles, loc="center left")
    return figure


def draw_drop_path(states: xr.Dataset) -> Figure:
    """Draw coupling measured with stochastic depth off and left on."""
    figure, axes, right = parts.one_panel(2.2)
    inks = {"off": style.colour(style.TRAINED), "on": style.dataset_colour("", 1)}
    for place, (state, ink) in enumerate(inks.items()):
        one = states.sel(drop_path=state)
        values = one.coupling.transpose("prompt", "draw").values.ravel()
        values = values[np.isfinite(values)]
        spread = np.random.default_rng(0).uniform(-0.14, 0.14, len(values))
        axes.scatter(values, place + spread, s=12, color=ink, alpha=0.55, linewidths=0)
        axes.plot([one.low, one.high], [place + 0.26] * 2, color=ink, linewidth=4, alpha=0.6)
        axes.plot([one["mean"]] * 2, [place + 0.18, place + 0.34], color=ink, linewidth=2)
    axes.axvline(1 - states.null, **parts.null_style(style.null_label(states.null)))
    axes.set_yticks([0, 1], ["drop path off", f"left on, rate {states.rate:g}"])
    axes.set(xlim=(0, None), ylim=(-0.4, 1.55), xlabel=states.label)
    axes.grid(False, axis="y")
    axes.grid(axis="x")
    parts.legend_beside(right, [axes])
    return figure


@of_networks
def take_summary(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> pd.DataFrame:
    """Summarise the coupling of a single model: means over images of the mean over pairs."""
    each = mean_couplings(both, variant, take.chosen_k(both, k))
    table = interval(each).to_dataframe()[["mean", "low", "high"]]
    table = table.rename(columns={"mean": "coupling"}).rename_axis(None)
    table.loc["by chance"] = [1 - take.null_beside(both, variant, k, null), np.nan, np.nan]
    return table


def numbers_of(
    depths: xr.Dataset, related: xr.Dataset, dropped: xr.Dataset, null: Null, nulls: xr.Dataset
) -> dict[str, float]:
    """Return the numbers that the book quotes of pairs of blocks, relations and stochastic depth, by name."""
    null = take.null_beside(dropped, VARIANT, None, null)
    table, relations = take_summary(depths, null=null), take_relations(related, nulls=nulls)
    means, states = (ds[["mean", "low", "high"]].to_dataframe() for ds in (relations, take_drop_path(dropped, null)))
    chance = relations[["random_bases", "random_bases_error"]].to_dataframe()
    means = means.reorder_levels(["relation", "network"])
    return {
        "model-null": float(1 - null),
        "model-null-error": float(null.error),
        "on-diagonal": effects.diagonal_share(means.loc[("class", "trained"), "mean"]),
        "on-diagonal-chance": effects.diagonal_share(chance.loc["class", "random_bases"]),
        **cells(table.loc[relations.network.values], with_ends("model-{}", "coupling")),
        **cells(chance, {"random_bases": "{}-null", "random_bases_error": "{}-null-error"}),
        **cells(means, {"mean": "{}-{}"}),
        **cells(states, with_ends("drop-path-{}")),
        **cells(means, {end: f"{{}}-{{}}-{end}" for end in ("low", "high")}),
    }
