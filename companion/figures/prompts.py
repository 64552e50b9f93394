"""Coupling prompt by prompt: against difficulty, length and data set; with and without an instruction.

That of one block is the mean over its pairs with all others, its Jacobian with their vectors and theirs with its.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from companion.figures import parts, scatter, style, take
from companion.figures.take import VARIANT, K, Null, of_models, of_networks
from companion.tables import effects
from companion.tables.arrays import cells, from_one, joined
from companion.tables.inference import Effect
from companion.tables.statistics import correlation
from coupling_lib.datasets.summaries import block_couplings, interval
from coupling_lib.errors import ParameterError
from coupling_lib.models.registry import by_size

DRAWN = (VARIANT, "singular_values", "frobenius_norm")
"""Variables of `measure_depth` that figures draw."""

ALONE = "alone"
"""The version of a prompt to which nothing is added."""

QUANTITIES = {
    "steps": "reasoning steps",
    "steps at equal length": "reasoning steps, length held fixed",
    "rating": "rated difficulty",
    "rating at equal length": "rated difficulty, length held fixed",
    "length": "length in tokens",
    "length within sets": "length in tokens, within data sets",
}
"""Variables correlated with coupling, by the short name used in tables and keys."""

_ADDED = {ALONE: "question alone", "step by step": "with “step by step”"}


@of_networks
def take_prompts(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> pd.DataFrame:
    """Tabulate every prompt to which nothing was added: what it is like, and its mean coupling over all pairs."""
    alone = both.isel(prompt=np.flatnonzero(both.version == ALONE)).reset_coords()
    # Ratings stand in the table where there are some: they belong to files of one's own.
    rated = ["rating"] if "rating" in alone and alone.rating.notnull().any() else []
    notes = alone[["id", "question", "version", "dataset", "steps", *rated, "n_tokens"]].rename(n_tokens="tokens")
    coupling = _block_couplings(alone, variant, k).mean("block")
    table = notes.assign(coupling=coupling).to_dataframe(dim_order=["network", "prompt"]).reset_index()
    table = table[["network", *notes.data_vars, "coupling"]]
    found = {str(network): correlations(table, network) for network in both.network.values}
    table.attrs |= take.notes_on(both, variant, k, null) | {"correlations": found}
    return table


@of_networks
def take_versions(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> xr.Dataset:
    """Select coupling per block in every version of the questions, and its difference from the question alone."""
    couplings = version_couplings(both, variant, k)
    changes = (couplings - couplings.sel(version=ALONE)).where(couplings.version != ALONE)
    shown = {"coupling": interval(couplings, "question"), "difference": interval(changes, "question")}
    return joined(shown, "quantity").assign_attrs(take.notes_on(both, variant, k, null))


@of_models
def take_models(models: Mapping[str, xr.Dataset], variant: str = VARIANT, k: K = None, null: Null = None) -> xr.Dataset:
    """Select what `take_versions` does of several trained models, ordered by size; their depths may differ."""
    notes = take.notes_on(next(iter(models.values())), variant, k, null)
    trained = [take.trained_alone(models[name], name) for name in by_size(models)]
    found = [take_versions(one, variant, k, notes["null"]) for one in trained]
    return xr.concat(found, dim="network", join="outer", combine_attrs="drop").assign_attrs(notes)


def version_couplings(both: xr.Dataset, variant: str = VARIANT, k: K = None) -> xr.DataArray:
    """Return coupling per block of all questions that were measured in every version, in one order."""
    values = _block_couplings(both, variant, k)
    names = list(dict.fromkeys(both.version.values))
    by_name = [values.isel(prompt=np.flatnonzero(both.version == name)) for name in names]
    by_name = [part.reset_coords(drop=True).assign_coords(prompt=part.question.values) for part in by_name]
    shared = [question for question in by_name[0].prompt.values if all(question in part.prompt for part in by_name)]
    if len(names) < 2 or not shared:
        raise ParameterError("no prompt was measured in several versions; measure those of prompt_versions as well")
    joined = xr.concat([part.sel(prompt=shared) for part in by_name], pd.Index(names, name="version"))
    return joined.rename(prompt="question")


def correlations(table: pd.DataFrame, network: str) -> dict[str, Effect | None]:
    """Correlate coupling with what prompts are like: Spearman's coefficient with its 95 % interval."""
    alone = table[table["network"] == network]
    counted = alone[alone["steps"].notna()]
    # Two prompts about their mean are one value and its mirror image.
    many = alone[alone.groupby("dataset")["id"].transform("size") > 2]
    within = many[["tokens", "coupling"]] - many.groupby("dataset")[["tokens", "coupling"]].transform("mean")
    cases = {"steps": (counted, "steps", None), "steps at equal length": (counted, "steps", "tokens")}
    if "rating" in alone:
        rated = alone[alone["rating"].notna()]
        cases |= {"rating": (rated, "rating", None), "rating at equal length": (rated, "rating", "tokens")}
    cases |= {"length": (alone, "tokens", None), "length within sets": (within.round(12), "tokens", None)}
    found: dict[str, Effect | None] = dict.fromkeys(cases)
    for name, (frame, x, given) in cases.items():
        if len(frame) >= 4:  # fewer have no correlation
            with suppress(ParameterError):  # nothing varies
                found[name] = correlation(frame[x], frame["coupling"], given=None if given is None else frame[given])
    return found


