"""Writes what the front page shows: its answer as a figure that moves, and the verdicts counted."""

from __future__ import annotations

import json
from typing import Any

from claims import PLACES, counted, judge_all
from template import from_template

from companion.figures import generalization as figures
from companion.figures.show import show
from companion.tables import generalization
from coupling_lib import paths

READINGS = {
    "whole blocks": figures.READING,
    "their traceless part": f"shared_{figures.READING}",
    "blocks with shuffled coordinates": f"permuted_{figures.READING}",
}
"""What the second handle of the moving figure chooses from, and the column of the suite for each."""


def answer_part() -> str:
    """Write the moving figure: a picture for each moment, which a script makes one that moves, and its data."""
    suite = generalization.suite()
    picture = show(
        figures.draw_moments,
        figures.take_moments(suite),
        name="landing-moments",
        caption="The same small models at four moments of their training. Each dot is a model: how coupled its blocks "
        "are (0: as random directions, 1: perfectly), and its loss on text that it has not seen.",
        provenance="data/suite.csv · make book",
    )
    data = json.dumps(moments(suite), separators=(",", ":"))
    return from_template("answer.html.jinja", picture=picture.data, data=data)


def moments(suite: Any) -> dict[str, Any]:
    """Return every model's loss at every moment, and by reading its coupling then and their correlation."""
    taken = {name: figures.take_moments(suite, column) for name, column in READINGS.items()}
    first = next(iter(taken.values()))
    models, steps = sorted(first["model"].unique()), sorted(first["step"].unique().tolist())

    def by_step(table: Any, column: str) -> list[list[float]]:
        wide = table.pivot(index="step", columns="model", values=column).loc[steps, models]
        return wide.round(4).to_numpy().tolist()

    readings = {}
    for name, column in READINGS.items():
        signs = taken[name].groupby("step")[["r", "low", "high"]].first().loc[steps]
        readings[name] = {"coupling": by_step(taken[name], column), "r": signs.round(4).to_numpy().tolist()}
    return {"models": models, "steps": steps, "loss": by_step(first, "validation_loss"), "readings": readings}


def verdicts_strip() -> str:
    """Write how many claims got which verdict, in each place, as a strip that leads to them."""
    counts = counted(judge_all(paths.RESULTS))
    return from_template("strip.html.jinja", counted={PLACES[place]: n for place, n in counts.items()})
