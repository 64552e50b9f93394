"""Coupling against a model's quality: the paper's figure, the suite of this project, the leaderboard.

The sources are tables of models, so that `take_...` returns tables, one row per point. The last column of a table of
the suite is its variant of coupling. Numbers for the book are in `generalization_numbers`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, scatter, style
from companion.tables import correlations
from companion.tables.generalization import SCORES
from companion.tables.regression import predicted
from companion.tables.statistics import beyond_width, residuals, width_curve

REST = ["ARC", "HellaSwag", "MMLU", "TruthfulQA", "Winogrande"]
TASKS = (*REST, "GSM8K")
COUPLING = "coupling relative to chance"
READING = "normalized_miscoupling_k10_relative"
"""The suite's default column of coupling."""
_ARCHITECTURES = {"neox": ("GPT-NeoX", "o", "nano-neox"), "llama": ("Llama", "s", "nano-llama")}
"""By architecture: label, marker, and the family whose colour it has."""
KS = {"5": "$K = 5$", "10": "$K = 10$", "tenth": "$K = 0.1\\,d$"}
"""Values of K at which the suite is measured, with their labels."""
LABELS = {
    "The paper's figure 1a": ("coupling, digitised", "mean of six benchmarks (%)"),
    "The suite": (COUPLING, "minus validation loss"),
}
"""Sets of points to which shapes are fitted, with their axis labels."""


def take_paper(points: pd.DataFrame) -> pd.DataFrame:
    """Select the digitised points, the curve of width, and the residuals from it."""
    curve = width_curve(points.width)
    return points[["model", "family", "width", "score", "coupling", "how"]].assign(
        width_curve=curve,
        coupling_cleared=residuals(points.coupling, curve),
        score_cleared=residuals(points.score, curve),
        beyond_width=beyond_width(points.coupling, points.width),
    )


def take_suite(suite: pd.DataFrame, coupling: str = READING) -> pd.DataFrame:
    """Select every checkpoint's model, training, scores, and one variant of coupling."""
    columns = ["model", "architecture", "width", "blocks", "parameters", "step", "tokens", "final"]
    return suite[[*columns, "validation_loss", *SCORES.values(), coupling]]


def take_sign(signs: pd.DataFrame, suite: pd.DataFrame, coupling: str = READING) -> pd.DataFrame:
    """Select the correlation at each step, and the coupling and loss of all checkpoints."""
    points = suite[["model", "step", "tokens", "validation_loss", coupling]]
    return pd.concat([signs.assign(panel="left"), points.assign(panel="right")], ignore_index=True)


def take_variants(last: pd.DataFrame, score: str = "negative_loss") -> pd.DataFrame:
    """Correlate every variant at every K with a score, as measured and relative to its null."""
    return correlations.variant_table(last, score)


def take_rivals(last: pd.DataFrame, coupling: str = READING) -> pd.DataFrame:
    """Tabulate the share of each score that coupling and its rivals explain."""
    tables = {label: correlations.rival_table(last, column, coupling) for label, column in SCORES.items()}
    return pd.concat(tables, names=["score"]).reset_index("score").reset_index(drop=True)


