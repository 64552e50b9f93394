"""Shared parts of figures: panels in a row, bands, dots, the line of chance, a colour bar, axes of blocks and steps."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from companion.figures import style
from companion.tables.arrays import quartiles


def panels(
    titles: Sequence[str], height: float, square: bool = False, plain: bool = False, named: bool = False, y: str = "",
    **grid: object,
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """Create panels side by side; square: as high as wide, three in a row at most; plain: titles are quantities."""
    columns = min(len(titles), 3) if square else len(titles)
    if square:
        rows = -(-len(titles) // columns)
        height += rows * 0.92 * min(style.WIDTH / columns, 4.5) + 0.4 * (rows - 1)
    figure = Figure(figsize=(style.WIDTH, height), layout="compressed" if square else "constrained")
    if named:  # rows; a phone shows their names beside each panel, which so is narrower
        figure.get_layout_engine().set(wspace=0.24)
    row = in_rows(figure, len(titles), columns, **grid)
    for axes, title in zip(row, titles, strict=True):
        axes.set_title(title_of(title), **({"fontweight": "normal"} if plain else {}))
        axes.grid(not square, axis="y")
    row[0].set_ylabel(y)
    return figure, row


def one_panel(height: float, beside: float = style.WIDTH - style.NARROW) -> tuple[Figure, Axes, FigureBase]:
    """Create one panel with horizontal lines, and the place beside it for its legend, `beside` inches wide."""
    figure = Figure(figsize=(style.NARROW + beside, height), layout="constrained")
    return figure, *narrow(figure, beside)


def narrow(figure: FigureBase, beside: float = style.WIDTH - style.NARROW, **shared: object) -> tuple[Axes, FigureBase]:
    """Create a panel that a phone shows whole; return it and the rest of the column beside it."""
    left, right = figure.subfigures(1, 2, width_ratios=(style.NARROW, beside))
    for place in (left, right):  # whose grounds, which nobody sees, would begin at 0 or -0
        place.patch.set_visible(False)
    axes = left.add_subplot(**shared)
    axes.grid(axis="y")
    return axes, right


def in_rows(figure: FigureBase, count: int, columns: int = 4, **grid: object) -> list[Axes]:
    """Create `count` panels in rows of `columns`."""
    panels = figure.subplots(-(-count // columns), columns, squeeze=False, **grid).ravel()
    for axes in panels[count:]:
        axes.remove()
    return list(panels[:count])


def grid(rows: int, columns: int, height: float, **grid: object) -> tuple[Figure, np.ndarray]:
    """Create rows of panels with horizontal lines, together as wide as the book's column."""
    figure = Figure(figsize=(style.WIDTH, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **grid)
    for axes in panels.flat:
        axes.grid(axis="y")
    return figure, panels


def blank(axes: Axes) -> None:
    """Hide everything in axes but their frame, by which the book finds a panel."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def title_of(name: str) -> str:
    """Format a network as a title: roles begin with a capital letter, names of models stay."""
    return name.capitalize() if name in (style.TRAINED, style.UNTRAINED, style.SHARED) else name


def head(name: str, columns: int) -> str:
    """Format a network as the title of one of `columns` panels in a row, cut to fit."""
    return title_of(style.short_name(name, max(9, 85 // columns - 8)))


def band(axes: Axes, summary: xr.Dataset, along: str, ink: str, shade: float = 0.22, **line: object) -> None:
    """Draw the middle of a summary, and its interval or quartiles as a band where it has them."""
    axes.plot(summary[along], middle(summary), color=ink, **line)
    if np.isfinite(summary.low).any():
        axes.fill_between(summary[along], summary.low, summary.high, color=ink, alpha=shade, linewidth=0)


def middle(summary: xr.Dataset) -> xr.DataArray:
    """Return the mean or the median of a summary."""
    return summary["mean" if "mean" in summary else "median"]


def strip(
    axes: Axes, place: float, values: ArrayLike, ink: str, summary: xr.Dataset | None = None, width: float = 1.0,
    shape: Sequence[float] = (0.16, 0.3, 0.08), label: str = "", **dot: object,
) -> None:  # fmt: skip
    """Draw a dot per prompt, and beside them a bar over a summary's range (quartiles) and a tick at its middle."""
    values, (spread, beside, half) = np.asarray(values), np.asarray(shape) * width
    around = place + np.random.default_rng(0).uniform(-spread, spread, len(values))
    axes.scatter(around, values, color=ink, **({"s": 14, "alpha": 0.65, "linewidths": 0} | dot))
    summary = quartiles(xr.DataArray(values, dims="prompt")) if summary is None else summary
    x, centre = place + beside, middle(summary)
    if np.isfinite(summary.low):
        axes.plot([x, x], [summary.low, summary.high], color=ink, linewidth=4, solid_capstyle="butt", alpha=0.6)
    if np.isfinite(centre):
        axes.plot([x - half, x + half], [centre, centre], color=ink, linewidth=2, label=label)


def chance(axes: Axes, null: float) -> None:
    """Draw the coupling of random bases, 1 minus their mismatch, as a dashed line, on an axis that holds 0."""
    axes.axhline(1 - null, **null_style(style.null_label(null)))
    from_zero(axes)


def from_zero(axes: Axes) -> None:
    """Start an axis at its lowest tick where that is above 0."""
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))


