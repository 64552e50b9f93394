"""Edits: correlation of each predictor with the cost of edits, and the cost of leaving blocks out one after another."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.tables import edits
from companion.tables.edits import BEST, COUPLING, INFLUENCE, LIKELY, PAIRS, RANDOM, REMOVE, SHARED, SKIP

_PROPERTIES = {
    COUPLING: {"linewidth": 2.6},
    SHARED: {"dashes": (4, 1.6)},
    INFLUENCE: {},
    "singular values": {"dashes": (1.2, 1.6)},
    "alpha": {"dashes": (6, 1.6, 1.2, 1.6)},
    BEST: {"linewidth": 1.2},
}


def take_predictors(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rank correlation of every predictor with the cost of every edit, with its interval and its null."""
    found = _of_models(table, edits.of_predictors)
    return found[["model", "edit", "predictor", "value", "low", "high", "n", "holm", "null", "permuted", "seen"]]


def take_removal(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rise of the loss by the number of blocks left out, and by the order's source."""
    return _of_models(table.groupby("model").filter(lambda rows: REMOVE in set(rows["edit"])), edits.removal)


def _of_models(table: pd.DataFrame, of: object) -> pd.DataFrame:
    models = list(table["model"].unique())
    found = pd.concat([of(table[table["model"] == name]).assign(model=name) for name in models], ignore_index=True)
    found.attrs["origin"] = f"{', '.join(models)} · data/edits.csv · python -m companion.training.edits"
    return found


def draw_predictors(taken: pd.DataFrame) -> Figure:
    """Draw a panel for each edit: a row for each predictor, a dot for each model, the permuted null behind."""
    shown, models = [SKIP, *PAIRS], list(taken["model"].unique())
    names = [name for name in LIKELY if name in set(taken["predictor"])]
    apart = min(0.36, 0.72 / len(models))
    figure, row = parts.panels([edit.capitalize() for edit in shown], 3.3, named=True, sharex=True, sharey=True)
    for axes, edit in zip(row, shown, strict=True):
        for place, model in enumerate(models):
            found = taken[(taken["edit"] == edit) & (taken["model"] == model)]
            rows = found["predictor"].map(names.index) + apart * (place - (len(models) - 1) / 2)
            ink = style.dataset_colour(model, place)
            axes.barh(rows, 2 * found["null"].fillna(0), apart / 1.2, -found["null"].fillna(0), color=ink, alpha=0.15)
            parts.dots(axes, rows, found["value"], [found["low"], found["high"]], ink, label=model)
        axes.axvline(0, color=style.colour("text"), linewidth=0.7)
        parts.rows_axis(axes, names)
        axes.set(xlim=(-1, 1), xticks=(-1, 0, 1), xlabel="rank $r$")
    parts.legend_under(figure, row[:1])
    return figure


def draw_removal(taken: pd.DataFrame) -> Figure:
    """Draw the rise of the loss against the number of blocks left out, a panel for each model."""
    models = list(taken["model"].unique())
    figure, row = parts.panels(models, 3.6, y="rise of the loss (nats per token)")
    for axes, model in zip(row, models, strict=True):
        own = taken[taken["model"] == model]
        random = own[own["by"] == RANDOM]
        axes.plot(random["removed"], random["loss_rise"], **parts.null_style("random choice"))
        axes.fill_between(random["removed"], random["low"], random["high"], color=style.colour(style.NULL), alpha=0.15)
        for place, (name, properties) in enumerate(_PROPERTIES.items()):
            found = own[own["by"] == name]
            ink = style.colour("text") if name == BEST else style.dataset_colour(name, place)
            axes.plot(found["removed"], found["loss_rise"], color=ink, label=name, **properties)
        parts.block_axis(axes, "blocks left out")
        parts.log_axis(axes)
    parts.legend_under(figure, row[:1], columns=4)
    return figure
