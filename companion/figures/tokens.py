"""Coupling across tokens. A *comparison* is what `measure_tokens` made of one choice of Jacobians, of each network."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.figures import parts, style, take
from companion.figures.labels import coupling_label
from companion.figures.take import VARIANT, Models, Null, of_networks
from companion.tables import effects
from companion.tables.arrays import cells, from_one, joined, records_of
from companion.tables.inference import effect_of
from coupling_lib.datasets.parts import SHARED
from coupling_lib.datasets.summaries import interval, off_diagonal

KIND_NAMES = {"self": "self", "input": "fixed input", "output": "fixed output"}
"""Names of each kind of comparison in figures and captions."""

_OF_PARTS = (VARIANT, "conjugated", "conjugated_error", "singular_values", "frobenius_norm", "matrix")
_OF_TOKENS = ("position", "text", "fixed_position", "fixed_text")
DRAWN = (*_OF_TOKENS, *_OF_PARTS, *(f"shared_{name}" for name in _OF_PARTS))
"""Variables of `measure_tokens` that are drawn."""

_LONGEST = 9
_MOST_LABELS = 20


@of_networks
def take_grid(both: xr.Dataset, variant: str = VARIANT, null: Null = None) -> xr.Dataset:
    r"""Select the first prompt's $|A|/\sigma_1(J)$ and coupling of all pairs of tokens, by the tokens' positions."""
    both = both.sel(network=[name for name in both.network.values if name != SHARED])
    first = both.isel(prompt=0, network=0)
    count, k = int((first.position >= 0).sum()), both.attrs["k"]
    relative = take.relative_matrices(both, both[VARIANT])
    coupling = 1 - _mismatches(both, variant, itself=both.attrs["block"] != both.attrs["other"]).isel(prompt=0)
    taken = xr.Dataset({"entry": relative, "coupling": coupling}).isel(token_1=slice(count), token_2=slice(count))
    places = first.position.values[:count] + 1
    # A token without a text is called by its position.
    labels = [token_label(str(x)) or str(place) for x, place in zip(first.text.values[:count], places, strict=True)]
    named = taken.rename(token_1="token_jacobian", token_2="token_vectors").drop_vars("prompt", errors="ignore")
    coords = {"token_jacobian": places, "token_vectors": places}
    numbers = {name: both.attrs[name] for name in ("block", "other", "k")}
    numbers["null"] = take.null_beside(both, variant, None, null)
    words = {"title": comparison_name(first), "label": coupling_label(variant, k), "tokens": labels}
    return from_one(named.assign_coords(coords), "row", "column").assign_attrs(words | numbers)


def by_comparison(measured: Models) -> dict[str, xr.Dataset]:
    """Return every comparison by name; a single one is named by its kind and blocks."""
    if isinstance(measured, xr.Dataset):
        kind, block, other = (measured.attrs[name] for name in ("kind", "block", "other"))
        measured = {f"{kind} {block + 1}-{other + 1}": measured}
    return take.networks_by_name(measured)


def take_summary(measured: Models, variant: str = VARIANT, nulls: Models | None = None) -> xr.Dataset:
    """Select each prompt's coupling in every comparison, its interval over prompts, and the value of random bases."""
    comparisons = by_comparison(measured)
    first = next(iter(comparisons.values()))
    couplings = {name: 1 - _mismatches(ds, variant).mean(["token_1", "token_2"]) for name, ds in comparisons.items()}
    coupling = joined(couplings, "comparison")
    nulls = dict.fromkeys(comparisons, nulls) if isinstance(nulls, xr.Dataset) else nulls or {}
    chosen = [take.null_of_variant(nulls.get(name), variant) for name in comparisons]
    low, high = np.transpose([np.quantile(1 - null.draws.values, (0.025, 0.975)) for null in chosen])
    of_each = {
        "random_bases": [1 - float(null.value.mean()) for null in chosen],
        "random_bases_error": [float(null.error.mean()) for null in chosen],
        "random_bases_low": low,
        "random_bases_high": high,
        "kind": [KIND_NAMES[ds.attrs["kind"]] for ds in comparisons.values()],
        "blocks": [blocks_name(ds) for ds in comparisons.values()],
    }
    variables = {"coupling": coupling, **interval(coupling)} | {name: ("comparison", x) for name, x in of_each.items()}
    if variant == VARIANT and all("conjugated" in ds for ds in comparisons.values()):
        variables |= joined({name: _conjugated(ds) for name, ds in comparisons.items()}, "comparison").data_vars
    found = xr.Dataset(variables, attrs={"label": coupling_label(variant, first.attrs["k"])})
    return take.with_records(found, records_of(measured))


