"""The paper's models: their sizes against coupling and score, those measured here, and the suite at each K.

The sources are tables of models, one line per point; coupling of the paper's models is digitised unless it says so.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.figures import parts, scatter, style
from companion.figures.generalization import KS
from companion.figures.take import VARIANT

SIZES = {
    "parameters_b": "$10^9$ parameters",
    "blocks": "blocks",
    "width": "width",
    "tokens_t": "$10^{12}$ training tokens",
}
"""Columns of `tables.generalization.figure_1a` that are sizes, with their labels on an axis."""
EACH_K = {"trace_10": "10", "trace_30": "30", "trace_50": "50", "trace": r"0.1\,d"}
"""Columns of `tables.generalization.measured_models` that hold one coupling variant, and its K."""
_MEASURED = {name: rf"$1 -$ released trace, $K = {k}$" for name, k in EACH_K.items()}
_MEASURED |= {"normalized": r"normalised coupling $1-\tilde m$, $K = 10$"}
_SCORE = "mean of six benchmarks (%)"


def take_sizes(points: pd.DataFrame) -> pd.DataFrame:
    """Select the sizes of the models of the paper's figure 1a, beside their coupling and score."""
    return points[["model", "family", *SIZES, "coupling", "score", "how"]]


def take_measured(
    models: pd.DataFrame, families: pd.DataFrame, readings: Sequence[str] = ("trace", "normalized")
) -> pd.DataFrame:
    """Select couplings measured here and digitised, of models with a score; families come from another table."""
    known = models.merge(families[["model", "family"]], on="model", how="left").fillna({"family": "other"})
    return known.loc[known.score.notna(), ["model", "family", "score", "digitised", *readings]].reset_index(drop=True)


def take_each_k(last: pd.DataFrame, variant: str = VARIANT, score: str = "negative_loss") -> pd.DataFrame:
    """Stack a variant's coupling relative to its null at each K, beside a score; a line per model and K."""
    tables = [
        last[["model", "width"]].assign(k=k, coupling=last[f"{variant}_k{k}_relative"], score=last[score]) for k in KS
    ]
    return pd.concat(tables, ignore_index=True)


def draw_sizes(table: pd.DataFrame) -> Figure:
    """Draw score and coupling of the paper's models against tokens, depth, width, parameters (figures 8 and 35)."""
    rows = {"score": _SCORE, "coupling": "coupling, digitised"}
    figure, grid = parts.grid(len(rows), len(SIZES), 4.6, sharey="row", sharex="col")
    for row, (column, label) in zip(grid, rows.items(), strict=True):
        row[0].set_ylabel(label)
        for axes, size in zip(row, SIZES, strict=True):
            known = table.dropna(subset=[size])
            scatter.families(axes, known, size, column)
            r = np.corrcoef(np.log(known[size]), known[column])[0, 1]
            scatter.write(axes, f"$r = {r:.2f}$, n = {len(known)}", fontsize=8)
            if size in ("parameters_b", "tokens_t"):
                axes.set_xscale("log")
            axes.margins(y=0.2)
    for axes, label in zip(grid[-1], SIZES.values(), strict=True):
        axes.set_xlabel(label)
    parts.legend_under(figure, grid[0], fontsize=8)
    return figure


def draw_measured(table: pd.DataFrame) -> Figure:
    """Draw the score of models against coupling as measured here; faint: the paper's values (figures 1a and 36)."""
    # Panels without measurements are left out, unless they show the paper's values.
    known = {"trace", *table.columns[table.notna().any()]}.intersection(table)
    shown = {column: label for column, label in _MEASURED.items() if column in known}
    if len(shown) == 1:
        figure, axes, beside = parts.one_panel(3.4, beside=1.2)
        axes.set_ylabel(_SCORE)
        row = [axes]
    else:
        figure, row = parts.panels([""] * len(shown), 3.9, sharey=True, y=_SCORE)
    for axes, (column, label) in zip(row, shown.items(), strict=True):
        if column == "trace":
            faint = {"markerfacecolor": "none", "alpha": 0.6, "label": "digitised"}
            parts.points(axes, table.digitised, table.score, style.colour(style.NULL), **faint)
        _draw_measured(axes, table.dropna(subset=[column]), column)
        axes.set_xlabel(label if len(shown) < 3 else label.replace(", ", ",\n"))
        axes.margins(0.12)
    if len(shown) == 1:
        parts.legend_beside(beside, row)
    elif any(axes.get_legend_handles_labels()[0] for axes in row):
        parts.legend_under(figure, row, columns=5)
    return figure


def draw_each_k(table: pd.DataFrame) -> Figure:
    """Draw score against coupling of the suite's models, a panel for each number of vectors (figure 36)."""
    figure, row = parts.panels(list(KS.values()), 3.1, plain=True, sharey=True, y="minus validation loss")
    widths = sorted(table.width.unique())
    for axes, k in zip(row, KS, strict=True):
        shown = table[table.k == k]
        for width, ink in zip(widths, parts.shades(len(widths)), strict=True):
            part = shown[shown.width == width]
            parts.points(axes, part.coupling, part.score, ink, label=f"width {width}")
        r = scatter.line(axes, shown.coupling, shown.score)
        scatter.write(axes, f"$r = {r:.2f}$")
        axes.set_xlabel("coupling relative to chance")
        axes.locator_params(axis="x", nbins=5)
        axes.margins(y=0.15)
    parts.legend_under(figure, row[:1])
    return figure


def _draw_measured(axes: Axes, known: pd.DataFrame, column: str) -> None:
    """Draw the models of which a coupling was measured, each with its name; a line where there are enough."""
    if known.empty:
        place = {"transform": axes.transAxes, "ha": "right", "va": "bottom", "fontsize": 8.5}
        axes.text(0.97, 0.04, "no model with a score\nis measured here", **place)
        return
    scatter.families(axes, known, column, "score")
    for model in known.itertuples():
        place = (getattr(model, column), model.score)
        axes.annotate(model.model, place, (0, 6), textcoords="offset points", ha="center", fontsize=7)
    if len(known) > 2:
        r = scatter.line(axes, known[column], known.score)
        scatter.write(axes, f"$R^2 = {r**2:.2f}$, n = {len(known)}")
