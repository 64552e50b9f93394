"""Coupling across depth: over pairs of blocks, by distance between blocks, in one model or several."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.figures import circle, parts, style, take
from companion.figures.labels import coupling_label
from companion.figures.take import VARIANT, K, Null, of_models, of_networks
from companion.tables import effects
from companion.tables.arrays import cells, mean_over_directions, with_ends
from coupling_lib.datasets import summaries
from coupling_lib.datasets.parts import SHARED, VARIANTS_OF_PARTS, with_shared_part
from coupling_lib.datasets.summaries import interval
from coupling_lib.errors import ParameterError
from coupling_lib.models.registry import by_size

PAIR = {"block_1": "block_jacobian", "block_2": "block_vectors"}
_OF_PARTS = (*VARIANTS_OF_PARTS, "by_distance", "singular_values", "frobenius_norm", "matrix")
DRAWN = (*_OF_PARTS, *(f"shared_{name}" for name in _OF_PARTS))
"""Variables of `measure_depth` that figures, and the explorer, draw."""


def pair_couplings(both: xr.Dataset, variant: str, k: K) -> xr.DataArray:
    """Select each prompt's coupling of all pairs of blocks, NaN for a block with itself."""
    k = take.chosen_k(both, k)
    label = coupling_label(variant, k)
    return _from_one(summaries.pair_couplings(both, variant, k)).rename("coupling").assign_attrs(label=label)


