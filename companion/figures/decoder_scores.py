"""Coupling of public decoders against their scores in text prediction and question answering."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.figures.labels import coupling_label
from companion.tables import decoder_scores
from companion.tables.decoder_scores import VARIANT, K
from coupling_lib.datasets.parts import SHARED
from coupling_lib.metrics.nulls import gaussian_miscoupling

TESTS = {
    "novels": "bits per byte, old novels",
    "wikitext2": "bits per byte, WikiText-2",
    decoder_scores.QUESTIONS: "answers right, five sets",
}
"""Scores that are drawn, and the titles of their panels."""
_PROPERTIES = {"whole": (style.TRAINED, {}), SHARED: (style.SHARED, {"markerfacecolor": "none"})}


def take_scores(table: pd.DataFrame) -> pd.DataFrame | None:
    """Select the rows of `tables.decoder_scores.beside_coupling` with drawn scores; None without any."""
    return None if table.empty else table[table["test"].isin(TESTS)].reset_index(drop=True)


def draw_scores(table: pd.DataFrame) -> Figure:
    """Draw each score against coupling, a panel a score, a marker a model; a thin line joins both its parts."""
    tests = [test for test in TESTS if (table["test"] == test).any()]
    if len(tests) == 1:  # fits a phone's width
        figure, axes, beside = parts.one_panel(3.6)
        axes.set_title(TESTS[tests[0]], fontweight="normal")
        row = [axes]
    else:
        figure, row = parts.panels([TESTS[test] for test in tests], 3.6, plain=True, sharex=True)
    for axes, test in zip(row, tests, strict=True):
        for at, (model, own) in enumerate(table[table["test"] == test].groupby("model", sort=False)):
            axes.plot(own["coupling"], own["value"], color=style.colour("faint"), linewidth=1, zorder=0)
            for one in own.itertuples():
                role, properties = _PROPERTIES[one.part]
                line = {"color": style.colour(role), "linewidth": 1, "alpha": 0.6}
                axes.plot([one.coupling_low, one.coupling_high], [one.value] * 2, **line)
                axes.plot([one.coupling] * 2, [one.low, one.high], **line)
                name = {"label": style.short_name(model)} if one.part == "whole" else {}
                parts.points(
                    axes, one.coupling, one.value, style.colour(role), **properties, **name, marker=style.marker(at)
                )
        axes.axvline(1 - gaussian_miscoupling(K), **parts.null_style("by chance"))
        axes.set_xlabel(coupling_label(VARIANT, K))
        axes.margins(0.15)
    if len(tests) == 1:
        parts.legend_beside(beside, row)
    else:
        parts.legend_under(figure, row[:1], columns=3)
    return figure
