"""Coupling across depth: where it is, how it falls with the distance between blocks, in one model or several."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.figures import circle, parts, style
from companion.figures.labels import coupling_label, mismatch_label
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.summaries import both_ways, cells, interval, side_by_side, with_ends
from coupling_lib.models.registry import by_size

PAIR = {"block_1": "block_jacobian", "block_2": "block_vectors"}


def pair_mismatches(ds: xr.Dataset, variant: str, k: int) -> xr.DataArray:
    """Select each prompt's mismatch of all pairs of blocks, NaN where a block meets itself."""
    label = mismatch_label(variant, k)
    if k not in ds.k:
        raise ParameterError(f"k is {k!r}; measured were {', '.join(map(str, ds.k.values))}; take one of them")
    if ds.sizes["block_1"] < 2:
        raise ParameterError("the model has 1 block; coupling across depth needs two or more, take a deeper model")
    pairs = ds[variant].sel(k=k, drop=True).where(ds.block_1 != ds.block_2).astype(float)
    return _from_one(pairs).assign_attrs(label=label)


def take_pairs(ds: xr.Dataset, variant: str, k: int) -> xr.DataArray:
    """Select the mismatch of all pairs of blocks, mean over prompts."""
    return pair_mismatches(ds, variant, k).mean("prompt", keep_attrs=True)


def take_graph(ds: xr.Dataset, variant: str, k: int) -> xr.DataArray:
    """Select the coupling of all pairs of blocks, each once: mean of both directions and over prompts."""
    one_way = 1 - take_pairs(ds, variant, k).rename(block_jacobian="block_a", block_vectors="block_b")
    return both_ways(one_way).assign_attrs(label=coupling_label(variant, k))


def take_distribution(ds: xr.Dataset, variant: str, k: int) -> xr.Dataset:
    """Select each prompt's coupling: `all_pairs`, and by `distance` between blocks, with its interval over prompts."""
    all_pairs = 1 - pair_mismatches(ds, variant, k).mean(PAIR.values())
    apart = 1 - ds.by_distance.sel(variant=variant, k=k, drop=True).isel(distance=slice(1, None)).astype(float)
    curves = {"all_pairs": all_pairs, "by_distance": apart, **interval(apart)}
    return xr.Dataset(curves, attrs={"label": coupling_label(variant, k)})


def take_models(models: Mapping[str, Mapping[str, xr.Dataset]], variant: str, k: int) -> dict[str, xr.Dataset]:
    """Select pairs, and coupling by distance with its interval, of several models' untrained and trained networks."""
    found = {}
    for name, states in models.items():
        both = side_by_side(**states)
        curves = take_distribution(both, variant, k)
        found[name] = curves[["mean", "low", "high"]].assign(mismatch=take_pairs(both, variant, k))
    return found


def take_matrices(ds: xr.Dataset, blocks: Sequence[int], k: int) -> xr.DataArray:
    r"""Select the first prompt's $|A_{ll'}|/\sigma_1(J_l)$ of some blocks."""
    if k > ds.sizes["row"]:
        raise ParameterError(f"k is {k!r}; matrices were measured up to {ds.sizes['row']}; take a smaller k")
    chosen = ds.matrix.isel(block_1=list(blocks), block_2=list(blocks), row=slice(k), column=slice(k))
    relative = abs(chosen / ds.singular_values.isel(prompt=0, rank=0, drop=True)).rename("entry")
    return _from_one(relative).assign_coords(row=np.arange(k) + 1, column=np.arange(k) + 1)


def take_summary(summaries: xr.Dataset, k: int, null: float) -> pd.DataFrame:
    """Tabulate coupling in a few numbers: networks of `depth_summary` side by side, and random bases."""
    every, near = (summaries.sel(k=k, pairs=pairs).astype(float) for pairs in ("all pairs", "neighbours"))
    columns = {"all pairs": every["mean"], "low": every.low, "high": every.high, "neighbours": near["mean"]}
    table = pd.DataFrame({name: one.values for name, one in columns.items()}, index=list(summaries.network.values))
    table.loc["random bases"] = [1 - null, np.nan, np.nan, 1 - null]
    return table


def numbers_of(summary: pd.DataFrame) -> dict[str, float]:
    """Name the numbers of a summary as the book quotes them."""
    names = with_ends("coupling-{}", "all pairs") | {"neighbours": "neighbours-{}"}
    found = cells(summary.drop(index="random bases"), names)
    return found | {"coupling-null": summary.at["random bases", "all pairs"]}


def take_matrices_of(models: Mapping[str, Mapping[str, xr.Dataset]], blocks: Sequence[int], k: int) -> xr.DataArray:
    """Select what `take_matrices` does of several trained models, ordered by size; NaN for blocks that one lacks."""
    found = []
    for name in by_size(models):
        ds = side_by_side(**{name: models[name]["trained"]})
        found.append(take_matrices(ds, [block for block in blocks if block < ds.sizes["block_1"]], k))
    return xr.concat(found, "network", join="outer")


