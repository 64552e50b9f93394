"""Writes the predictions of each experiment beside their outcomes, or its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
from claims import experiments
from markdown_table import lines_of, plain, table
from verdicts import Evidence

from companion.tables import (
    decoders,
    edits,
    effects,
    later,
    phases,
    photographs,
    prompt_effects,
    quality,
    regularised,
    rivals,
    width,
)
from companion.tables.inference import Effect
from coupling_lib.models import registry


class Kind(NamedTuple):
    """Layout of one experiment's table: its rows, the rows that count, and the estimates for its questions."""

    rows: Callable[[], pd.DataFrame]
    finished: Callable[[pd.DataFrame], pd.DataFrame]
    estimates: Callable[[pd.DataFrame, dict[str, Any]], pd.DataFrame]
    at_once: bool = True
    """Whether to judge only once every model is there."""
    unit: str = "model"
    """Column whose values are mutually independent."""


def _of_quality(rows: pd.DataFrame, experiment: dict[str, Any]) -> pd.DataFrame:
    found = quality.estimates(rows, experiment["readings"])
    words = dict(zip(quality.READINGS.values(), ("coupling", "traceless part", "neighbours"), strict=True))
    steps = ["" if step < 0 else f", step {step}" for step in found["step"]]
    return found.assign(label=found["reading"].map(words) + steps)


def _answers(asked: Callable[[pd.DataFrame], Mapping[Any, Effect]]) -> Callable[..., pd.DataFrame]:
    """Tabulate the answers to an experiment's questions, a line each."""
    return lambda rows, _: effects.tabulated(asked(rows))


