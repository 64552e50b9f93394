"""Measurements for each of the paper's claims, and the verdicts that follow.

The claims and what is asked of them stand in `data/claims.toml`, the rule that decides in `verdicts`. The numbers come
from executed notebooks, which keep them as records, and from `data/paper_figures.csv`. Nothing here knows a number.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import verdicts
from named_numbers import Numbers, computed, filled, remembered

from companion.tables import decoders
from coupling_lib import paths
from coupling_lib.errors import ParameterError

DECODERS = ("smollm2-135m", *decoders.MODELS)
"""Public decoders; claims.toml calls all of them "decoders"."""
SUITES = ("suite", "nano-vit")
"""Folders of results that hold measurements of many networks: as many as a reading's n."""
KINDS = ("the paper's claim", "our question", "an assumption of the code")
PLACES = {"decoder": "in public decoders", "trained": "in models trained here", "paper": "in the paper's models"}
"""Places of a verdict: the models of `DECODERS`, all others, and the values that the paper prints."""
ELSEWHERE = "about other models"
"""Label of claims that are not about the models of a place, so that counts add up to all claims."""
_BOUNDED = ("correlation", "rank correlation", "explained", "cosine")


@dataclass
class Judged:
    """One reading of a claim in one model: the evidence, and the text that shows it."""

    model: str
    reading: int
    scope: str
    evidence: verdicts.Evidence
    measured: str
    numbers: Numbers
    decides: bool = True
    """Whether the reading is of the claim itself, not of a question beside it."""


def judge(claim: Mapping[str, Any], results: Path, model: str, margins: Mapping[str, float]) -> list[Judged]:
    """Read a claim's evidence from one model's measurements: a line per reading whose numbers are there."""
    numbers: dict[str, float | str] = {}
    for notebook in sorted(notebooks_of(claim)):
        numbers |= remembered(results / model / f"{notebook}.ipynb")
    found = []
    effects = [test["effect"] for test in claim["test"]]
    for at, test in enumerate(claim["test"]):
        if (more := test.get("unless")) in numbers:
            continue
        evidence, text = _evidence(test, numbers, margins), filled(test["measured"], numbers)
        if evidence is not None and text is not None:
            reading = effects.index(more) if more else at
            found.append(
                Judged(model, reading, test.get("scope", "here"), evidence, text, numbers, decides="beside" not in test)
            )
    return found


def _evidence(test: Mapping[str, Any], numbers: Numbers, margins: Mapping[str, float]) -> verdicts.Evidence | None:
    effect = test["effect"]
    parts = [numbers.get(f"{effect}{end}") for end in ("", "-error", "-n")]
    more: dict[str, Any] = {
        part: float(numbers[f"{effect}-{part}"]) for part in ("skew", "freedom") if f"{effect}-{part}" in numbers
    }
    null = computed(test.get("than", 0.0), numbers)
    # The null's own error is stored beside it, unless another is named.
    lone = re.fullmatch(r"\[([^\]]+)\]", str(test.get("than", "")))
    own = numbers.get(f"{lone[1]}-error", 0.0) if lone else 0.0
    null_error = computed(test.get("than_error", float(own)), numbers)
    margin = computed(test.get("margin", margins.get(test.get("unit", ""), math.nan)), numbers)
    if None in (*parts, null, null_error, margin):
        return None
    value, error, n = parts
    more["limit"] = 1.0 if test.get("unit") in _BOUNDED else math.inf
    more["fisher"] = test.get("unit") == "correlation"
    if "size" in test:
        more["size"] = _evidence({"effect": test["size"], "claims": "other", "unit": "coupling"}, numbers, margins)
    return verdicts.Evidence(float(value), float(error), int(n), test["claims"], null, null_error, margin, **more)


def unjudged(claim: Mapping[str, Any], results: Path, model: str) -> list[str]:
    """List the readings with a single value in a model's measurements, whose error is unknown."""
    lines = []
    for test in claim["test"]:
        numbers = remembered(results / model / f"{test['effect'].split('-')[0]}.ipynb")
        if numbers.get(f"{test['effect']}-n", 0) == 1:
            lines.append(f"{test['says']}: 1 value has no error, a verdict needs 2 or more; run with `-p prompts 2`")
    return lines


def read_claims() -> list[dict[str, Any]]:
    """Read the claims; an error names, in a line each, what one of them lacks."""
    found = _read("claims")["claim"]
    for claim in found:
        claim["test"] = [one for test in claim["test"] for one in _each(test)]
        claim["models"] = [one for name in claim["models"] for one in (DECODERS if name == "decoders" else (name,))]
    registered = experiments().items()
    asked = {f"{name}, {asks['name']}": asks["claim"] for name, one in registered for asks in one["question"]}
    if lines := wrong(found, asked):
        raise ParameterError("\n".join(lines))
    return found


def experiments() -> dict[str, dict[str, Any]]:
    """Read the predictions, by experiment."""
    return _read("predictions")["experiment"]


def headline_ids() -> list[str]:
    """Read the claims that lead the table, in order."""
    return _read("claims")["headline"]