def draw_matrices(matrices: xr.DataArray) -> Figure:
    """Draw grids of coupling matrices on one scale, which a block with itself does not set (figures 3 and 20)."""
    figure, row = parts.panels([style.short_name(name, 24) for name in matrices.network.values], 1.0, square=True)
    tile(row, matrices)
    return figure


def tile(row: Sequence[Axes], matrices: xr.DataArray) -> None:
    """Draw a grid of matrices per network, and a colour bar under the panels."""
    image, places = parts.tiles(row, matrices)
    parts.pair_axes(row, matrices.block_vectors.values, places)
    label = r"$|A_{ll'}|\;/\;\sigma_1(J_l)$  with  $A_{ll'}=U_{l'}^{\top}J_l\,V_{l'}$"
    parts.colour_bar(row, image, f"{label},  $K={matrices.sizes['row']}$", extend="max")


def draw_map(pairs: xr.DataArray, null: float) -> Figure:
    """Draw the mismatch of every pair, mean over prompts, on one scale; what stands out couples."""
    figure, row = parts.panels(pairs.network.values, 1.0, square=True)
    _draw_maps(row, list(pairs), null, pairs.label)
    return figure


def draw_graph(coupling: xr.DataArray, null: float, beyond: bool = False) -> Figure:
    """Draw blocks on a circle, joined by coupling, or by what of it is `beyond` chance (figures 1c to 1e)."""
    weights, names = coupling - beyond * (1 - null), coupling.network.values
    inks = [style.dataset_colour(name, place) for place, name in enumerate(names)]
    if beyond:
        excess = "coupling of two transformer blocks, beyond that of random bases"
        return circle.circles(names, weights, inks, {}, excess, "+.2f")
    samples = {f"{1 - null:.2f} (random bases)": 1 - null}
    return circle.circles(names, weights, inks, samples, f"{coupling.label}, mean of both directions and over prompts")


def draw_distribution(coupling: xr.Dataset, null: float) -> Figure:
    """Draw coupling prompt by prompt, and against the distance between blocks with its 95 % interval."""
    figure, (left, right) = parts.panels(["", ""], 3.1, sharey=True)
    for place, (_, ink, one) in enumerate(parts.networks(coupling)):
        parts.strip(left, place, one.all_pairs, ink)
    parts.bands(right, coupling, "distance", marker="o", markersize=3.5)
    for axes in (left, right):
        parts.chance(axes, null)
    left.set_xticks(range(coupling.sizes["network"]), coupling.network.values)
    left.set(
        xlim=(-0.6, coupling.sizes["network"] - 0.4), xlabel="all pairs, one dot per prompt", ylabel=coupling.label
    )
    parts.block_axis(right, "distance $|l-l'|$ between blocks")
    right.legend()
    return figure


def draw_models(models: Mapping[str, xr.Dataset], null: float) -> Figure:
    """Draw trained models' pairs on one scale, and coupling against distance; dotted: untrained (figure 20)."""
    columns, first = min(len(models), 4), next(iter(models.values()))
    rows = -(-len(models) // columns)
    height = rows * (0.92 * min(style.WIDTH / columns, 3.2) + 0.3) + 0.6
    figure = Figure(figsize=(style.WIDTH, height + 2.8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(height, 2.8))
    shown, (axes, right) = parts.in_rows(above, len(models), columns), parts.narrow(below)
    _draw_maps(shown, [both.mismatch.sel(network="trained") for both in models.values()], null, first.mismatch.label)
    for position, (name, both) in enumerate(models.items()):
        shown[position].set_title(style.short_name(name))
        ink, marker = style.model_look(name, position)
        look = {"marker": marker, "markersize": 3.5, "label": style.short_name(name)}
        parts.band(axes, both.sel(network="trained"), "distance", ink, **look)
        axes.plot(both.distance, both["mean"].sel(network="untrained"), color=ink, linewidth=1.2, linestyle=":")
    parts.chance(axes, null)
    axes.plot([], [], color=style.colour("text"), linewidth=1.2, linestyle=":", label="untrained")
    parts.block_axis(axes, "distance $|l-l'|$ between blocks")
    axes.set_ylabel(first.label)
    parts.legend_beside(right, [axes])
    return figure


def _draw_maps(row: Sequence[Axes], maps: Sequence[xr.DataArray], null: float, label: str) -> None:
    """Draw the mismatch of every pair of blocks, a panel per map, on one scale that holds the null and marks it."""
    for axes, one in zip(row, maps, strict=True):
        parts.pair_axes([axes], one.block_vectors.values)
        axes.set_ylabel(axes.get_ylabel() if axes.get_subplotspec().is_first_col() else "")
    parts.maps(row, [one.transpose(*PAIR.values()) for one in maps], null, f"{label},  mean over prompts")


def _from_one(values: xr.DataArray) -> xr.DataArray:
    """Name the two roles of a pair, and count blocks from 1."""
    named = values.rename(PAIR)
    return named.assign_coords({role: named[role] + 1 for role in PAIR.values()})
