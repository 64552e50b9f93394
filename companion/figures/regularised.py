"""Effects of coupling on a model: runs regularised towards more or less coupling, against twins of the same seed."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.tables import regularised

_ARMS = {
    "encourage0.3": ("strength 0.3", style.TRAINED, "o"),
    "encourage0.03": ("0.03", style.TRAINED, "D"),
    "decouple0.03": ("−0.03", style.UNTRAINED, "v"),
    "shared0.3": ("0.3, traceless part alone", style.SHARED, "s"),
    "sham0.3": ("control of 0.3", style.NULL, "x"),
}
"""Arms of the experiment: label, role that sets the colour, and marker."""


def take_changes(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the change of every run against its twin, and the mean slope over seeds, by the step of its start."""
    moved = regularised.changes(runs)
    slopes = {begin: regularised.slopes(part).mean() for begin, part in moved.groupby("begin")}
    return moved.assign(slope=moved["begin"].map(slopes))


def draw_changes(moved: pd.DataFrame) -> Figure:
    """Draw change of loss against change of coupling, a point per run, for both starting points of the regulariser."""
    begins = sorted(moved["begin"].unique())
    titles = [f"From step {begin}" for begin in begins]
    figure, row = parts.panels(titles, 3.9, y="change of validation loss (nats per token)", sharey=True)
    for axes, begin in zip(row, begins, strict=True):
        here = moved[moved["begin"] == begin]
        for arm, (label, role, marker) in _ARMS.items():
            part, properties = here[here["arm"] == arm], {"marker": marker, "label": label}
            parts.points(axes, part["coupling"], part["validation_loss"], style.colour(role), **properties)
        slope, doses = here["slope"].iloc[0], here.loc[here["arm"].isin(regularised.DOSES), "coupling"]
        ends = [min(0, doses.min()), doses.max()]
        properties = {"color": style.colour("text"), "linewidth": 1, "zorder": 0}
        axes.plot(ends, [slope * end for end in ends], label="mean slope over strengths", **properties)
        axes.axhline(0, color=style.colour("faint"), linewidth=1, zorder=0)
        axes.axvline(0, color=style.colour("faint"), linewidth=1, zorder=0)
        axes.set_xlabel(r"change of coupling $1-\tilde m$")
    parts.legend_under(figure, row, columns=3)
    return figure
