"""Writes what was predicted of each experiment beside what came out, or how far it is."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markdown_table import plain, table
from power import experiments
from verdicts import Evidence

from companion.tables import quality
from coupling_lib.metrics.inference import Effect


def experiments_page() -> str:
    """Write every experiment: its design, and prediction and outcome of each question side by side."""
    return "\n".join(_written(experiment, quality.quality()) for experiment in experiments().values())


def _written(experiment: dict[str, Any], rows: pd.DataFrame) -> str:
    """Write one experiment; until all of its models are measured nothing of it is judged."""
    measured, n = quality.finished(rows), experiment["n"]
    have = measured["model"].nunique()
    judged = outcomes(experiment, measured) if have >= n else {}
    lines = []
    for question in experiment["question"]:
        found = judged.get(question["name"])
        lines.append(
            (
                f"**{plain(question['name'])}**: {plain(question['estimand'])}",
                plain(question["expected"]),
                f"{question['smallest']:.2f}",
                "not judged yet" if found is None else found[0],
                "" if found is None else plain(found[1]),
            )
        )
    head = ("question and estimand", "expected", "smallest r that is seen ", "outcome", "what it says")
    return "\n".join(
        [
            f"## {experiment['title']}\n",
            f"{plain(experiment['design'][0].upper() + experiment['design'][1:])}.\n",
            f"**{have} of {n} models are measured.** The questions are answered {plain(experiment['judged'])}. "
            f"The score: {plain(experiment['score'])}.\n",
            table(head, lines, align="llrll"),
            f"What was seen before: {plain(experiment['seen_before'])} The table is `{experiment['table']}`; "
            f"`{experiment['command']}` makes it anew.\n",
        ]
    )


def outcomes(experiment: dict[str, Any], measured: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Judge every question by every reading, at the level that was written down: what came out, and what it says."""
    asked = {question["name"]: question for question in experiment["question"]}
    found = quality.estimates(measured, experiment["readings"])
    sides, ps = [], []
    for row in found.to_dict("records"):
        question = asked[row["question"]]
        effect = Effect(*(row[name] for name in Effect._fields))
        evidence = Evidence.of(effect, question["claims"], margin=question["margin"], limit=1.0, fisher=True)
        ps.append(evidence.p["differs"])
        sure, above = ps[-1] < question["level"], evidence.difference > 0
        sides.append(("above" if above else "below") if sure else "neither")
    told = found.assign(side=sides, p=ps)
    return {name: _answer(asked[name], part) for name, part in told.groupby("question")}


def _answer(question: dict[str, Any], part: pd.DataFrame) -> tuple[str, str]:
    """Write one question's numbers, and the conclusion that its outcome was to have if all readings agree."""
    cells = [
        f"{'' if row.step < 0 else f'step {row.step}: '}r = {row.value:.2f} ({row.low:.2f} to {row.high:.2f}), "
        f"p = {row.p:.2g}, {row.side}"
        for row in part.itertuples()
    ]
    sides = set(part["side"])
    conclusion = (
        question[f"if_{sides.pop()}"] if len(sides) == 1 else "Readings or steps disagree. " + question["if_neither"]
    )
    return "<br>".join(cells), conclusion