def take_shapes(points: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> pd.DataFrame:
    """Stack points of coupling and score under their names."""
    tables = (pd.DataFrame({"points": name, "coupling": list(x), "score": list(y)}) for name, (x, y) in points.items())
    return pd.concat(tables, ignore_index=True)


def take_leaderboard(board: pd.DataFrame) -> pd.DataFrame:
    """Select all scores and the mean of those that are not GSM8K, where all of them are known."""
    return board.assign(rest=board[REST].mean(axis=1, skipna=False))


def draw_paper(table: pd.DataFrame) -> Figure:
    """Draw the paper's figure 1a from its digitised values, beside the curve of width alone, and beyond width."""
    shown = {
        "As plotted": ("coupling", "score", "coupling $c$ of figure 1a"),
        "Width alone": ("width_curve", "score", r"$1 - 1/\sqrt{\lfloor 0.1\,d\rfloor}$"),
        "Beyond width": ("coupling_cleared", "score_cleared", "$c$, cleared of the curve"),
    }
    figure, row = parts.panels(list(shown), 4.1, y="mean of six benchmarks (%)")
    row[1].sharey(row[0])
    for axes, (title, (x, y, label)) in zip(row, shown.items(), strict=True):
        scatter.families(axes, table, x, y)
        r = scatter.line(axes, table[x], table[y])
        axes.set_xlabel(label)
        scatter.write(axes, f"$r = {r:.2f}$" if title == "Beyond width" else f"$R^2 = {r**2:.2f}$")
        axes.margins(y=0.12)
    row[2].locator_params(axis="x", nbins=4)
    row[2].set_ylabel("the same, cleared of the curve")
    parts.legend_under(figure, row, fontsize=8)
    return figure


def draw_suite(table: pd.DataFrame, marked: str = "") -> Figure:
    """Draw scores of the suite's models against coupling; earlier checkpoints faint, joined along training."""
    figure, row = parts.panels([""] * len(SCORES), 3.6)
    coupling, widths, last = table.columns[-1], sorted(table.width.unique()), table[table.final]
    inks = dict(zip(widths, parts.shades(len(widths)), strict=True))
    for axes, (name, column) in zip(row, SCORES.items(), strict=True):
        for _, part in table.sort_values("step").groupby("model"):
            ink, marker = inks[part.width.iloc[0]], _ARCHITECTURES[part.architecture.iloc[0]][1]
            axes.plot(part[coupling], part[column], color=ink, linewidth=0.6, alpha=0.35)
            early, late, faint = part[~part.final], part[part.final], {"markerfacecolor": "none", "alpha": 0.5}
            parts.points(axes, early[coupling], early[column], ink, marker=marker, markersize=2.6, **faint)
            parts.points(axes, late[coupling], late[column], ink, marker=marker, markersize=5)
        r = scatter.line(axes, last[coupling], last[column])
        scatter.write(axes, f"last checkpoints: $r = {r:.2f}$", (0.98, 0.03), ha="right", va="bottom")
        axes.set(xlabel=COUPLING, ylabel=name)
        for place in last.loc[last.model == marked, [coupling, column]].to_numpy():
            axes.annotate(marked, place, (6, 5), textcoords="offset points", fontsize=8.5, fontweight="bold")
    for width in widths:
        parts.points(row[0], [], [], inks[width], markersize=6, label=f"width {width}")
    for name, marker, _ in _ARCHITECTURES.values():
        parts.points(row[0], [], [], style.colour("text"), marker=marker, markersize=6, label=name)
    parts.legend_under(figure, row)
    return figure


def draw_sign(table: pd.DataFrame) -> Figure:
    """Draw the correlation at each step, and coupling against the loss over all checkpoints, with two fits."""
    figure, (left, right) = parts.panels(["The same models at each step", "All checkpoints"], 3.5)
    signs, points = (table[table.panel == side].drop(columns="panel") for side in ("left", "right"))
    ink, loss, coupling = style.colour(style.TRAINED), points.validation_loss, points[points.columns[-1]]
    left.axhline(0, color=style.colour("mask"), linewidth=1)
    left.vlines(signs.step, signs.low, signs.high, color=ink, linewidth=1.6)
    left.plot(signs.step, signs.r, marker="o", color=ink, linewidth=1)
    named = signs.iloc[:: 1 if len(signs) < 6 else 3]  # labels close together would overlap
    for at in named.itertuples():
        left.annotate(f"${at.r:+.2f}$", (at.step, at.r), (6, 4), textcoords="offset points", fontsize=8.5)
    parts.plain_log(left, named.step)
    left.set(xlim=(signs.step.min() / 1.5, signs.step.max() * 3), ylim=(-1.05, 1.15))
    left.set(xlabel="training step", ylabel="$r$ of coupling and minus loss")
    moments = pd.cut(points.step, [-1, 0, 100, np.inf], labels=["untrained", "to step 100", "later"])
    for name, ink in zip(moments.cat.categories, parts.shades(3), strict=True):
        parts.points(right, loss[moments == name], coupling[moments == name], ink, markersize=3.5, label=name)
    for degree, name, dashes in ((1, "line", (1, 2)), (2, "parabola", (5, 2))):
        scatter.line(right, loss, coupling, degree, linewidth=1.2, dashes=dashes, label=name, zorder=2)
    right.invert_xaxis()
    label = COUPLING if coupling.name == READING else "coupling"
    right.set(xlabel="validation loss (better to the right)", ylabel=label)
    parts.legend_under(figure, [right])
    return figure


def draw_variants(table: pd.DataFrame) -> Figure:
    """Draw the correlation of every variant with the score, at every K, as measured and relative to its null."""
    names, titles = table["variant"].unique(), ["As measured", "Relative to chance"]
    figure, row = parts.panels(titles, 0.25 * len(names) + 1.25, named=True, sharex=True, sharey=True)
    for axes, column in zip(row, ("r", "r_relative"), strict=True):
        axes.axvline(0, color=style.colour("mask"), linewidth=1)
        for offset, (k, label), ink in zip((-0.2, 0.0, 0.2), KS.items(), parts.shades(len(KS)), strict=True):
            rows = table[table.k == k].set_index("variant").reindex(names)
            y, sure = np.arange(len(names)) + offset, (rows.p_holm < 0.05).to_numpy() | (column != "r")
            parts.points(axes, rows[column][sure], y[sure], ink, label=label)
            parts.points(axes, rows[column][~sure], y[~sure], ink, markerfacecolor="none")
        axes.set(xlabel="correlation $r$ of coupling and score", xlim=(-1.05, 1.05))
        parts.rows_axis(axes, names)
    hollow = {"markerfacecolor": "none", "label": "left: $p \\geq 0.05$ after correction"}
    parts.points(row[0], [], [], style.colour("text"), **hollow)
    parts.legend_under(figure, row)
    return figure


def draw_rivals(table: pd.DataFrame) -> Figure:
    """Draw the share of the score that coupling and its rivals explain, alone and given all the others."""
    names, scores = table.predictor.unique(), table.score.unique()
    figure, (left, right) = parts.panels(["", ""], 0.36 * len(names) + 1.1, named=True, sharey=True)
    for position, score in enumerate(scores):
        ink, own = style.dataset_colour(score, position), table[table.score == score]
        rows = own.set_index("predictor").reindex(names)
        y = np.arange(len(names)) + 0.24 * (position - (len(scores) - 1) / 2)
        parts.dots(left, y, rows.r_squared, (rows.low, rows.high), ink, markersize=6, label=score)
        parts.points(right, rows.partial, y, ink, markersize=6)
    left.set(xlim=(-0.02, 1.02), xlabel="$R^2$ alone, with 95 % interval")
    right.set(xlim=(-1.05, 1.05), xlabel="partial correlation given all others")
    right.locator_params(axis="x", nbins=5)
    right.axvline(0, color=style.colour("mask"), linewidth=1)
    for axes in (left, right):
        parts.rows_axis(axes, names)
    parts.legend_under(figure, [left])
    return figure


def draw_sizes(table: pd.DataFrame) -> Figure:
    """Draw coupling and score against parameters, depth, width and training tokens."""
    columns = {"parameters": "parameters", "blocks": "blocks", "width": "width", "tokens": "training tokens"}
    rows = {"negative_loss": "minus validation loss", table.columns[-1]: "relative coupling"}
    figure, grid = parts.grid(len(rows), len(columns), 4.3, sharey="row", sharex="col")
    for row, (column, label) in zip(grid, rows.items(), strict=True):
        row[0].set_ylabel(label)
        for axes, x in zip(row, columns, strict=True):
            # Tokens vary along training; sizes do not, so that one point per model suffices.
            shown = table if x == "tokens" else table[table.final]
            for architecture, (name, marker, family) in _ARCHITECTURES.items():
                part = shown[shown.architecture == architecture]
                properties = {"marker": marker, "markersize": 4, "alpha": 0.75, "label": name}
                parts.points(axes, part[x], part[column], style.family_style(family)[0], **properties)
            if x in ("parameters", "tokens"):
                axes.set_xscale("log")
            else:
                axes.set_xticks(sorted(table[x].unique()))
            scatter.write(axes, f"$r = {np.corrcoef(np.log(shown[x]), shown[column])[0, 1]:.2f}$")
            axes.margins(y=0.2)
    for axes, name in zip(grid[-1], columns.values(), strict=True):
        axes.set_xlabel(name)
    parts.legend_under(figure, grid[0][:1])
    return figure


def draw_shapes(table: pd.DataFrame, labels: Mapping[str, tuple[str, str]] = LABELS) -> Figure:
    """Draw points with the straight line and the exponential fitted to them."""
    figure, row = parts.panels(list(labels), 3.3)
    for axes, (name, (x_label, y_label)) in zip(row, labels.items(), strict=True):
        x, y = (table.loc[table.points == name, column].to_numpy(dtype=float) for column in ("coupling", "score"))
        parts.points(axes, x, y, style.colour("text"), markersize=4, alpha=0.7)
        line = np.linspace(x.min(), x.max(), 100)
        for position, (fit, properties) in enumerate({"linear": {}, "exponential": {"dashes": (5, 2)}}.items()):
            axes.plot(
                line, predicted(x, y, line, fit)[0], color=style.dataset_colour(fit, position), label=fit, **properties
            )
        axes.set(xlabel=x_label, ylabel=y_label)
    parts.legend_under(figure, row)
    return figure


def draw_leaderboard(board: pd.DataFrame, marked: str = "") -> Figure:
    """Draw the six tasks and their mean against size, and GSM8K against the mean of the other five."""
    figure, panels = parts.grid(2, 4, 5.2)
    grid = panels.ravel()
    for axes, task in zip(grid, (*TASKS, "average"), strict=False):
        scatter.families(axes, board.dropna(subset=[task, "parameters_b"]), "parameters_b", task)
        ring = board.loc[board.model == marked, ["parameters_b", task]].T.to_numpy()
        axes.plot(*ring, "o", markersize=11, markerfacecolor="none", color=style.colour("text"))
        axes.set_xscale("log")
        axes.set_title(task if task != "average" else "mean of the six", fontsize=9, pad=4)
        axes.set_xlabel("10$^9$ parameters", fontsize=8)
    axes, known = grid[-1], board.dropna(subset=["GSM8K", "rest"])
    scatter.families(axes, known, "rest", "GSM8K")
    r = scatter.line(axes, known.rest, known.GSM8K)
    scatter.write(axes, f"$R^2 = {r**2:.2f}$")
    axes.set_title("GSM8K and the rest", fontsize=9, pad=4)
    axes.set_xlabel("mean of the other five", fontsize=8)
    for axes in grid:
        axes.tick_params(labelsize=7.5)
    parts.legend_under(figure, grid, fontsize=8)
    return figure