def _each(test: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Expand a reading that stands for several: `<each>` in its texts is one of `each`."""
    return [
        {key: value.replace("<each>", word) if isinstance(value, str) else value for key, value in test.items()}
        for word in test.get("each", [""])
    ]


def wrong(claims: list[dict[str, Any]], asked: Mapping[str, str]) -> list[str]:
    """Return the faults of claims, a line each; `asked` names the claim of every registered question."""
    lines, named, questions_of = [], {}, {}
    for claim in claims:
        known = {"id": None, "kind": KINDS, "quantifier": verdicts.QUANTIFIERS, "quote": None, "where": None}
        lines += [
            f"the claim {claim['claim']!r} has no {key}" + (f"; known are {', '.join(words)}" if words else "")
            for key, words in known.items()
            if not claim.get(key) or (words and claim[key] not in words)
        ]
        effects = {test["effect"] for test in claim["test"]}
        lines += [
            f"the claim {claim['claim']!r} has no reading of {more!r}, which `unless` names"
            for more in dict.fromkeys(test["unless"] for test in claim["test"] if "unless" in test)
            if more not in effects
        ]
        if (one := claim.get("id")) in questions_of:
            lines.append(f"two claims have the id {one!r}")
        questions_of[one] = {question for test in claim["test"] for question in test.get("asked", ())}
        named |= dict.fromkeys([claim["claim"], *claim.get("former", ())], one)
    for question, about in asked.items():
        if about and question not in questions_of.get(named.get(about), ()):
            lines.append(f"the registered question {question!r} is in no reading of the claim {about!r}")
    known_questions = {question for several in questions_of.values() for question in several}
    return lines + [f"no question {one!r} is registered" for one in sorted(known_questions - asked.keys())]


def read_margins() -> dict[str, dict[str, Any]]:
    """Read the smallest effects that matter, by unit: the value and its reason."""
    return _read("claims")["margin"]


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((paths.DATA / f"{name}.toml").read_text(encoding="utf-8"))


def decided(claim: Mapping[str, Any], found: list[Judged], scope: str) -> str:
    """Join readings of a scope, "here" or "paper", to a verdict; readings without numbers do not count."""
    outcomes: dict[int, list[str]] = {}
    for one in found:
        if one.decides and one.scope == scope:
            outcomes.setdefault(one.reading, []).append(one.evidence.outcome)
    conditions = [claim["test"][at].get("condition") for at in outcomes]
    return verdicts.verdict([*outcomes.values()], conditions, claim["quantifier"])


def at_place(claim: Mapping[str, Any], found: list[Judged], place: str) -> list[Judged] | None:
    """Select the evidence in one of `PLACES`; None where the claim is about models of another kind."""
    if place == "paper":
        return [one for one in found if one.scope == "paper"]
    models = [model for model in claim["models"] if (model in DECODERS) == (place == "decoder")]
    return [one for one in found if one.model in models and one.scope == "here"] if models else None


def networks(found: list[Judged]) -> int:
    """Count the networks of readings."""
    n: dict[str, int] = {}
    for one in found:
        if one.decides:
            n[one.model] = max(n.get(one.model, 0), one.evidence.n if one.model in SUITES else 1)
    return sum(n.values())


def verdict_at(claim: Mapping[str, Any], found: list[Judged], place: str) -> str | None:
    """Return the verdict of one of `PLACES`; None where the claim is about models of another kind."""
    there = at_place(claim, found, place)
    return None if there is None else decided(claim, there, "paper" if place == "paper" else "here")


@functools.cache
def judge_all(results: Path) -> list[tuple[dict[str, Any], list[Judged]]]:
    """Return each claim with its evidence; probabilities are corrected within each verdict, those beside it apart."""
    margins = {unit: entry["value"] for unit, entry in read_margins().items()}
    found = [
        (claim, [one for model in claim["models"] for one in judge(claim, results, model, margins)])
        for claim in read_claims()
    ]
    for claim, several in found:
        for place, decides in itertools.product(PLACES, (True, False)):
            there = at_place(claim, several, place) or []
            verdicts.correct([one.evidence for one in there if one.decides == decides])
    return found


def notebooks_of(claim: Mapping[str, Any]) -> set[str]:
    """Return the notebooks whose numbers a claim reads; not every one of the names need be a notebook."""
    text = " ".join(str(value) for test in claim["test"] for value in (test["measured"], test.get("than", "")))
    names = re.findall(r"[\[{]([a-z]+)[-.]", text)
    return {claim["notebook"], *names, *(test["effect"].split("-")[0] for test in claim["test"])}


def counted(everything: list[tuple[dict[str, Any], list[Judged]]]) -> dict[str, dict[str, int]]:
    """Count the verdicts of each place, in the order of `VERDICTS`; each place's counts add up to all claims."""
    counts = {place: Counter(verdict_at(*one, place) for one in everything) for place in PLACES}
    order = (*verdicts.VERDICTS, None)
    return {place: {name or ELSEWHERE: n[name] for name in order if n[name]} for place, n in counts.items()}