def legend_beside(right: FigureBase, row: Sequence[Axes]) -> Legend:
    """Place the legend beside a panel, an entry a line."""
    return legend_under(right, row, columns=1, loc="center left")


def legend_under(figure: FigureBase, row: Sequence[Axes], columns: int | None = None, **legend: object) -> Legend:
    """Place one legend under a row of panels, each label once, where no line overlaps it."""
    found = [axes.get_legend_handles_labels() for axes in row]
    entries = {label: handle for pair in reversed(found) for handle, label in zip(*pair, strict=True)}
    order = dict.fromkeys(label for _, labels in found for label in labels)
    properties = {"loc": "outside lower center", "ncols": columns or len(order)}
    properties |= {"borderaxespad": 0.2, "columnspacing": 1.4, "handlelength": 1.8}
    return figure.legend([entries[label] for label in order], order, **(properties | legend))


def colour_bar(row: Sequence[Axes], image: ScalarMappable, label: str, **bar: object) -> Colorbar:
    """Place one colour bar under a row of panels."""
    made = row[0].figure.colorbar(image, ax=list(row), location="bottom", **({"shrink": 0.5, "aspect": 50} | bar))
    made.outline.set_visible(False)
    made.set_label(label)
    return made


def pair_axes(row: Sequence[Axes], blocks: Sequence[int], places: Sequence[float] | None = None) -> None:
    """Label the axes of pairs of blocks (rows the Jacobian) and number the blocks, as many as fit."""
    step = -(-len(blocks) // 12)
    at = (np.arange(len(blocks)) if places is None else np.asarray(places))[::step]
    for axes in row:
        axes.set(xticks=at, yticks=at, xticklabels=blocks[::step], yticklabels=blocks[::step])
        axes.set_xlabel("block $l'$  (singular vectors)")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if axes is row[0] or axes.get_subplotspec().is_first_col():
            axes.set_ylabel("block $l$  (Jacobian)")


def block_axis(axes: Axes, label: str = "block $l$") -> None:
    """Label a horizontal axis of blocks and number it with whole numbers."""
    axes.set_xlabel(label)
    axes.xaxis.get_major_locator().set_params(integer=True)


def shades(count: int) -> list[str]:
    """Return colours for an ordered series, such as blocks by depth: from a middle tone to the strongest."""
    return [to_hex(style.ink()(place)) for place in np.linspace(style.middle_tone(), 0.92, count)]


def log_axis(axes: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers, and enough of them where little is covered."""
    if not 0 < axes.dataLim.minposy < np.inf:
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = np.log10(high / low)
    subs = (1,) if decades > 2.5 else (1, 2, 5) if decades > 0.9 else (1, 1.5, 2, 3, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def step_axis(axes: Axes, steps: Sequence[int]) -> np.ndarray:
    """Make the x axis one of training steps, logarithmic, with a place of its own for step 0; return the places."""
    steps = np.asarray(steps)
    places = np.log10(np.maximum(steps, 1))
    positive = places[steps > 0]
    gap = max(0.35, 0.16 * np.ptp(positive))
    places[steps == 0] = positive[0] - gap
    labelled = thinned(len(steps))
    margin = 0.04 * np.ptp(places)
    axes.set_xticks(places[labelled], [short_step(steps[at]) for at in labelled])
    axes.set(xlim=(places[0] - margin, places[-1] + margin), xlabel="training step (log scale)")
    if steps[0] == 0:
        # The axis is interrupted where step 0 is set apart from the logarithms.
        x, half = positive[0] - gap / 2, 0.012 * np.ptp(places)
        drawn = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot([x - half, x + half], [0, 0], color=style.colour("page"), linewidth=3, zorder=5, **drawn)
        for end in (x - half, x + half):
            slant = [end - half / 2, end + half / 2]
            axes.plot(slant, [-0.02, 0.02], color=style.colour("text"), linewidth=0.8, zorder=6, **drawn)
    return places


def short_step(step: int) -> str:
    """Format a step as on an axis: thousands with a k."""
    if step < 1000:
        return str(step)
    return f"{step / 1000:.1f}".removesuffix(".0") + "k" if step < 10_000 else f"{step / 1000:.0f}k"


def thinned(count: int, most: int = 9) -> list[int]:
    """Return the indices of the steps that are labelled, at most `most`."""
    stride = -(-count // most)
    evenly = range(count - 1, -1, -stride)
    return sorted({0, *(at for at in evenly if at >= stride)})


def rows_axis(axes: Axes, names: Sequence[str], places: Sequence[float] | None = None, room: float = 0.6) -> None:
    """Make the y axis one of named rows, read from top to bottom."""
    places = range(len(names)) if places is None else places
    axes.set_yticks(places, names)
    axes.set_ylim(max(places) + room, min(places) - room)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.grid(axis="x")


def dots(axes: Axes, rows: ArrayLike, values: ArrayLike, ends: Sequence[ArrayLike], ink: str, **dot: object) -> None:
    """Draw a dot in each row with its interval, a horizontal line."""
    axes.hlines(rows, *ends, color=ink, linewidth=2.0, alpha=0.6)
    points(axes, values, rows, ink, **dot)


def networks(data: xr.Dataset | xr.DataArray) -> list[tuple[str, str, xr.Dataset | xr.DataArray]]:
    """Return every network in the data: its name, its colour (by role or by position), and its data."""
    names = [str(name) for name in data.network.values]
    return [(name, style.dataset_colour(name, place), data.sel(network=name)) for place, name in enumerate(names)]


def bands(axes: Axes, summaries: xr.Dataset, along: str, **line: object) -> None:
    """Draw the band of every network in its colour, under its name."""
    for name, ink, one in networks(summaries):
        band(axes, one, along, ink, **({"label": name} | line))


def tiles(row: Sequence[Axes], matrices: xr.DataArray, diagonal: bool = False) -> tuple[AxesImage, np.ndarray]:
    """Draw grids of matrices, each grid as one image, on one scale, set by the diagonal if `diagonal`."""
    # Dimensions: the network, whose Jacobian, whose singular vectors, and those of a matrix.
    values = matrices.transpose("network", ..., "row", "column").values
    count, k = values.shape[2:4]
    others = values if diagonal else values[:, ~np.eye(count, dtype=bool)]
    top = float(np.nanmax(others, initial=0.0)) or 1.0
    # Every matrix gets a transparent margin below and to its right; the last one's is cut off.
    pitch = k + max(1, round(k / 10))
    margin = ((0, 0), (0, 0), (0, 0), (0, pitch - k), (0, pitch - k))
    padded = np.pad(values, margin, constant_values=np.nan).swapaxes(2, 3).reshape(len(row), *[count * pitch] * 2)
    for axes, grid in zip(row, padded, strict=True):
        shown = grid[: k - pitch, : k - pitch]
        image = axes.imshow(shown, cmap=style.ink(), vmin=0, vmax=top, interpolation="none")
    return image, np.arange(count) * pitch + (k - 1) / 2


def maps(row: Sequence[Axes], couplings: Sequence[ArrayLike], null: float, label: str, **bar: object) -> None:
    """Draw matrices of coupling on one scale; the colour bar marks its value by chance, 1 - null; grey where NaN."""
    chance = 1 - null
    ends = [chance, *(end for one in couplings for end in (np.nanmin(one), np.nanmax(one)))]
    properties = {"cmap": style.ink(), "vmin": min(ends), "vmax": max(ends), "interpolation": "none"}
    for axes, one in zip(row, couplings, strict=True):
        axes.set_facecolor(style.colour("mask"))
        image = axes.imshow(one, **properties)
    # The mark stands in the room above the bar, which so is as high as one without a mark.
    bar = colour_bar(row, image, label, **({"pad": 0.08} | bar))
    bar.ax.plot([chance, chance], [0, 1.9], color=style.colour("text"), linewidth=1.2, clip_on=False, in_layout=False)
    place = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    bar.ax.annotate("by chance", (chance, 1.7), fontsize=8, in_layout=False, **place)


def points(axes: Axes, x: ArrayLike, y: ArrayLike, ink: str, **dot: object) -> None:
    """Draw dots without a line."""
    axes.plot(x, y, color=ink, **({"linestyle": "none", "marker": "o", "markersize": 4.5} | dot))


def conjugated(axes: Axes, place: float, value: float, half: float, **line: object) -> None:
    """Draw the null by conjugation of one network, a short dotted line at its place."""
    properties = {"color": style.colour("text"), "linewidth": 1.6, "linestyle": (0, (1, 1)), "zorder": 4}
    axes.plot([place - half, place + half], [value] * 2, **(properties | line))


def null_style(label: str = "") -> dict[str, object]:
    """Return the properties of a line that stands for random bases."""
    return {"color": style.colour(style.NULL), "linewidth": 1.2, "dashes": (4, 3), "label": label}


def plain_log(axes: Axes, ticks: Sequence[int], base: int = 10) -> None:
    """Make the x axis logarithmic, with plain numbers where there are values."""
    axes.set_xscale("log", base=base)
    axes.set_xticks(ticks, ticks)
    axes.minorticks_off()
