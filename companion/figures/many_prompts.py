"""Coupling over many prompts: by source of the text, by reasoning steps of a problem, and by an added sentence."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.figures.labels import coupling_label
from companion.figures.take import VARIANT
from companion.tables import prompt_effects as effects
from companion.tables.texts import PROBLEMS, QUESTIONS
from coupling_lib.metrics.nulls import gaussian_miscoupling

_INKS = {"whole": style.TRAINED, "traceless part": style.SHARED}
_MOST = 0.25
"""Upper end of an axis of coupling: the largest mean over pairs of blocks among the public decoders of this book."""
_ADDED = {"step by step": "“step by step”", "control sentence": "control sentence"}


def take_sources(rows: pd.DataFrame) -> pd.DataFrame:
    """Select each set's mean coupling with its interval, and how prompts scatter, whole and of the traceless part."""
    return _kept(effects.by_set(rows)[["set", "part", "value", "low", "high", "spread", "n"]], rows)


def take_questions(rows: pd.DataFrame) -> pd.DataFrame:
    """Select coupling on problems by their reasoning steps, and what a sentence behind a question changes."""
    own = effects.couplings(rows, "whole")
    asked = own[own["set"] == QUESTIONS].pivot(index="id", columns="version", values="coupling").dropna()
    of_steps = own[own["set"] == PROBLEMS].groupby("steps")["coupling"]
    found = [("steps", f"{steps:.0f}", values) for steps, values in of_steps]
    found += [("added", name, asked[name] - asked["alone"]) for name in _ADDED]
    lines = [{"panel": panel, "of": of, **effects.summarised(values)} for panel, of, values in found]
    return _kept(pd.DataFrame(lines), rows)


def _kept(taken: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Attach the records of the source rows to a selection."""
    taken.attrs["origin"] = f"{rows['model'].iloc[0]} · data/many_prompts.csv · python -m companion.tables.many_prompts"
    return taken


def draw_sources(taken: pd.DataFrame) -> Figure:
    """Draw each set's mean, its interval and the scatter of its prompts, sets in the order of their means."""
    order = list(taken[taken["part"] == "whole"].sort_values("value", ascending=False)["set"])
    titles, height = [part.capitalize() for part in _INKS], 0.26 * len(order) + 1.2
    figure, row = parts.panels(titles, height, named=True, sharex=True, sharey=True)
    null, places = gaussian_miscoupling(effects.K), np.arange(len(order))
    for axes, (part, ink) in zip(row, _INKS.items(), strict=True):
        found = taken[taken["part"] == part].set_index("set").loc[order]
        scatter = [found["value"] - found["spread"], found["value"] + found["spread"]]
        axes.hlines(places, *scatter, color=style.colour(ink), linewidth=6, alpha=0.2)
        parts.dots(axes, places, found["value"], [found["low"], found["high"]], style.colour(ink))
        axes.axvline(1 - null, **parts.null_style(style.null_label(null)))
        parts.rows_axis(axes, order)
        axes.set_xlabel(coupling_label(VARIANT, effects.K))
    parts.legend_under(figure, row[:1])
    return figure


def draw_questions(taken: pd.DataFrame) -> Figure:
    """Draw coupling on problems by their reasoning steps, and the change that a sentence after a question makes."""
    titles = {"steps": "Reasoning steps", "added": "A sentence behind the question"}
    figure, row = parts.panels(list(titles.values()), 3.3, plain=True)
    for axes, panel in zip(row, titles, strict=True):
        found = taken[taken["panel"] == panel]
        for place, one in enumerate(found.itertuples()):
            ink = style.colour(style.TRAINED) if panel == "steps" else style.dataset_colour(one.of, 1 + place)
            axes.vlines(place, one.value - one.spread, one.value + one.spread, color=ink, linewidth=8, alpha=0.2)
            axes.vlines(place, one.low, one.high, color=ink, linewidth=2.0, alpha=0.6)
            parts.points(axes, [place], [one.value], ink)
        axes.set_xticks(range(len(found)), [_ADDED.get(of, of) for of in found["of"]])
        axes.set_xlim(-0.5, len(found) - 0.5)
    row[0].set(xlabel="reasoning steps, as many sentences", ylabel=coupling_label(VARIANT, effects.K))
    row[1].axhline(0, color=style.colour("text"), linewidth=0.7)
    row[1].set_ylabel("change of coupling")
    # From chance on: the same length is the same coupling in both panels.
    null = gaussian_miscoupling(effects.K)
    row[0].axhline(1 - null, **parts.null_style(style.null_label(null)))
    row[0].set_ylim(0, _MOST)
    row[1].set_ylim(-_MOST / 4, 3 * _MOST / 4)
    parts.legend_under(figure, row[:1])
    return figure
