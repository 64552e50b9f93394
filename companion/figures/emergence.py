"""Emergence: coupling and the shape of trajectories against the step of training.

Steps are on a logarithmic axis; step 0, which has no logarithm, is apart on its left, beyond a break of the axis.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from companion.figures import circle, parts, style, take
from companion.figures.labels import coupling_label
from companion.figures.take import VARIANT, K, of_one
from companion.tables import effects
from companion.tables.arrays import from_one, joined, mean_over_directions, quartiles, records_of
from coupling_lib.datasets.parts import SHARED, known_shared_part
from coupling_lib.datasets.summaries import interval, mean_couplings, pair_couplings
from coupling_lib.models.registry import by_size

SCORES = {"line_shape_score": "line-shape score", "expodistance": "expodistance"}
"""Scores drawn against training, with their labels on an axis."""
PROFILES = {
    "norm": ("level", r"norm $\Vert x^l\Vert_2$"),
    "window_line_shape_score": ("centre", "line-shape score"),
    "window_expodistance": ("centre", "expodistance"),
}
"""Quantities drawn against depth: the dimension of depth, and the axis's label."""
_BLOCKS = ["block_1", "block_2"]
ALIKE = 0.02
"""Difference of coupling below which two lines coincide, and only one is drawn."""


@of_one
def take_coupling(ds: xr.Dataset, variant: str = VARIANT, k: K = None) -> xr.Dataset:
    """Select mean coupling, that of random bases, and the model's quality, at each step."""
    k = take.chosen_k(ds, k)
    null = {"random_bases": 1 - ds["null"], "random_bases_error": ds.null_error, "progress": ds.progress}
    found = interval(mean_couplings(ds, variant, k)).assign(null).sel(k=k, drop=True)
    if (part := known_shared_part(ds, variant)) is not None:
        own = interval(mean_couplings(part, variant, k)).assign(random_bases=1 - part["null"].sel(k=k, drop=True))
        found = found.assign({f"shared_{name}": values for name, values in own.data_vars.items()})
    return found.assign_attrs(label=coupling_label(variant, k), progress_label=ds.attrs.get("progress_label", ""))