def summary_table(summary: xr.Dataset) -> pd.DataFrame:
    """Summarise coupling in a table: a row per comparison."""
    table = pd.DataFrame(index=list(summary.comparison.values))
    for network in summary.network.values:
        for end, word in (("mean", ""), ("low", " low"), ("high", " high")):
            table[f"{network}{word}"] = summary[end].sel(network=network).values
        for null in ("conjugated", "conjugated_error") if "conjugated" in summary else ():
            table[f"{network} {null.replace('_', ' ')}"] = summary[null].sel(network=network).values
    table["by chance"], table["error by chance"] = summary.random_bases, summary.random_bases_error
    return table


def numbers_of(summary: xr.Dataset, spread: float, **groups: Sequence[str]) -> dict[str, float]:
    """Return the numbers of a summary that the book quotes, by name, and the effects on which verdicts rest."""
    # `spread` is the standard deviation of the coupling of one pair by chance, as `pair_spread` gives it.
    table = summary_table(summary)
    names = {f"{group}-{name.split()[0]}": name for group, chosen in groups.items() for name in chosen}
    chosen = table.loc[list(names.values())].set_axis(list(names))
    found = cells(chosen, {column: f"{{}}-{column}" for column in table.columns})
    each = summary.coupling.transpose("network", "comparison", "prompt")
    coupled = {
        network: {called: each.sel(network=network, comparison=name).values for called, name in names.items()}
        for network in summary.network.values
    }
    found |= effects.numbers(effects.of_tokens(coupled["trained"], coupled["untrained"]))
    shared = {f"coupled-{called}": effect_of(values) for called, values in coupled.get(SHARED, {}).items()}
    found |= effects.numbers(shared, "shared")
    return found | {"null-spread": spread}


def draw_grid(grid: xr.Dataset) -> Figure:
    """Draw coupling over pairs of tokens of one prompt, the trained network first (the paper's 4 and 17 to 19)."""
    grid, labels = grid.isel(network=slice(None, None, -1)), grid.tokens
    names = grid.network.values
    height = 2.95 * len(names) + 0.075 * max(map(len, labels)) + 1.5
    figure = Figure(figsize=(style.WIDTH, height), layout="compressed")
    figure.get_layout_engine().set(wspace=0.06)
    figure.suptitle(grid.title, fontsize=9)
    left, right = figure.subplots(len(names), 2, squeeze=False).T
    same = grid.block == grid.other
    image, centres = parts.tiles(left, grid.entry, diagonal=not same)
    bar = {"shrink": 0.95, "aspect": 30, "pad": 0.04}
    parts.colour_bar(left, image, rf"$|A|\;/\;\sigma_1(J)$,  $K={grid.k}$", extend="max" if same else "neither", **bar)
    parts.maps(right, list(grid.coupling.transpose("network", "token_jacobian", ...)), grid.null, grid.label, **bar)
    for name, matrices, couplings in zip(names, left, right, strict=True):
        for axes in (matrices, couplings):  # on a phone the columns stand below each other
            axes.set_title(parts.title_of(name))
        matrices.set_ylabel(f"token $t$  (Jacobian, block {grid.block + 1})")
        lowest = name == names[-1]
        _token_ticks(matrices, centres, labels, on_x=lowest, on_y=True)
        _token_ticks(couplings, np.arange(len(labels)), labels, on_x=lowest, on_y=False)
    for axes in (left[-1], right[-1]):
        axes.set_xlabel(f"token $t'$  (vectors, block {grid.other + 1})")
    figure.align_xlabels([left[-1], right[-1]])
    return figure


