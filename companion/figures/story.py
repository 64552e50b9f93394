"""The story of the front page: a training in which coupling comes and goes, public decoders, and the curve of width.

A moment of the training is a place in its list of steps; between two steps values are interpolated.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.figures import parts, scatter, style
from companion.tables.statistics import width_curve

STILLS = (0, 100, 1000, 10_000)
"""Steps of the training whose stills are printed."""
_TRAINING, PAPER = "nano-neox", "the paper's figure 1a"
"""Names of the first and the last act in the data."""


def take_stills(training: xr.Dataset, decoders: Mapping[str, xr.DataArray], points: pd.DataFrame) -> dict:
    """Return the three acts by name: a training by step, the maps of decoders, and the paper's points."""
    paper = points[["family", "width", "coupling"]].assign(by_width=width_curve(points["width"]))
    return {_TRAINING: training, **decoders, PAPER: paper}


def draw_stills(story: Mapping[str, xr.Dataset | xr.DataArray | pd.DataFrame]) -> Figure:
    """Draw six moments below each other: four of the training, the decoders, and the curve of width."""
    figure = Figure(figsize=(style.WIDTH, 9.6), layout="constrained")
    rows = figure.subfigures(len(STILLS) + 2, 1, height_ratios=[*[1] * len(STILLS), 1.15, 1.15])
    training, top = story[_TRAINING], highest(story)
    for row, step in zip(rows, STILLS, strict=False):
        draw_training(row, training, list(training.step.values).index(step), top)
    draw_decoders(rows[-2], {name: one for name, one in story.items() if name not in (_TRAINING, PAPER)}, top)
    draw_paper(rows[-1], story[PAPER])
    return figure


def highest(story: Mapping[str, xr.Dataset | xr.DataArray | pd.DataFrame]) -> float:
    """Return the largest coupling of any pair of blocks, the end of the colour scale of all maps."""
    maps = (one.coupling if name == _TRAINING else one for name, one in story.items() if name != PAPER)
    return max(float(one.max()) for one in maps)


def draw_training(row: Figure, training: xr.Dataset, moment: float, top: float) -> None:
    """Draw a moment of the training: coupling of all pairs, the matrix of one pair, and the progress."""
    left, middle, right = row.subfigures(1, 3, width_ratios=(1, 1, 1.3))
    now = training.assign_coords(step=np.arange(training.sizes["step"])).interp(step=moment)
    axes = left.subplots()
    _map(axes, now.coupling, top)
    axes.set_xlabel(f"mean coupling {float(now.mean_coupling):.2f}")
    step = training.step.values[moment] if isinstance(moment, int) else None
    axes.set_title(f"step {step:,}" if step is not None else "", fontweight="bold")
    axes = middle.subplots()
    axes.imshow(now.A, cmap=style.ink(), vmin=0, vmax=1, interpolation="none")
    parts.blank(axes)
    axes.set_title("$|A|$ of blocks {} and {}".format(*training.pair), fontweight="normal")
    above, below = right.subplots(2, 1, sharex=True)
    inks = {"mean_coupling": style.colour(style.TRAINED), "loss": style.colour("text")}
    for panel, (quantity, ink) in zip((above, below), inks.items(), strict=True):
        places = parts.step_axis(panel, training.step.values)
        panel.plot(places, training[quantity], color=ink, linewidth=1.3)
        at = np.interp(moment, np.arange(len(places)), places)
        parts.points(panel, [at], [float(now[quantity])], ink, markersize=7, clip_on=False, zorder=5)
        panel.set_xlabel("")
        panel.set_ylabel(quantity.removeprefix("mean_"))
        panel.locator_params(axis="y", nbins=3)
    above.axhline(training.by_chance, **parts.null_style())
    above.set_ylim(bottom=0)
    above.tick_params(labelbottom=False)
    below.set_xlabel("training step (log scale)", fontsize=8)


def draw_decoders(row: Figure, decoders: Mapping[str, xr.DataArray], top: float) -> None:
    """Draw the coupling of all pairs of blocks of each decoder, with its mean over them."""
    for axes, (name, one) in zip(row.subplots(1, len(decoders), squeeze=False)[0], decoders.items(), strict=True):
        _map(axes, one, top)
        axes.set_title(name)
        axes.set_xlabel(f"mean coupling {float(one.mean()):.2f}")


def draw_paper(row: Figure, points: pd.DataFrame) -> None:
    """Draw the paper's models, coupling against width, on the curve of no coupling."""
    axes, beside = parts.narrow(row, 3.2)
    scatter.families(axes, points, "width", "coupling")
    widths = np.arange(points.width.min(), points.width.max() + 1, 10)
    axes.plot(widths, width_curve(widths), zorder=0, **parts.null_style("curve of width"))
    axes.set(xlabel="width of the model", ylabel="the paper's coupling")
    parts.legend_under(beside, [axes], columns=1, loc="center left", fontsize=8)


def _map(axes: Axes, coupling: xr.DataArray, top: float) -> None:
    """Draw the coupling of all pairs of blocks, darker for more; the diagonal is blank."""
    axes.set_facecolor(style.colour("mask"))
    axes.imshow(coupling, cmap=style.ink(), vmin=0, vmax=top, interpolation="none")
    parts.blank(axes)


def shades(count: int = 64) -> list[Sequence[float]]:
    """Return the colours of maps, from zero to the maximum, as red, green and blue up to 255."""
    return np.rint(style.ink()(np.linspace(0, 1, count))[:, :3] * 255).astype(int).tolist()
