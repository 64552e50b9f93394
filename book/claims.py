"""What is measured for each of the paper's claims, and which verdict follows.

The claims and what is asked of them stand in `data/claims.toml`, the rule that decides in `verdicts`. The numbers come
from executed notebooks, which keep them as records, and from `data/paper_figures.csv`. Nothing here knows a number.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import verdicts
from named_numbers import Numbers, computed, filled, remembered

from coupling_lib import paths

DECODERS = ("smollm2-135m",)
PLACES = {"decoder": "in a public decoder", "trained": "in models trained here", "paper": "in the paper's models"}
"""Where a claim has a verdict: in the models of `DECODERS`, in all others, and in the values that the paper prints."""
_BOUNDED = ("correlation", "rank correlation", "explained", "cosine")


@dataclass
class Judged:
    """What one reading of a claim says in one model: the evidence, and the text that shows it."""

    model: str
    reading: int
    scope: str
    evidence: verdicts.Evidence
    measured: str
    numbers: Numbers


def judge(claim: Mapping[str, Any], results: Path, model: str, margins: Mapping[str, float]) -> list[Judged]:
    """Take a claim's evidence from one model's measurements: a line per reading whose numbers are there."""
    numbers: dict[str, float | str] = {}
    for notebook in sorted(notebooks_of(claim)):
        numbers |= remembered(results / model / f"{notebook}.ipynb")
    found = []
    for at, test in enumerate(claim["test"]):
        evidence, text = _evidence(test, numbers, margins), filled(test["measured"], numbers)
        if evidence is not None and text is not None:
            found.append(Judged(model, at, test.get("scope", "here"), evidence, text, numbers))
    return found


def _evidence(test: Mapping[str, Any], numbers: Numbers, margins: Mapping[str, float]) -> verdicts.Evidence | None:
    effect = test["effect"]
    parts = [numbers.get(f"{effect}{end}") for end in ("", "-error", "-n")]
    more = {part: float(numbers[f"{effect}-{part}"]) for part in ("skew", "freedom") if f"{effect}-{part}" in numbers}
    null = computed(test.get("than", 0.0), numbers)
    # The null's own error stands beside it, unless another is named.
    lone = re.fullmatch(r"\[([^\]]+)\]", str(test.get("than", "")))
    own = numbers.get(f"{lone[1]}-error", 0.0) if lone else 0.0
    null_error = computed(test.get("than_error", float(own)), numbers)
    margin = computed(test.get("margin", margins.get(test.get("unit", ""), math.nan)), numbers)
    if None in (*parts, null, null_error, margin):
        return None
    value, error, n = parts
    more["limit"] = 1.0 if test.get("unit") in _BOUNDED else math.inf
    more["fisher"] = test.get("unit") == "correlation"
    return verdicts.Evidence(float(value), float(error), int(n), test["claims"], null, null_error, margin, **more)


def unjudged(claim: Mapping[str, Any], results: Path, model: str) -> list[str]:
    """Say in a line each which readings have one value in one model's measurements, so that no error is known."""
    lines = []
    for test in claim["test"]:
        numbers = remembered(results / model / f"{test['effect'].split('-')[0]}.ipynb")
        if numbers.get(f"{test['effect']}-n", 0) == 1:
            lines.append(f"{test['says']}: 1 value has no error, a verdict needs 2 or more; run with `-p prompts 2`")
    return lines


def read_claims() -> list[dict[str, Any]]:
    """Read the claims."""
    return _read()["claim"]


def read_margins() -> dict[str, dict[str, Any]]:
    """Read the smallest effects that matter, by unit: the value, and why it matters."""
    return _read()["margin"]


def _read() -> dict[str, Any]:
    return tomllib.loads((paths.DATA / "claims.toml").read_text(encoding="utf-8"))


def decided(claim: Mapping[str, Any], found: list[Judged], scope: str) -> str:
    """Join readings of a scope, "here" or "paper", to a verdict; readings without numbers do not count."""
    readings, conditions = [], []
    for at, test in enumerate(claim["test"]):
        outcomes = [one.evidence.outcome for one in found if one.reading == at]
        if test.get("scope", "here") == scope and outcomes:
            readings.append(verdicts.across(outcomes))
            conditions.append(test.get("condition"))
    return verdicts.verdict(readings, conditions)


def verdict_at(claim: Mapping[str, Any], found: list[Judged], place: str) -> str | None:
    """Give the verdict of one of `PLACES`; None where the claim is about models of another kind."""
    if place == "paper":
        return decided(claim, found, "paper")
    models = [model for model in claim["models"] if (model in DECODERS) == (place == "decoder")]
    return decided(claim, [one for one in found if one.model in models], "here") if models else None


@functools.cache
def judge_all(results: Path) -> list[tuple[dict[str, Any], list[Judged]]]:
    """Give each claim with its evidence, all probabilities corrected together."""
    margins = {unit: entry["value"] for unit, entry in read_margins().items()}
    found = [
        (claim, [one for model in claim["models"] for one in judge(claim, results, model, margins)])
        for claim in read_claims()
    ]
    verdicts.correct(one.evidence for _, several in found for one in several)
    return found


def notebooks_of(claim: Mapping[str, Any]) -> set[str]:
    """Name the notebooks whose numbers a claim reads; not every one of the names need be a notebook."""
    text = " ".join(str(value) for test in claim["test"] for value in (test["measured"], test.get("than", "")))
    names = re.findall(r"[\[{]([a-z]+)[-.]", text)
    return {claim["notebook"], *names, *(test["effect"].split("-")[0] for test in claim["test"])}
