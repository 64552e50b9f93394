"""Trajectories: how straight, how even and how exponential a token's path through the stream is.

*Models* map a name to its untrained and trained measurement, as `compare_trajectories` gives them; `both` is one
model's, side by side. Prompts for which a score does not exist are left out.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coupling_lib.figures import parts, style
from coupling_lib.metrics.statistics import turning_point
from coupling_lib.metrics.summaries import cells, quartiles, side_by_side, with_ends
from coupling_lib.models.registry import by_size

Models = Mapping[str, Mapping[str, xr.Dataset]]

SCORES = {
    "line_shape_score": "line-shape score",
    "expodistance": "expodistance",
    "equidistance": "std / mean of steps",
}
"""Scores of a whole trajectory, and how an axis says them."""

_PROFILES = {
    "norm": ("level", "level", r"norm $\Vert x^l\Vert_2$"),
    "relative_step": ("block", "block", "step length / mean step length"),
    "window_line_shape_score": ("centre", "middle block", "line-shape score of {window} blocks"),
    "entropy_normed": ("level", "level", "entropy of the next token (nats)"),
    "entropy": ("level", "", ""),
}
"""Quantities that are drawn against depth: the dimension that depth is, the names of the axis and of the panel."""

_LOGARITHMIC = ("expodistance", "norm", "relative_step")


def take_scores(models: Models) -> dict[str, xr.Dataset]:
    """Select every prompt's scores, and the number of blocks, of several models, ordered by size."""
    found = {name: side_by_side(**models[name]) for name in by_size(models)}
    return {name: both[list(SCORES)].astype(float).assign(blocks=both.sizes["block"]) for name, both in found.items()}


def take_profiles(both: xr.Dataset, turn: int = 0) -> xr.Dataset:
    """Select quantities against depth, medians with quartiles; `turn` is the block that a line marks, -1 to find it."""
    if turn < 0:
        network = style.TRAINED if style.TRAINED in both.network else both.network.values[-1]
        turn = turning_point(np.log(both.norm.sel(network=network).median("prompt")))
    marked = {"turn": turn} if turn else {}
    given = both.assign(relative_step=both.step_length / both.step_length.mean("block"))
    found = {}
    for name, (dimension, *_) in _PROFILES.items():
        if name in given:
            # Levels count what has been added, blocks and the middles of windows from 1.
            depth = given[dimension].values + (dimension != "level")
            values = given[name].astype(float).rename({dimension: "depth"}).assign_coords(depth=depth)
            found[name] = quartiles(values)
    joined = xr.concat(list(found.values()), pd.Index(found, name="quantity"), join="outer")
    return joined.transpose("network", "quantity", "depth").assign_attrs(window=both.attrs["window"], **marked)


def take_paths(both: xr.Dataset) -> xr.Dataset:
    """Select where the first prompt's tokens are at each level, in the components of their last states."""
    if "path" not in both:
        nowhere = (("network", "level", "token"), np.empty((0, 0, 0)))
        return xr.Dataset(dict.fromkeys(("text", "component_1", "component_2"), nowhere))
    path = both.path.rename(position="token").transpose("network", "level", "token", "component")
    text = both.path_token.rename(position="token").broadcast_like(path.isel(component=0)).transpose(*path.dims[:3])
    variables = {"text": text, "component_1": path[..., 0], "component_2": path[..., 1], "share": both.path_share}
    coords = {"token": np.arange(path.sizes["token"]) + 1, "component": [1, 2]}
    return xr.Dataset(variables, attrs={"blocks": both.sizes["block"]}).assign_coords(coords)


def path_ranges(n_blocks: int) -> dict[str, range]:
    """Split a model's depth as the panels of its principal components do."""
    half = n_blocks // 2
    ranges = {"all blocks": range(n_blocks + 1)}
    if half:
        ranges[f"shallow: blocks 1-{half}"] = range(half + 1)
        ranges[f"deep: blocks {half + 1}-{n_blocks}"] = range(half, n_blocks + 1)
    return ranges


def readings_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the scores in every reading: how much depends on which states and which formula are taken."""
    medians = ds.readings.median("prompt").transpose("reading", "states")
    return medians.to_pandas().loc[ds.reading.values, ds.states.values].rename_axis(index=None, columns=None)


def summary_table(scores: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Tabulate the scores in a few numbers."""
    found = {
        model: quartiles(both[list(SCORES)].rename(SCORES).to_dataarray("score")) for model, both in scores.items()
    }
    tables = {model: ds.to_dataframe(dim_order=["network", "score"]) for model, ds in found.items()}
    return pd.concat(tables, names=["model"])[["median", "low", "high"]]


def numbers_of(summary: pd.DataFrame, model: str) -> dict[str, float]:
    """Name a model's numbers as the book quotes them."""
    names = {label: name.replace("_", "-") for name, label in SCORES.items()}
    return cells(summary.loc[model].rename(index=names), with_ends("{1}-{0}", "median"))


def turn_caption(profiles: xr.Dataset, found: bool) -> str:
    """Say what the vertical line of `draw_profiles` marks, where there is one."""
    if "turn" not in profiles.attrs:
        return ""
    how = (
        ": a line that bends once fits the logarithm of the trained model's norm best if it bends there"
        if found
        else ""
    )
    return f" The vertical line marks block {profiles.turn}{how}."


