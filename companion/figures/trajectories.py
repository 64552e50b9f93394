"""Trajectories: how straight, how even and how exponential a token's path through the stream is.

Beside one model's networks, all take several models' by name, as `compare_trajectories` gives them. What is taken of
several models, ordered by size, maps their names to what is taken of one. Prompts without a score are left out.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from companion.figures import parts, style
from companion.figures.take import Models, main_network, of_each_model, of_models, of_one
from companion.tables import effects
from companion.tables.arrays import cells, joined, quartiles, with_ends
from companion.tables.statistics import turning_point
from coupling_lib.models.registry import by_size

Taken = xr.Dataset | Mapping[str, xr.Dataset]
"""Selection of one model, or of several by name."""

SCORES = {"line_shape_score": "line-shape score", "expodistance": "expodistance", "equidistance": "std / mean of steps"}
"""Scores of a whole trajectory, with their labels on an axis."""

_PROFILES = {
    "norm": ("level", "level", r"norm $\Vert x^l\Vert_2$"),
    "relative_step": ("block", "block", "step length / mean step length"),
    "window_line_shape_score": ("centre", "middle block", "line-shape score of {window} blocks"),
    "entropy_normed": ("level", "level", "entropy of the next token (nats)"),
    "entropy": ("level", "", ""),
}
"""Quantities that are drawn against depth: their dimension, the names of the axis and of the panel."""

_SCORED = (*SCORES, "window_line_shape_score", "readings")
_LOGARITHMIC = ("expodistance", "norm", "relative_step")


@of_models
def take_scores(models: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Select every prompt's scores, and the number of blocks, of each model."""
    ordered = {name: models[name] for name in by_size(models)}
    scores = {name: _of_steps(both)[[*SCORES]].astype(float) for name, both in ordered.items()}
    return {name: found.assign(blocks=models[name].sizes["block"]) for name, found in scores.items()}


def _of_steps(both: xr.Dataset) -> xr.Dataset:
    """Mask the scores of a path of one step, which is straight, even and exponential by construction."""
    if both.sizes["block"] > 1:
        return both
    return both.assign({name: both[name].where(False) for name in _SCORED if name in both})


@of_each_model
def take_profiles(both: xr.Dataset, turn: int = 0) -> xr.Dataset:
    """Select quantities against depth, medians with quartiles; `turn` is the block that a line marks, -1 to find it."""
    if turn < 0:
        turn = turning_point(np.log(both.norm.sel(network=main_network(both.network.values)).median("prompt")))
    kept = {name: both.attrs.get(name, "") for name in ("window", "entropy_missing")} | ({"turn": turn} if turn else {})
    given = _of_steps(both).assign(relative_step=both.step_length / both.step_length.mean("block"))
    found = {}
    for name, (dimension, *_) in _PROFILES.items():
        if name in given:
            # Levels count what has been added, blocks and the middles of windows from 1.
            depth = given[dimension].values + (dimension != "level")
            values = given[name].astype(float).rename({dimension: "depth"}).assign_coords(depth=depth)
            found[name] = quartiles(values)
    return joined(found, "quantity").transpose("network", "quantity", "depth").assign_attrs(kept)


@of_each_model
def take_paths(both: xr.Dataset) -> xr.Dataset:
    """Select the positions of the first prompt's tokens at each level, in the components of their last states."""
    if "path" not in both:
        nowhere = (("network", "level", "token"), np.empty((0, 0, 0)))
        return xr.Dataset(dict.fromkeys(("text", "component_1", "component_2"), nowhere))
    path = both.path.rename(position="token").transpose("network", "level", "token", "component")
    text = both.path_token.rename(position="token").broadcast_like(path.isel(component=0)).transpose(*path.dims[:3])
    variables = {"text": text, "component_1": path[..., 0], "component_2": path[..., 1], "share": both.path_share}
    coords = {"token": np.arange(path.sizes["token"]) + 1, "component": [1, 2]}
    return xr.Dataset(variables, attrs={"blocks": both.sizes["block"]}).assign_coords(coords)


def path_ranges(n_blocks: int) -> dict[str, range]:
    """Split a model's depth into the ranges of blocks that the panels of principal components show."""
    half = n_blocks // 2
    ranges = {"all blocks": range(n_blocks + 1)}
    if half:
        ranges[f"shallow: blocks 1-{half}"] = range(half + 1)
        ranges[f"deep: blocks {half + 1}-{n_blocks}"] = range(half, n_blocks + 1)
    return ranges