@of_one
def take_locality(ds: xr.Dataset, variant: str = VARIANT, k: K = None) -> xr.Dataset:
    """Select coupling against the distance between blocks, from 1, and of blocks at least half the depth apart."""
    k = take.chosen_k(ds, k)
    couplings, apart = pair_couplings(ds, variant, k), abs(ds.block_1 - ds.block_2)
    by_distance = couplings.assign_coords(distance=apart).groupby("distance").mean().isel(distance=slice(1, None))
    far = couplings.where(apart >= max(1, ds.sizes["block_1"] // 2)).mean(_BLOCKS)
    found = interval(by_distance).transpose("step", "distance").assign(random_bases=1 - ds["null"].sel(k=k, drop=True))
    found = found.assign({f"far_{name}": values for name, values in interval(far).data_vars.items()})
    return found.assign_attrs(label=coupling_label(variant, k))


@of_one
def take_graphs(ds: xr.Dataset, variant: str = VARIANT, k: K = None, middle: int | None = None) -> xr.DataArray:
    """Select coupling at three steps, mean of both directions: the first, the `middle` (most coupled), the last."""
    k = take.chosen_k(ds, k)
    couplings = pair_couplings(ds, variant, k)
    between = couplings.mean(["prompt", *_BLOCKS])[1:-1]
    inner = [] if not between.size else [1 + int(between.values.argmax())]
    steps = [0, *(inner if middle is None else [list(ds.step.values).index(middle)]), ds.sizes["step"] - 1]
    one_way = couplings.isel(step=steps).mean("prompt").rename(block_1="block_a", block_2="block_b")
    titles = [f"step {step}" for step in one_way.step.values]
    found = from_one(mean_over_directions(one_way), "block_a", "block_b").assign_coords(step=titles)
    null = 1 - ds["null"].sel(k=k).isel(step=steps).mean().item()
    return found.assign_attrs(label=coupling_label(variant, k), null=null)


@of_one
def take_scores(ds: xr.Dataset, centres: Sequence[int] = ()) -> xr.Dataset:
    """Select line-shape score and expodistance of the whole depth and of some windows (first, middle and last)."""
    known, width = ds.centre.values, int(ds.attrs["window"])
    chosen = dict.fromkeys(centres or (known[0], known[(len(known) - 1) // 2], known[-1]))
    windows = ds[[f"window_{score}" for score in SCORES]].rename({f"window_{score}": score for score in SCORES})
    found = {"all": ds[[*SCORES]].to_dataarray("score")}
    for centre in chosen:
        first = centre - width // 2 + 1
        name = f"blocks {first}-{first + width - 1}"
        found[name] = windows.sel(centre=centre, drop=True).to_dataarray("score")
    values = joined(found, "blocks").transpose("score", "blocks", ...)
    return quartiles(values.astype(float)).assign_attrs(window=width)


@of_one
def take_profiles(ds: xr.Dataset) -> xr.Dataset:
    """Select norm by level, and line-shape score and expodistance by the middle block of a window, from 1."""
    found = {}
    for quantity, (dimension, _) in PROFILES.items():
        one = quartiles(ds[quantity].astype(float)).rename({dimension: "depth"})
        found[quantity] = one.assign_coords(depth=one.depth + (dimension == "centre"))
    return joined(found, "quantity")


def take_models(measured: take.Models, variant: str = VARIANT, k: K = None) -> dict[str, xr.Dataset]:
    """Select mean coupling, and line-shape score and expodistance of the whole depth, of models ordered by size."""
    models = take.by_model(measured)
    k, found = take.chosen_k(next(iter(models.values())), k), {}
    for name in by_size(models):
        ds = models[name]
        coupling = take_coupling(ds, variant, k)[["mean", "low", "high"]].rename(mean="middle")
        scores = quartiles(ds[[*SCORES]].to_dataarray("quantity").astype(float)).rename(median="middle")
        joined = xr.concat([coupling.expand_dims(quantity=["coupling"]), scores], dim="quantity")
        found[name] = joined.transpose("quantity", "step").assign_attrs(label=coupling_label(variant, k))
    return take.with_records(found, records_of(models))


@of_one
def take_summary(ds: xr.Dataset, variant: str = VARIANT, k: K = None) -> pd.DataFrame:
    """Tabulate emergence in a few numbers per step."""
    table = _table(ds, variant, take.chosen_k(ds, k))
    progress = ds.attrs.get("progress_label", "").partition(" (")[0]  # without its unit
    names = {"shared": SHARED} if "shared" in table else {}
    names |= {"random_bases": "by chance"} | SCORES | {"progress": progress or "progress"}
    return table[["coupling", "low", "high", *names]].rename(columns=names)


def numbers_of(ds: xr.Dataset, others: effects.OtherRuns, variant: str = VARIANT, k: K = None) -> dict[str, float]:
    """Return the numbers that prose about emergence quotes, and the effects that verdicts rest on."""
    k = take.chosen_k(ds, k)
    table, found = _table(ds, variant, k).reset_index(), {"prompts": ds.sizes["prompt"], "scatter": others.scatter}
    steps = {"first": 0, "peak": int(table.coupling.argmax()), "last": -1}
    if "shared" in table:
        steps["shared-peak"] = int(table.shared.argmax())
    if len(table) > 2:
        steps["turn"] = effects.turning_step(table.step.to_numpy(), others)
    for word, at in steps.items():
        found |= {f"{word}-{name.replace('_', '-')}": float(value) for name, value in table.iloc[at].items()}
        found[f"{word}-on-diagonal"] = effects.diagonal_share(found[f"{word}-coupling"])
        found[f"{word}-on-diagonal-chance"] = effects.diagonal_share(found[f"{word}-random-bases"])
    for prefix, part in (("", ds), ("shared", known_shared_part(ds, variant))):
        if part is not None:
            found |= effects.numbers(effects.of_emergence(part, variant, k, others), prefix)
    return found


def _table(ds: xr.Dataset, variant: str, k: int) -> pd.DataFrame:
    """Return a table of all quantities at each step, summarised over prompts."""
    columns = {"mean": "coupling", "shared_mean": "shared"}
    table = take_coupling(ds, variant, k).to_dataframe().rename(columns=columns)
    return table.assign(**{score: ds[score].median("prompt").values for score in SCORES})


def draw_coupling(couplings: xr.Dataset) -> Figure:
    """Draw mean coupling against training, with chance, and the model's quality (the paper's figure 1b)."""
    known = couplings.progress.notnull().values
    quantities = [couplings.label, couplings.progress_label][: 1 + known.any()]
    figure, (axes, *beside) = parts.panels(quantities, 3.4, plain=True)
    alike = "shared_mean" in couplings and float(abs(couplings.shared_mean - couplings["mean"]).max()) < ALIKE
    name = "coupling, whole or of the traceless part" if alike else "coupling"
    places = _draw_steps(axes, couplings, style.colour(style.TRAINED), name)
    if couplings.step[0] == 0:
        untrained = couplings["mean"].values[0]
        axes.axhline(untrained, color=style.colour(style.UNTRAINED), linewidth=1, dashes=(1, 2))
        _mark_untrained(axes, places[0], untrained)
    if "shared_mean" in couplings and not alike:
        names = ("mean", "low", "high")
        shared = couplings[[f"shared_{name}" for name in names]].rename({f"shared_{name}": name for name in names})
        _draw_steps(axes, shared, style.colour(style.SHARED), "coupling of the traceless part")
    axes.plot(places, couplings.random_bases, **parts.null_style("by chance"))
    parts.from_zero(axes)
    for second in beside:
        parts.step_axis(second, couplings.step.values)
        ink = style.dataset_colour("progress", 0)
        second.plot(places[known], couplings.progress[known], "s-", color=ink, markersize=3.5, lw=1.1)
    parts.legend_under(figure, [axes])
    return figure


def draw_locality(locality: xr.Dataset) -> Figure:
    """Draw coupling against the distance between blocks at each step, and near and far pairs against training."""
    figure, (left, right) = parts.panels(["", ""], 3.9, sharey=True, y=locality.label)
    for step, ink in zip(locality.step.values, parts.shades(locality.sizes["step"]), strict=True):
        parts.band(left, locality.sel(step=step), "distance", ink, 0.2, marker="o", markersize=3.5)
    left.axhline(locality.random_bases.mean(), **parts.null_style())
    parts.block_axis(left, "distance $|l-l'|$ between blocks")
    far = locality[["far_mean", "far_low", "far_high"]].rename(far_mean="mean", far_low="low", far_high="high")
    near = {"neighbours": locality[["mean", "low", "high"]].sel(distance=1), "half the depth or more apart": far}
    for position, (name, one) in enumerate(near.items(), start=1):
        places = _draw_steps(right, one, style.dataset_colour(name, position), name)
    right.plot(places, locality.random_bases, **parts.null_style("by chance"))
    parts.from_zero(right)
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper right", ncols=3)
    _step_bar([left, right], locality.step.values)
    return figure


def draw_graphs(graphs: xr.DataArray) -> Figure:
    """Draw blocks on a circle, joined by their coupling, at three steps (the paper's figures 1c to 1e)."""
    inks = [style.colour(style.UNTRAINED if title == "step 0" else style.TRAINED) for title in graphs.step.values]
    return circle.circles(graphs.step.values, graphs, inks, graphs.null)


def draw_scores(scores: xr.Dataset) -> Figure:
    """Draw line-shape score and expodistance against training, of all blocks and of windows (figures 27 to 29)."""
    figure, grid = parts.grid(2, 2, 4.6, sharey="col")
    inks = [style.colour(style.TRAINED), *(style.dataset_colour("", at) for at in range(5))]
    for (above, below), score in zip(grid.T, scores.score.values, strict=True):
        for name, ink in zip(scores.blocks.values, inks, strict=False):
            one = scores.sel(score=score, blocks=name)
            places = _draw_steps(above if name == "all" else below, one, ink, "" if name == "all" else name)
            if name == "all" and one.step[0] == 0:
                _mark_untrained(above, places[0], one["median"].values[0])
        above.set(title="all blocks", ylabel=SCORES[score], xlabel="")
        below.set(title=f"windows of {scores.window} blocks", ylabel=SCORES[score])
    parts.log_axis(grid[0, 1])
    for axes in grid[:, 0]:
        if axes.get_legend_handles_labels()[0]:  # without step 0 there is no label above
            axes.legend()
    return figure


def draw_models(models: Mapping[str, xr.Dataset]) -> Figure:
    """Draw coupling, line-shape score and expodistance of several models against training (figures 1b and 27)."""
    first, called = next(iter(models.values())), style.short_names(models)
    labels = {"coupling": first.label} | SCORES
    figure, row = parts.panels(list(labels.values()), 3.4, plain=True)
    steps = np.unique(np.concatenate([one.step.values for one in models.values()]))
    for axes, quantity in zip(row, labels, strict=True):
        places = dict(zip(steps, parts.step_axis(axes, steps), strict=True))
        axes.set_xticks(axes.get_xticks()[:: 2 if len(axes.get_xticks()) > 5 else 1])
        for position, (name, one) in enumerate(models.items()):
            ink, at = style.dataset_colour("", position), [places[step] for step in one.step.values]
            drawn = one.sel(quantity=quantity).rename(middle="median").assign_coords(step=at)
            properties = {"marker": style.marker(position), "markersize": 3.5, "label": called[name]}
            parts.band(axes, drawn, "step", ink, 0.2, **properties)
    parts.from_zero(row[0])
    parts.log_axis(row[2])
    parts.legend_under(figure, row[:1], columns=min(len(models), 4))
    return figure


def draw_profiles(profiles: xr.Dataset) -> Figure:
    """Draw norm, and line-shape score and expodistance in windows, against depth at each step (figures 27 and 30)."""
    figure, row = parts.panels([label for _, label in PROFILES.values()], 3.4)
    for axes, (quantity, (dimension, _)) in zip(row, PROFILES.items(), strict=True):
        one = profiles["median"].sel(quantity=quantity).dropna("depth", how="all")
        for step, ink in zip(profiles.step.values, parts.shades(profiles.sizes["step"]), strict=True):
            axes.plot(one.depth, one.sel(step=step), color=ink, marker="o", markersize=2.5, linewidth=1.3)
        parts.block_axis(axes, "level (0: embedding)" if dimension == "level" else "middle block of the window")
        axes.title.set_fontsize(9)
        if quantity != "window_line_shape_score":
            parts.log_axis(axes)
    _step_bar(row, profiles.step.values)
    return figure


def _draw_steps(axes: Axes, summary: xr.Dataset, ink: str, label: str) -> np.ndarray:
    """Draw a line over steps, dotted over the break of the axis, and return the positions of the steps."""
    places = parts.step_axis(axes, summary.step.values)
    placed = summary.assign_coords(step=places)
    first = int(summary.step[0] == 0)
    if first:
        axes.plot(places[:2], parts.middle(summary)[:2], color=ink, linewidth=1.0, linestyle=(0, (1, 2)))
    for part, name in ((placed.isel(step=slice(first)), ""), (placed.isel(step=slice(first, None)), label)):
        parts.band(axes, part, "step", ink, 0.2, marker="o", markersize=3.5, label=name)
        if part.sizes["step"] == 1:  # a band needs two points
            axes.vlines(part.step, part.low, part.high, color=ink, alpha=0.4, linewidth=3, zorder=1)
    return places


def _mark_untrained(axes: Axes, place: float, value: float) -> None:
    ink = style.colour(style.UNTRAINED)
    axes.plot(place, value, "o", color=ink, markersize=6, label="untrained (step 0)", zorder=4)


def _step_bar(row: Sequence[Axes], steps: np.ndarray) -> None:
    """Add a colour bar with one patch per step under all panels."""
    scale = BoundaryNorm(np.arange(len(steps) + 1) - 0.5, len(steps))
    bar = parts.colour_bar(row, ScalarMappable(scale, ListedColormap(parts.shades(len(steps)))), "training step")
    labelled = parts.thinned(len(steps))
    bar.set_ticks(labelled, labels=[parts.short_step(steps[at]) for at in labelled])
    bar.ax.tick_params(which="both", length=0)