def draw_summary(summary: xr.Dataset) -> Figure:
    """Draw mean coupling over pairs of different tokens, for every kind of comparison, beside both nulls."""
    blocks = list(dict.fromkeys(summary.blocks.values))
    figure, row = parts.panels([name.capitalize() for name in blocks], 3.2, y=summary.label)
    width = 0.8 / summary.sizes["network"]
    for axes, name in zip(row, blocks, strict=True):
        here = summary.isel(comparison=np.flatnonzero(summary.blocks == name))
        for position, (network, ink, one) in enumerate(parts.networks(here)):
            for place in range(one.sizes["comparison"]):
                centre = place + (position - (summary.sizes["network"] - 1) / 2) * width
                at, properties = one.isel(comparison=place), {"width": width, "shape": (0.12, 0.34, 0.12)}
                label = "" if place else network
                parts.strip(axes, centre - 0.14 * width, at.coupling, ink, at, label=label, **properties)
                if "conjugated" in at:
                    # The last network is the first to name it, so that the legend names it beside the other null.
                    named = "conjugated" if place == 0 and network == here.network.values[-1] else ""
                    parts.conjugated(axes, centre, at.conjugated, 0.45 * width, label=named)
        for place in range(here.sizes["comparison"]):
            chance, ends = here.isel(comparison=place), [place - 0.45, place + 0.45]
            properties = {"color": style.colour(style.NULL), "alpha": 0.15, "linewidth": 0}
            axes.fill_between(ends, chance.random_bases_low, chance.random_bases_high, **properties)
            axes.plot(ends, [chance.random_bases] * 2, **parts.null_style("" if place else "by chance"))
        axes.set_xticks(range(here.sizes["comparison"]), here.kind.values)
        axes.set_ylim(bottom=min(0, 1.05 * float(here.coupling.min())))
    parts.legend_under(figure, row)
    return figure


def token_label(text: str) -> str:
    """Format a token so that every character is visible."""
    shown = "".join(_visible(character) for character in text)
    if len(shown) > _LONGEST:
        shown = shown[: _LONGEST - 1] + "…"
    return shown.replace("$", r"\$")


def comparison_name(first: xr.Dataset) -> str:
    """Return the label of a comparison, with its fixed token from the prompt."""
    kind = str(first.attrs["kind"])
    if kind == "self":
        return f"{KIND_NAMES[kind]}: each token's $J_{{tt}}$"
    text = token_label(str(first.fixed_text.values))
    token = f"token {int(first.fixed_position) + 1}" + (f" ({text})" if text else "")
    return f"{KIND_NAMES[kind]}: {token}, " + {"input": "$J_{t_1t}$", "output": "$J_{tt_2}$"}[kind]


def blocks_name(ds: xr.Dataset) -> str:
    """Return the label of the blocks that a comparison compares."""
    first, second = ds.attrs["block"] + 1, ds.attrs["other"] + 1
    return f"block {first}" if first == second else f"blocks {first} and {second}"


def grid_caption(ds: xr.Dataset) -> str:
    """Return the caption of the figure that `draw_grid` draws of a comparison."""
    kind = str(ds.attrs["kind"])
    what = "Self-coupling" if kind == "self" else f"Context coupling with a {KIND_NAMES[kind]} token"
    return (
        f"{what}, {blocks_name(ds)}: coupling matrices of pairs of tokens of one prompt, relative to the largest "
        "singular value of the row's Jacobian, and a map of the coupling of the same pairs. One scale for each."
    )


def _mismatches(ds: xr.Dataset, variant: str, itself: bool = False) -> xr.DataArray:
    """Select one mismatch, without the pairs of a token with itself unless `itself`."""
    coupling_label(variant, ds.attrs["k"])  # refuses what is no mismatch
    return ds[variant].astype(float) if itself else off_diagonal(ds[variant], "token_1", "token_2")


def _conjugated(both: xr.Dataset) -> xr.Dataset:
    """Average coupling with turned vectors over prompts and pairs of different tokens, with its standard error."""
    values = 1 - off_diagonal(both.conjugated, "token_1", "token_2").mean(["token_1", "token_2"])
    error = (both.conjugated_error**2).sum("prompt") ** 0.5 / both.conjugated_error.count("prompt")
    return xr.Dataset({"conjugated": values.mean("prompt"), "conjugated_error": error})


def _token_ticks(axes: Axes, places: np.ndarray, labels: Sequence[str], on_x: bool, on_y: bool) -> None:
    """Label tokens at their places, as many as fit."""
    step = -(-len(labels) // _MOST_LABELS)
    shown = labels[::step]
    axes.set_xticks(places[::step], shown if on_x else [""] * len(shown), rotation=90)
    axes.set_yticks(places[::step], shown if on_y else [""] * len(shown))
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)


def _visible(character: str) -> str:
    """Return a visible character unchanged, any other as its escape sequence."""
    if character == " ":
        return "␣"
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    if character.isprintable() and font.get_char_index(ord(character)):
        return character
    return character.encode("unicode_escape").decode("ascii")