def _all(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of which each counts: a model is recorded when it is done."""
    return rows


def _of_prompts(rows: pd.DataFrame, _: dict[str, Any]) -> pd.DataFrame:
    found = prompt_effects.estimates(rows, {name: registry.lookup(name).blocks for name in rows["model"].unique()})
    return found.assign(label=found["model"] + ", " + found["reading"])


_EDITS = Kind(edits.edits, edits.finished, lambda rows, _: edits.estimates(rows), at_once=False)
KINDS = {
    "quality": Kind(quality.quality, quality.finished, _of_quality),
    "width": Kind(width.width, quality.finished, width.estimates),
    "edits": _EDITS,
    "prompts": Kind(prompt_effects.many_prompts, prompt_effects.finished, _of_prompts, at_once=False),
    "cause": Kind(regularised.regularised, regularised.finished, _answers(regularised.answers), unit="seed"),
    "photographs": Kind(photographs.cells, _all, _answers(photographs.grid_answers)),
    "switched": Kind(photographs.pairs, _all, _answers(photographs.pair_answers), unit="seed"),
    "rivals": Kind(rivals.rivals, _all, _answers(rivals.answers)),
    "phases": Kind(phases.phases, phases.finished, _answers(phases.answers)),
    "later": Kind(later.later, _all, _answers(later.answers)),
    "decoders": Kind(decoders.decoders, _all, _answers(decoders.answers), at_once=False),
    "edited": _EDITS,
    # Nobody has sent a card yet.
    "replication": Kind(lambda: pd.DataFrame(columns=["model"]), _all, _answers(lambda rows: {})),
}
"""Every experiment of `data/predictions.toml`."""

_DIGITS = {"coupling": 4, "nats": 4, "nats per coupling": 3, "share": 3}
"""Digits behind the point, by unit; 2 of others."""
_KNOWN_SINCE = {
    ("decoders", "own lens"): (
        "Of Gemma only means over all inner depths are recorded, not halfway, and the Qwen models' lenses are not "
        "measured. The reason above was wrong: in SmolLM2 the own lens [is nearer](lenses.md)."
    )
}
"""What is known of a question besides its registered conclusion, by experiment and question."""


def experiments_page() -> str:
    """Write the progress of all experiments; then of each its design, and prediction and outcome of every question."""
    written = [_written(experiment, name, KINDS[name].rows()) for name, experiment in experiments().items()]
    return "\n".join([*(state for state, _ in written), "\n% Each of them\n", *(text for _, text in written)])


def _written(experiment: dict[str, Any], name: str, rows: pd.DataFrame) -> tuple[str, str]:
    """Write the progress of one experiment, and its parts; nothing incomplete is judged."""
    kind = KINDS[name]
    measured = kind.finished(rows)
    if kind.unit == "model" and "models" in experiment:
        measured = measured[measured["model"].isin(experiment["models"])]
    have, wanted = measured[kind.unit].nunique(), len(experiment.get("models", ())) or experiment["n"]
    judged = outcomes(experiment, name, measured) if have >= (wanted if kind.at_once else 1) else {}
    lines = []
    for question in experiment["question"]:
        cells, conclusion = judged.get(question["name"], (["not judged yet"], ""))
        asked = (
            f"**{plain(question['name'])}**: {plain(question['estimand'])}",
            f"expected: {plain(question['expected'])}",
            f"smallest that is seen: {question['smallest']:.2g} ({question['unit']}), "
            f"or {question['smallest_skewed']:.2g} if values are skewed",
        )
        outcome = [*cells, f"**{plain(conclusion)}**"] if conclusion else cells
        outcome = [*outcome, *filter(None, [_KNOWN_SINCE.get((name, question["name"]))])]
        lines.append((lines_of(asked), lines_of(outcome)))
    head = ("question and estimand", "outcome, and what it says")
    score = f" The score: {plain(experiment['score'])}." if "score" in experiment else ""
    answered = f"{len(judged)} of {len(lines)} questions are answered" if judged else "no question is answered yet"
    state = f"- **{experiment['title']}**: {have} of {wanted} {kind.unit}s are measured, and {answered}."
    return state, "\n".join(
        [
            f"## {experiment['title']}\n",
            f"{plain(experiment['design'][0].upper() + experiment['design'][1:])}.\n",
            f"**{have} of {wanted} {kind.unit}s are measured.** "
            f"The questions are answered {plain(experiment['judged'])}.{score}\n",
            table(head, lines, align="ll"),
            f"What was seen before: {plain(experiment['seen_before'])} The table is `{experiment['table']}`; "
            f"`{experiment['command']}` makes it anew.\n",
        ]
    )


def outcomes(experiment: dict[str, Any], name: str, measured: pd.DataFrame) -> dict[str, tuple[list[str], str]]:
    """Judge every question by every reading, at the registered level: outcome and conclusion."""
    asked = {question["name"]: question for question in experiment["question"]}
    found = KINDS[name].estimates(measured, experiment)
    if found.empty:
        return {}
    found = found[found["question"].isin(list(asked))].reset_index(drop=True)
    sides, ps = [], []
    for row in found.to_dict("records"):
        question = asked[row["question"]]
        effect, related = Effect(*(row[field] for field in Effect._fields)), question["unit"] == "correlation"
        more = {"limit": 1.0, "fisher": True} if related else {}
        # On which side of 0 an effect lies is asked also where it is claimed to lie within a margin.
        evidence = Evidence.of(effect, "other", **more)
        ps.append(evidence.p["differs"])
        sure, above = ps[-1] < question["level"], evidence.difference > 0
        sides.append(("above" if above else "below") if sure else "neither")
    judged = found.assign(side=sides, p=ps)
    return {one: _answer(asked[one], part, KINDS[name].at_once) for one, part in judged.groupby("question")}


def _answer(question: dict[str, Any], part: pd.DataFrame, at_once: bool) -> tuple[list[str], str]:
    """Write one question's numbers, and the registered conclusion from its outcome if all readings agree."""
    n = _DIGITS.get(question["unit"], 2)
    cells = [
        f"{f'{row.label}: ' if row.label else ''}{row.value:z.{n}f} ({row.low:z.{n}f} to {row.high:z.{n}f}), "
        f"p\u00a0=\u00a0{row.p:.2g}, {row.side}"
        for row in part.itertuples()
    ]
    sides = set(part["side"])
    if len(sides) == 1:
        return cells, question[f"if_{sides.pop()}"]
    if not at_once:
        return cells, "Models or readings disagree."
    signs = sides - {"neither"}
    # One sign beside none is not two signs: no registered conclusion follows from these.
    sentence = question["if_neither"] if len(signs) > 1 else f"Some are {signs.pop()}, and none has the other sign."
    return cells, f"Readings or steps disagree. {sentence}"