def profile_caption(both: xr.Dataset) -> str:
    """Say what `draw_profiles` shows, and why a panel is missing where one is."""
    text = (
        "Medians over prompts against depth, with quartiles. Level 0 is the embedding, level l what leaves block l. "
        f"Line-shape scores are of {both.attrs['window']} neighbouring blocks, with that number as numerator. "
    )
    if both.attrs["entropy_missing"]:
        return f"{text}Entropy is left out: {both.attrs['entropy_missing']}."
    return text + (
        "Entropy is that of softmax(W x) with the unembedding W: solid lines take the state x after the model's final "
        "norm, dashed lines as it is."
    )


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
        short = [style.short_name(name) for name in scores]
        cut = [name if len(name) <= 18 else f"{name[:17]}…" for name in short]
        axes.set_xticks(range(len(scores)), cut, **upright)
        axes.set_xlim(-0.5, len(scores) - 0.5)
        if not any(np.isfinite(both[score]).any() for both in scores.values()):
            axes.set_yticks([])
            axes.text(0.5, 0.5, "does not exist:\nno net growth", transform=axes.transAxes, ha="center", va="center")
        if score in _LOGARITHMIC:
            parts.log_axis(axes)
    for place, both in enumerate(scores.values()):
        row[0].plot([place - 0.42, place + 0.42], [np.sqrt(both.blocks.item())] * 2, dashes=(4, 3), **grey)
    row[0].axhline(1, dashes=(1, 1.5), **grey)
    references = {r"$\sqrt{L}$: unrelated steps": (4, 3), "1: straight line": (1, 1.5)}
    lines = [Line2D([], [], dashes=dashes, label=label, **grey) for label, dashes in references.items()]
    _legend_above(figure, [network for both in scores.values() for network in both.network.values], lines)
    return figure


def draw_profiles(profiles: xr.Dataset) -> Figure:
    """Draw norm, step length, line-shape score in windows and entropy against depth (the paper's figures 24 and 26)."""
    shown = [name for name, (*_, title) in _PROFILES.items() if title and name in profiles.quantity]
    rows, columns = (2, 2) if len(shown) == 4 else (1, len(shown))
    figure, grid = parts.grid(rows, columns, 2.35 * rows + 0.45)
    for axes, name in zip(grid.flat, shown, strict=True):
        _, depth, title = _PROFILES[name]
        _draw_profile(axes, profiles.sel(quantity=name), "-")
        axes.set_title(title.format(window=profiles.window), fontsize=10 if rows == 2 else 9)
        parts.block_axis(axes, depth)
        if name in _LOGARITHMIC:
            parts.log_axis(axes)
        if "turn" in profiles.attrs:
            axes.axvline(profiles.turn, color=style.colour("text"), linewidth=0.9, dashes=(2, 2), zorder=1)
        if name == "relative_step":
            axes.axhline(1, color=style.colour(style.NULL), linewidth=1.2, dashes=(1, 1.5))
        if name == "entropy_normed":
            _draw_profile(axes, profiles.sel(quantity="entropy"), (0, (4, 2)))
            axes.set_ylim(bottom=0)
            ink = style.colour("text")
            lines = [Line2D([], [], color=ink), Line2D([], [], color=ink, dashes=(4, 2))]
            axes.legend(lines, ["final norm first", "state as it is"], loc="best")
    _legend_above(figure, profiles.network.values, [])
    return figure


def draw_paths(paths: xr.Dataset) -> Figure:
    """Draw the paths of the tokens of one prompt in the plane of their last states (the paper's figures 12 to 14)."""
    if not paths.sizes["token"]:
        figure = Figure(figsize=(style.WIDTH, 0.6))
        figure.text(0.5, 0.5, "no principal components: the first prompt has fewer than three tokens", ha="center")
        return figure
    ranges, networks = path_ranges(paths.blocks), paths.network.values
    figure = Figure(figsize=(style.WIDTH, 0.35 + 2.35 * len(networks)), layout="constrained")
    panels = figure.subplots(len(networks), len(ranges), squeeze=False)
    for row, network in zip(panels, networks, strict=True):
        one = paths.sel(network=network)
        ways = np.stack([one.component_1.T, one.component_2.T], axis=-1)
        for axes, levels in zip(row, ranges.values(), strict=True):
            for token, way in enumerate(ways[:, list(levels)]):
                last, ink = token == len(ways) - 1, style.dataset_colour(network, 0)
                look = {"color": style.colour("text"), "zorder": 4} if last else {"color": ink, "alpha": 0.55}
                axes.plot(*way.T, linewidth=1.8 if last else 0.8, **look)
                axes.plot(*way[-1], "o", markersize=4 if last else 2.5, markeredgewidth=0, **look)
            for line in (axes.axhline, axes.axvline):
                line(0, color=style.colour("faint"), linewidth=0.5, zorder=0)
            axes.locator_params(nbins=5)
        row[0].set_ylabel(f"{network}\ncomponent 2 ({one.share[1]:.0%})")
        row[len(row) // 2].set_xlabel(f"component 1  ({one.share[0]:.0%} of the variance of last states)")
    for axes, name in zip(panels[0], ranges, strict=True):
        axes.set_title(name)
    return figure


def _draw_profile(axes: Axes, profile: xr.Dataset, dashes: object) -> None:
    """Draw one quantity of every network against depth."""
    for name in profile.network.values:
        one = profile.sel(network=name).dropna("depth")
        look = {"linestyle": dashes, "marker": "o", "markersize": 2.5, "linewidth": 1.4}
        parts.band(axes, one, "depth", style.dataset_colour(name, 0), alpha=0.2, **look)


def _legend_above(figure: Figure, networks: np.ndarray | list[str], lines: list[Line2D]) -> None:
    """Put one legend above all panels: networks, each once, and further lines."""
    look = {"marker": "o", "markersize": 4}
    names = dict.fromkeys(networks)
    handles = [Line2D([], [], color=style.dataset_colour(name, 0), label=name, **look) for name in names] + lines
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
