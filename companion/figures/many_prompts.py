"""Coupling over many prompts: by where the words come from, by what a problem asks, and by what is added to it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.figures import parts, style
from companion.figures.labels import coupling_label
from companion.figures.take import VARIANT
from companion.tables import prompt_effects as effects
from companion.tables.texts import PROBLEMS, QUESTIONS
from coupling_lib.metrics.inference import effect_of
from coupling_lib.metrics.nulls import gaussian_miscoupling

_INKS = {"whole": style.TRAINED, "shared part": style.SHARED}
_ADDED = {"step by step": "“step by step”", "control sentence": "control sentence"}


def take_sources(rows: pd.DataFrame) -> pd.DataFrame:
    """Select each set's mean coupling with its interval, and how prompts scatter, whole and of the shared part."""
    return _kept(effects.by_set(rows)[["set", "part", "value", "low", "high", "spread", "n"]], rows)


def take_questions(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Select problems by reasoning steps, and what a sentence behind a question changes, both of the whole."""
    own = effects.couplings(rows, "whole")
    problems = own.loc[own["set"] == PROBLEMS, ["steps", "tokens", "coupling"]]
    asked = own[own["set"] == QUESTIONS].pivot(index="id", columns="version", values="coupling").dropna()
    changes = asked[list(_ADDED)].sub(asked["alone"], axis=0).melt(var_name="added", value_name="change")
    return {"problems": _kept(problems, rows), "added": _kept(changes, rows)}


def _kept(taken: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Keep with what was taken where it comes from."""
    taken = taken.reset_index(drop=True)
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
        axes.axvline(1 - null, **parts.null_look(style.null_label(null)))
        parts.rows_axis(axes, order)
        axes.set_xlabel(coupling_label(VARIANT, effects.K))
    parts.legend_under(figure, row[:1])
    return figure


def draw_questions(taken: dict[str, pd.DataFrame]) -> Figure:
    """Draw coupling on problems by their reasoning steps, and what a sentence behind a question changes."""
    problems, added = taken["problems"], taken["added"]
    figure, (left, right) = parts.panels(["Reasoning steps", "A sentence behind the question"], 3.3, plain=True)
    ink = style.colour(style.TRAINED)
    for steps, of_step in problems.groupby("steps"):
        _column(left, float(steps), of_step["coupling"].to_numpy(), ink)
    parts.block_axis(left, "reasoning steps, as many sentences")
    left.set_ylabel(coupling_label(VARIANT, effects.K))
    for place, name in enumerate(_ADDED):
        values = added.loc[added["added"] == name, "change"].to_numpy()
        _column(right, place, values, style.dataset_colour(name, 1 + place))
    right.axhline(0, color=style.colour("text"), linewidth=0.7)
    right.set_xticks(range(len(_ADDED)), list(_ADDED.values()))
    right.set_xlim(-0.5, len(_ADDED) - 0.2)
    right.set_ylabel("change of coupling")
    return figure


def _column(axes: Axes, place: float, values: np.ndarray, ink: str) -> None:
    """Draw the mean of prompts above a place, its interval, and how the prompts scatter."""
    found, scatter = effect_of(values), values.std(ddof=1)
    axes.vlines(place, found.value - scatter, found.value + scatter, color=ink, linewidth=8, alpha=0.2)
    axes.vlines(place, found.low, found.high, color=ink, linewidth=2.0, alpha=0.6)
    parts.points(axes, [place], [found.value], ink)