@of_networks
def take_map(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> xr.DataArray:
    """Select the coupling of all pairs of blocks, mean over prompts."""
    pairs = pair_couplings(both, variant, k).mean("prompt", keep_attrs=True)
    return pairs.assign_attrs(null=take.null_beside(both, variant, k, null))


@of_networks
def take_graph(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> xr.DataArray:
    """Select the coupling of all pairs of blocks, each once: mean of both directions and over prompts."""
    couplings = pair_couplings(both, variant, k).mean("prompt")
    one_way = couplings.rename(block_jacobian="block_a", block_vectors="block_b")
    return mean_over_directions(one_way).assign_attrs(take.notes_on(both, variant, k, null))


@of_networks
def take_distribution(
    both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None, nulls: xr.Dataset | None = None
) -> xr.Dataset:
    """Select each prompt's coupling: `all_pairs`, and by `distance` between blocks, with its interval over prompts."""
    # `nulls` is `measure_nulls` of the trained network, with the conjugated null of both parts.
    all_pairs = pair_couplings(both, variant, k).mean(PAIR.values())
    at = both.by_distance.sel(variant=variant, k=take.chosen_k(both, k), drop=True)
    curve = 1 - at.isel(distance=slice(1, None)).astype(float)
    variables = {"all_pairs": all_pairs, "by_distance": curve, **interval(curve)}
    if nulls is not None and variant == VARIANT:
        variables["conjugated"] = _conjugated(nulls, take.chosen_k(nulls, take.chosen_k(both, k)), both.network)
    return xr.Dataset(variables, attrs=take.notes_on(both, variant, k, null))


@of_models
def take_models(
    models: Mapping[str, xr.Dataset], variant: str = VARIANT, k: K = None, null: Null = None
) -> dict[str, xr.Dataset]:
    """Select pairs, and coupling by distance with its interval, of several models; the null is that of one of them."""
    found = {}
    for name, both in models.items():
        curves = take_distribution(both, variant, k, null)
        found[name] = curves[["mean", "low", "high"]].assign(coupling=take_map(both, variant, k, null))
    return found


@of_networks
def take_matrices(both: xr.Dataset, blocks: Sequence[int] | None = None, k: K = None) -> xr.DataArray:
    r"""Select the first prompt's $|A_{ll'}|/\sigma_1(J_l)$ of some blocks, by default of up to eight in the middle."""
    k = take.chosen_k(both, None) if k is None else k
    if k > both.sizes["row"]:
        raise ParameterError(f"k is {k!r}; matrices were measured up to {both.sizes['row']}; take a smaller k")
    blocks = take.middle_blocks(both.sizes["block_1"]) if blocks is None else list(blocks)
    relative = take.relative_matrices(both, both[VARIANT].sel(k=both.sizes["row"], drop=True)).rename("entry")
    chosen = relative.isel(block_1=blocks, block_2=blocks, row=slice(k), column=slice(k))
    return _from_one(chosen).assign_coords(row=np.arange(k) + 1, column=np.arange(k) + 1)


@of_models
def take_matrices_of(
    models: Mapping[str, xr.Dataset], blocks: Sequence[int] | None = None, k: K = None
) -> xr.DataArray:
    """Select `take_matrices` of several models' trained networks, ordered by size; NaN for missing blocks."""
    found = []
    for name in by_size(models):
        one = take.trained_alone(models[name], name)
        blocks_of_one = None if blocks is None else [block for block in blocks if block < one.sizes["block_1"]]
        found.append(take_matrices(one, blocks_of_one, k))
    return xr.concat(found, "network", join="outer", combine_attrs="drop")


@of_networks
def take_summary(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> pd.DataFrame:
    """Tabulate coupling in a few numbers, of each network and of random bases."""
    found = summaries.depth_summary(both, variant)
    every, near = (found.sel(k=take.chosen_k(both, k), pairs=pairs) for pairs in ("all pairs", "neighbours"))
    columns = {"all pairs": every["mean"], "low": every.low, "high": every.high, "neighbours": near["mean"]}
    table = pd.DataFrame({name: one.values for name, one in columns.items()}, index=list(found.network.values))
    chance = 1 - take.null_beside(both, variant, k, null)
    table.loc["by chance"] = [chance, np.nan, np.nan, chance]
    return table


def numbers_of(
    both: xr.Dataset, spreads: Mapping[str, float], variant: str = VARIANT, k: K = None, null: Null = None
) -> dict[str, float]:
    """Return the numbers of a model before and after training that the book quotes, and the effects of its verdicts."""
    # `spreads` holds the standard deviations of the means by chance, as returned by `null_spreads`.
    k, null = take.chosen_k(both, k), take.null_beside(both, variant, k, null)
    summary = take_summary(with_shared_part(both), variant, k, null)
    names = with_ends("coupling-{}", "all pairs") | {"neighbours": "neighbours-{}"}
    found = cells(summary.drop(index="by chance"), names)
    found |= effects.numbers(effects.of_depth(both, variant, k))
    found |= effects.numbers(effects.of_shared_depth(both, variant, k), "shared")
    found["on-diagonal-trained"] = effects.diagonal_share(found["coupling-trained"])
    found["on-diagonal-chance"] = effects.diagonal_share(1 - null)
    return found | {
        "coupling-null": 1 - null,
        "coupling-null-error": null.error,
        "prompts": both.sizes["prompt"],
        "null-spread": spreads["all pairs"],
        "neighbours-spread": spreads["neighbours"],
    }


def draw_matrices(matrices: xr.DataArray) -> Figure:
    """Draw grids of coupling matrices on one scale, which a block with itself does not set (figures 3 and 20)."""
    figure, row = parts.panels(list(style.short_names(matrices.network.values, 24).values()), 1.0, square=True)
    tile(row, matrices)
    return figure


def tile(row: Sequence[Axes], matrices: xr.DataArray) -> None:
    """Draw a grid of matrices per network, and a colour bar under the panels."""
    image, places = parts.tiles(row, matrices)
    parts.pair_axes(row, matrices.block_vectors.values, places)
    label = r"$|A_{ll'}|\;/\;\sigma_1(J_l)$  with  $A_{ll'}=U_{l'}^{\top}J_l\,V_{l'}$"
    parts.colour_bar(row, image, f"{label},  $K={matrices.sizes['row']}$", extend="max")


def draw_map(pairs: xr.DataArray) -> Figure:
    """Draw the coupling of every pair, mean over prompts, on one scale."""
    figure, row = parts.panels(pairs.network.values, 1.0, square=True)
    _draw_maps(row, list(pairs), pairs.null, pairs.label)
    return figure


def draw_graph(coupling: xr.DataArray, beyond: bool = False) -> Figure:
    """Draw blocks on a circle, joined by coupling, or by its excess over chance if `beyond` (figures 1c to 1e)."""
    inks = [ink for _, ink, _ in parts.networks(coupling)]
    return circle.circles(coupling.network.values, coupling, inks, 1 - coupling.null, beyond)


def draw_distribution(coupling: xr.Dataset) -> Figure:
    """Draw coupling prompt by prompt, and against the distance between blocks with its 95 % interval."""
    figure, (left, right) = parts.panels(["", ""], 3.1, sharey=True)
    for place, (_, ink, one) in enumerate(parts.networks(coupling)):
        parts.strip(left, place, one.all_pairs, ink)
        if "conjugated" in one and np.isfinite(one.conjugated):
            parts.conjugated(left, place, float(one.conjugated), 0.4)
            if not left.texts:
                where = {"xytext": (-3, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
                left.annotate("conjugated", (place - 0.4, float(one.conjugated)), fontsize=8, **where)
    parts.bands(right, coupling, "distance", marker="o", markersize=3.5)
    for axes in (left, right):
        parts.chance(axes, coupling.null)
    left.set_xticks(range(coupling.sizes["network"]), coupling.network.values)
    left.set(
        xlim=(-0.6, coupling.sizes["network"] - 0.4), xlabel="all pairs, one dot per prompt", ylabel=coupling.label
    )
    parts.block_axis(right, "distance $|l-l'|$ between blocks")
    right.legend()
    return figure


def draw_models(models: Mapping[str, xr.Dataset]) -> Figure:
    """Draw trained models' pairs on one scale, and coupling against distance; dotted: untrained (figure 20)."""
    # Four panels form a square: in one row the numbers of their blocks would touch.
    columns, first = 2 if len(models) == 4 else min(len(models), 3), next(iter(models.values()))
    rows = -(-len(models) // columns)
    height = rows * (0.92 * min(style.WIDTH / columns, 3.2) + 0.3) + 1.0
    figure = Figure(figsize=(style.WIDTH, height + 2.8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(height, 2.8))
    shown, (axes, right) = parts.in_rows(above, len(models), columns), parts.narrow(below)
    called = style.short_names(models)
    trained = {name: both.sel(network=take.main_network(both.network.values)) for name, both in models.items()}
    _draw_maps(shown, [one.coupling for one in trained.values()], first.null, first.coupling.label)
    for position, (name, both) in enumerate(models.items()):
        shown[position].set_title(called[name])
        ink, marker = style.model_style(name, position)
        properties = {"marker": marker, "markersize": 3.5, "label": called[name]}
        parts.band(axes, trained[name], "distance", ink, **properties)
        if style.UNTRAINED in both.network:
            blank = both["mean"].sel(network=style.UNTRAINED)
            axes.plot(both.distance, blank, color=ink, linewidth=1.2, linestyle=":")
    parts.chance(axes, first.null)
    axes.plot([], [], color=style.colour("text"), linewidth=1.2, linestyle=":", label="untrained")
    parts.block_axis(axes, "distance $|l-l'|$ between blocks")
    axes.set_ylabel(first.label)
    parts.legend_beside(right, [axes])
    return figure


def _conjugated(nulls: xr.Dataset, k: int, networks: xr.DataArray) -> xr.DataArray:
    """Select the conjugated null, mean over prompts: of the trained network, and of its traceless part."""
    values = 1 - nulls.normalised.sel(kind="conjugated", span="all pairs", k=k, drop=True).mean("prompt")
    known = {style.TRAINED: values.sel(part="whole"), SHARED: values.sel(part="traceless")}
    return xr.DataArray([float(known.get(str(name), np.nan)) for name in networks.values], {"network": networks})


def _draw_maps(row: Sequence[Axes], maps: Sequence[xr.DataArray], null: float, label: str) -> None:
    """Draw the coupling of every pair of blocks, a panel per map, on one scale that marks its value by chance."""
    for axes, one in zip(row, maps, strict=True):
        parts.pair_axes([axes], one.block_vectors.values)
        axes.set_ylabel(axes.get_ylabel() if axes.get_subplotspec().is_first_col() else "")
    parts.maps(row, [one.transpose(*PAIR.values()) for one in maps], null, f"{label},  mean over prompts")


def _from_one(values: xr.DataArray) -> xr.DataArray:
    """Label the two roles of a pair, and count blocks from 1."""
    named = values.rename(PAIR)
    return named.assign_coords({role: named[role] + 1 for role in PAIR.values()})