@of_one
def take_conventions(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the scores in every convention: their dependence on the choice of states and of the formula."""
    medians = _of_steps(ds).readings.median("prompt").transpose("reading", "states")
    return medians.to_pandas().loc[ds.reading.values, ds.states.values].rename_axis(index=None, columns=None)


def take_summary(measured: Models) -> pd.DataFrame:
    """Summarise the scores in a table."""
    tables = {}
    for model, both in take_scores(measured).items():
        found = quartiles(both[list(SCORES)].rename(SCORES).to_dataarray("score"))
        tables[model] = found.to_dataframe(dim_order=["network", "score"])
    return pd.concat(tables, names=["model"])[["median", "low", "high"]]


def numbers_of(both: xr.Dataset) -> dict[str, float]:
    """Return the numbers that the book quotes of a model before and after training and the verdicts' effects."""
    summary = take_summary(both).droplevel("model")
    names = {label: name.replace("_", "-") for name, label in SCORES.items()}
    found = cells(summary.rename(index=names), with_ends("{1}-{0}", "median"))
    found |= effects.numbers(effects.of_trajectories(_of_steps(both), tuple(SCORES)))
    return found | {"prompts": both.sizes["prompt"]}


def profile_caption(profiles: Taken, found: bool = False) -> str:
    """Describe what `draw_profiles` shows, why a panel is missing, and what lines mark (`found` or given)."""
    models = _by_name(profiles)
    windows = " or ".join(dict.fromkeys(str(one.window) for one in models.values()))
    texts = [
        "Medians over prompts against depth, with quartiles. Level 0 is the embedding, level l what leaves block l. "
        f"Line-shape scores are of {windows} neighbouring blocks, with that number as numerator."
    ]
    if any("entropy" in one.quantity for one in models.values()):
        texts.append(
            "Entropy is that of softmax(W x) with the unembedding W: solid lines take the state x after the model's "
            "final norm, dashed lines as it is."
        )
    if missing := dict.fromkeys(one.entropy_missing for one in models.values() if one.entropy_missing):
        texts.append(f"Entropy is left out: {'; '.join(missing)}.")
    turns = {name: one.turn for name, one in models.items() if "turn" in one.attrs}
    if turns:
        marked = ", ".join(f"block {turn}{f' of {name}' * bool(name)}" for name, turn in turns.items())
        how = ": a line that bends once fits the logarithm of the trained model's norm best if it bends there"
        texts.append(f"The vertical line marks {marked}{how * found}.")
    return " ".join(texts)


def draw_scores(scores: Mapping[str, xr.Dataset]) -> Figure:
    """Draw the scores of whole trajectories, model by model (the paper's figures 5a and 5b)."""
    upright = {"rotation": 90} if len(scores) > 2 else {}
    figure, row = parts.panels(list(SCORES.values()), 4.5 if upright else 3.4)
    grey = {"color": style.colour(style.NULL), "linewidth": 1.2}
    for axes, score in zip(row, SCORES, strict=True):
        for place, both in enumerate(scores.values()):
            networks = both.network.values
            shift = np.linspace(-0.2, 0.2, len(networks)) if len(networks) > 1 else [0.0]
            for offset, network in zip(shift, networks, strict=True):
                values, ink = both[score].sel(network=network), style.dataset_colour(network, 0)
                parts.strip(axes, place + offset, values, ink, width=0.44)
        axes.set_xticks(range(len(scores)), list(style.short_names(scores, 18).values()), **upright)
        axes.set_xlim(-0.5, len(scores) - 0.5)
        if not any(np.isfinite(both[score]).any() for both in scores.values()):
            axes.set_yticks([])
            why = "no net growth" if max(both.blocks for both in scores.values()) > 1 else "a single step"
            axes.text(0.5, 0.5, f"does not exist:\n{why}", transform=axes.transAxes, ha="center", va="center")
        if score in _LOGARITHMIC:
            parts.log_axis(axes)
    for place, both in enumerate(scores.values()):
        row[0].plot([place - 0.42, place + 0.42], [np.sqrt(both.blocks.item())] * 2, dashes=(4, 3), **grey)
    row[0].axhline(1, dashes=(1, 1.5), **grey)
    references = {r"$\sqrt{L}$: unrelated steps": (4, 3), "1: straight line": (1, 1.5)}
    lines = [Line2D([], [], dashes=dashes, label=label, **grey) for label, dashes in references.items()]
    _legend_above(figure, [network for both in scores.values() for network in both.network.values], lines)
    return figure


def draw_profiles(profiles: Taken) -> Figure:
    """Draw norm, step length, line-shape score in windows and entropy against depth (the paper's figures 24 and 26)."""
    models, several = _by_name(profiles), not isinstance(profiles, xr.Dataset)
    drawn = {str(name) for one in models.values() for name in one.quantity.values}
    shown = [name for name, (*_, title) in _PROFILES.items() if title and name in drawn]
    rows, columns = (len(shown), len(models)) if several else (2, 2) if len(shown) == 4 else (1, len(shown))
    figure, grid = parts.grid(rows, columns, (1.8 if several else 2.35) * rows + 0.45)
    for position, (column, (model, one)) in enumerate(zip(grid.reshape(len(shown), -1).T, models.items(), strict=True)):
        for axes, name in zip(column, shown, strict=True):
            _draw_quantity(axes, one, name, legend=not several)
            title = _PROFILES[name][2].format(window=one.window)
            if not several:
                axes.set_title(title, fontsize=10 if rows == 2 else 9)
            elif name.startswith("window") or not position:
                axes.set_ylabel(title.replace(" of ", "\nof ").replace(" / ", " /\n"))
        if several:
            column[0].set_title(parts.head(model, columns))
    _legend_above(figure, next(iter(models.values())).network.values, [])
    return figure


def draw_paths(paths: Taken) -> Figure:
    """Draw the paths of the tokens of one prompt in the plane of their last states (the paper's figures 12 to 14)."""
    models = {name: one for name, one in _by_name(paths).items() if one.sizes["token"]}
    if not models:
        figure = Figure(figsize=(style.WIDTH, 0.6))
        figure.text(0.5, 0.5, "no principal components: the first prompt has fewer than three tokens", ha="center")
        return figure
    several, networks = not isinstance(paths, xr.Dataset), next(iter(models.values())).network.values
    most = max(len(path_ranges(one.blocks)) for one in models.values())
    rows, columns = (len(networks) * most, len(models)) if several else (len(networks), most)
    figure = Figure(figsize=(style.WIDTH, 0.35 + (1.8 if several else 2.35) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).reshape(len(networks), most, len(models))
    for position, (model, one) in enumerate(models.items()):
        names = list(path_ranges(one.blocks))
        for row, network in zip(panels[..., position], networks, strict=True):
            share = _draw_ways(row, one.sel(network=network), network)
            if not several:
                row[0].set_ylabel(f"{network}\ncomponent 2 ({share[1]:.0%})")
                row[len(row) // 2].set_xlabel(f"component 1  ({share[0]:.0%})")
                continue
            row[-1].set_xlabel(f"components 1, 2:\n{share[0]:.0%}, {share[1]:.0%}")
            for axes, name in zip(row, names if not position else [], strict=False):
                axes.set_ylabel(f"{network}, {name.partition(':')[0]}")
        heads = [parts.head(model, columns)] if several else names
        for axes, name in zip(panels[0, :, position], heads, strict=False):
            axes.set_title(name)
    return figure


def _by_name(taken: Taken) -> Mapping[str, xr.Dataset]:
    """Return the selection of each model by name; a single model has an empty name."""
    return {"": taken} if isinstance(taken, xr.Dataset) else taken


def _draw_ways(row: np.ndarray, one: xr.Dataset, network: str) -> np.ndarray:
    """Draw the paths of one network, a panel per part of its depth; return the components' shares of the variance."""
    ways = np.stack([one.component_1.T, one.component_2.T], axis=-1)
    for axes, levels in zip(row, path_ranges(one.blocks).values(), strict=False):
        for token, way in enumerate(ways[:, list(levels)]):
            last, ink = token == len(ways) - 1, style.dataset_colour(network, 0)
            properties = {"color": style.colour("text"), "zorder": 4} if last else {"color": ink, "alpha": 0.55}
            axes.plot(*way.T, linewidth=1.8 if last else 0.8, **properties)
            axes.plot(*way[-1], "o", markersize=4 if last else 2.5, markeredgewidth=0, **properties)
        for line in (axes.axhline, axes.axvline):
            line(0, color=style.colour("faint"), linewidth=0.5, zorder=0)
        axes.locator_params(nbins=5)
    return one.share.values


def _draw_quantity(axes: Axes, profiles: xr.Dataset, name: str, legend: bool) -> None:
    """Draw one quantity of a model against depth, if it has it; without a `legend` the caption explains the dashes."""
    if name not in profiles.quantity:
        return axes.set_axis_off()
    properties = {"marker": "o", "markersize": 2.5, "linewidth": 1.4, "shade": 0.2}
    parts.bands(axes, profiles.sel(quantity=name).dropna("depth", how="all"), "depth", linestyle="-", **properties)
    parts.block_axis(axes, _PROFILES[name][1])
    if name in _LOGARITHMIC:
        parts.log_axis(axes)
    if "turn" in profiles.attrs:
        axes.axvline(profiles.turn, color=style.colour("text"), linewidth=0.9, dashes=(2, 2), zorder=1)
    if name == "relative_step":
        axes.axhline(1, color=style.colour(style.NULL), linewidth=1.2, dashes=(1, 1.5))
    if name == "entropy_normed":
        plain = profiles.sel(quantity="entropy").dropna("depth", how="all")
        parts.bands(axes, plain, "depth", linestyle=(0, (4, 2)), **properties)
        axes.set_ylim(bottom=0)
        ink = style.colour("text")
        lines = [Line2D([], [], color=ink), Line2D([], [], color=ink, dashes=(4, 2))]
        if legend:
            axes.legend(lines, ["final norm first", "state as it is"], loc="best")


def _legend_above(figure: Figure, networks: np.ndarray | list[str], lines: list[Line2D]) -> None:
    """Place one legend above all panels: networks, each once, and further lines."""
    properties = {"marker": "o", "markersize": 4}
    names = dict.fromkeys(networks)
    handles = [Line2D([], [], color=style.dataset_colour(name, 0), label=name, **properties) for name in names] + lines
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