def correlation_table(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the correlations of all networks."""
    rows = []
    for network, by_name in table.attrs["correlations"].items():
        for name, found in by_name.items():
            r, low, high, _, n, *_ = found or (np.nan, np.nan, np.nan, np.nan, 0)
            rows.append((network, QUANTITIES[name], n, r, low, high))
    return pd.DataFrame(rows, columns=["network", "quantity", "n", "spearman", "low", "high"])


def draw_prompts(table: pd.DataFrame) -> Figure:
    """Draw the coupling of every prompt against its reasoning steps, its length and its data set (figure 9)."""
    networks, sets = table["network"].unique(), sorted(table["dataset"].unique())
    null, difficulty = table.attrs["null"], "rating" if "rating" in table else "steps"
    figure = Figure(figsize=(style.WIDTH, 5.6), layout="constrained")
    above, below = figure.subfigures(2, 1)
    axes = dict(zip(("steps", "tokens"), above.subplots(1, 2, sharey=True), strict=True))
    axes["sets"], right = parts.narrow(below, sharey=axes["steps"])
    for position, name in enumerate(networks):
        ink, found = style.dataset_colour(name, position), table.attrs["correlations"][name]
        rows = table[table["network"] == name]
        for x, quantity in ((difficulty, difficulty), ("tokens", "length")):
            panel = axes["steps" if x == difficulty else x]
            places, values = rows.loc[rows[x].notna(), [x, "coupling"]].to_numpy(dtype=float).T
            # Prompts with as many steps would lie on top of each other.
            spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(places)) if x == "steps" else 0
            panel.scatter(places + spread, values, s=14, color=ink, alpha=0.65, linewidths=0)
            if len(places) > 2 and np.ptp(places) > 0:
                scatter.line(panel, places, values, color=ink, linewidth=1.2, zorder=2)
            place = {"ha": "right", "va": "top", "transform": panel.transAxes, "fontsize": 8}
            panel.text(0.99, 0.99 - 0.075 * position, _written(name, found[quantity]), color=ink, **place)
        for place, dataset in enumerate(sets):
            values = xr.DataArray(rows.loc[rows["dataset"] == dataset, "coupling"], dims="prompt")
            properties = {"shape": (0.06, 0.15, 0.04), "label": "" if place else name}
            centre = place - 0.05 + 0.7 * ((position + 0.5) / len(networks) - 0.5)
            parts.strip(axes["sets"], centre, values, ink, interval(values), **properties)
    if difficulty == "steps":
        parts.block_axis(axes["steps"], "reasoning steps of the solution")
    else:
        axes["steps"].set_xlabel("rated difficulty")
    axes["tokens"].set_xlabel("length of the prompt (tokens)")
    axes["sets"].set_xticks(range(len(sets)), sets, **({"rotation": 30, "ha": "right"} if len(sets) > 4 else {}))
    axes["sets"].set_xlim(-0.6, len(sets) - 0.4)
    for one in axes.values():
        one.grid(axis="y")
        parts.chance(one, null)
    for name in ("steps", "sets"):
        axes[name].set_ylabel(table.attrs["label"])
    # Room for a line of text per network above the highest dot.
    low, high = min(0.0, table["coupling"].min()), max(table["coupling"].max(), 1 - null)
    axes["steps"].set_ylim(low, high + (high - low) * (0.06 + 0.09 * len(networks)))
    parts.legend_beside(right, [axes["sets"]])
    return figure


def draw_versions(versions: xr.Dataset) -> Figure:
    """Draw coupling per block for questions alone and with a sentence added (figure 15)."""
    names = versions.network.values
    figure, grid = parts.grid(2, len(names), 5.2, sharex="col", sharey="row", height_ratios=(1.25, 1))
    for column, name in zip(grid.T, names, strict=True):
        for axes, quantity in zip(column, ("coupling", "difference"), strict=True):
            for position, version in enumerate(versions.version.values):
                one = versions.sel(network=name, quantity=quantity, version=version)
                if one["mean"].notnull().any():
                    properties = {"marker": style.marker(position), "markersize": 3.5}
                    properties["label"] = _ADDED.get(version, f"with {version}")
                    parts.band(axes, one, "block", style.dataset_colour(version, position), 0.2, **properties)
        column[0].set_title(parts.head(name, len(names)))
        column[1].axhline(0, color=style.colour("text"), linewidth=0.7)
        parts.block_axis(column[1])
    # After all bands: what ends an axis at 0 also ends its growing with what is drawn.
    for axes in grid[0]:
        parts.chance(axes, versions.null)
    grid[0, 0].set_ylabel(f"{versions.label}\nof block $l$ with all others")
    grid[1, 0].set_ylabel("difference from\nquestion alone")
    parts.legend_under(figure, grid[0, :1])
    return figure


@of_networks
def take_summary(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> pd.DataFrame:
    """Summarise coupling: means over the questions that were measured in every version, and paired differences."""
    means = version_couplings(both, variant, k).mean("block")
    added = [version for version in means.version.values if version != ALONE]
    change = interval(means - means.sel(version=ALONE), "question")
    columns = {version: means.sel(version=version).mean("question") for version in means.version.values}
    for version in added:
        for end, name in (("", "mean"), (" low", "low"), (" high", "high")):
            columns[f"{version} difference{end}"] = change[name].sel(version=version)
    table = pd.DataFrame({name: values.values for name, values in columns.items()}, index=both.network.values)
    table.loc["by chance", [ALONE, *added]] = 1 - take.null_beside(both, variant, k, null)
    return table


def numbers_of(both: xr.Dataset, variant: str = VARIANT, k: K = None, null: Null = None) -> dict[str, float]:
    """Return the numbers that the book quotes, by name."""
    null = take.null_beside(both, variant, k, null)
    table, means = take_prompts(both, variant, k, null), take_summary(both, variant, k, null)
    found = {"null": 1 - null, "null-error": null.error}
    for network, by_name in table.attrs["correlations"].items():
        for name, one in by_name.items():
            if one is not None:
                found |= effects.numbers({f"{name.replace(' ', '-')}-{network}": one})
    parted = {column: column.partition(" difference") for column in means}
    names = {column: f"{version}{word}-{{}}{end}" for column, (version, word, end) in parted.items()}
    found |= cells(means.drop(index="by chance"), names)
    versions = version_couplings(both.sel(network="trained"), variant, k)
    by_name = {name: versions.sel(version=name).values for name in versions.version.values}
    return found | effects.numbers(effects.of_prompts(by_name, ALONE))


def versions_caption(dataset: xr.Dataset) -> str:
    """Describe the sentences that were added to the questions."""
    words = " The model has no tokenizer; each word stands for one token."
    return (
        f"The instruction adds {dataset.attrs['instruction_tokens']} tokens, the control sentence "
        f"(“{dataset.attrs['control']}”) {dataset.attrs['control_tokens']}."
        f"{words if dataset.attrs.get('words_as_tokens') else ''}"
    )


def _block_couplings(ds: xr.Dataset, variant: str, k: K) -> xr.DataArray:
    return from_one(block_couplings(ds, variant, take.chosen_k(ds, k)), "block")


def _written(name: str, found: Effect | None) -> str:
    if found is None:
        return f"{name}: too few prompts"
    # Adding zero takes the sign off a rounded nothing.
    r, low, high = (f"{round(value, 2) + 0:.2f}".replace("-", "−") for value in found[:3])
    return rf"{name}: $\rho$ = {r} [{low}, {high}], n = {found.n}"
