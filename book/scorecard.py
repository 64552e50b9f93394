"""Writes the page of the paper's claims: the verdicts counted, then a table with a row a claim, its details folded.

The front page shows the counts alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import verdicts
from chapters import display_name
from claims import (
    DECODERS,
    ELSEWHERE,
    PLACES,
    SUITES,
    Judged,
    at_place,
    counted,
    headline_ids,
    judge_all,
    networks,
    read_margins,
    unjudged,
    verdict_at,
)
from named_numbers import Numbers, cells_of, computed, filled, paper_numbers
from template import from_template

from companion.tables import decoders
from coupling_lib import paths
from coupling_lib.errors import ParameterError

RULES = "% The rules"
"""Line of the written text below which the claims end and the margins begin; `claims.md` includes the two apart."""
SHORT = 3
"""Largest number of readings of a claim whose details are printed open."""

_OUTCOMES = {
    verdicts.FOR: "✓ for", verdicts.AGAINST: "✗ against", verdicts.NEGLIGIBLE: "≈ negligible",
    verdicts.UNDECIDED: "? undecided",
}  # fmt: skip
_KINDS = {
    "decoder": ("public decoder", "public decoders"),
    "trained": ("network trained here", "networks trained here"),
}
_REFUTED = {
    verdicts.EVERY: "one test against it",
    verdicts.TYPICAL: "more than half of the tests against it or negligible, and none for it",
    verdicts.SOME: "all tests against it or negligible",
}


def claims_page(results: Path = paths.RESULTS) -> str:
    """Write the counts, the table and, below `RULES`, the smallest effects that matter."""
    paper, everything = paper_numbers(), judge_all(results)
    first = headline_ids()
    ordered = sorted(everything, key=lambda one: first.index(one[0]["id"]) if one[0]["id"] in first else len(first))
    rows = [row(claim, found, _filled_paper(claim, paper), results) for claim, found in ordered]
    return from_template(
        "claims.md.jinja",
        places=PLACES,
        counted={
            place: {name: n for name, n in given.items() if name not in (ELSEWHERE, verdicts.MISSING)}
            for place, given in counted(everything).items()
        },
        groups={"Headline claims": rows[: len(first)], "Other claims": rows[len(first) :]},
        absent=_absent(everything),
        printed=sum(verdict_at(*one, "paper") != verdicts.MISSING for one in everything),
        rules=RULES,
        readings=sum(len(found) for _, found in everything),
        margins=read_margins(),
    )


def verdicts_strip() -> str:
    """Write how many claims got which verdict, in each place, as a strip that leads to them."""
    counts = counted(judge_all(paths.RESULTS))
    return from_template("strip.html.jinja", counted={PLACES[place]: n for place, n in counts.items()})


def row(claim: Mapping[str, Any], found: list[Judged], reported: str, results: Path) -> str:
    """Write one claim: the paper's value, then ours with its verdict in each place, and the readings."""
    given = {place: verdict_at(claim, found, place) for place in PLACES}
    there = {
        place: [one for one in at_place(claim, found, place) or [] if one.decides]
        for place in PLACES
        if given[place] not in (None, verdicts.MISSING)
    }
    numbers = {name: value for one in found for name, value in one.numbers.items()}
    lines = [(place, given[place], _shown(claim, own), _networks(claim, own, place)) for place, own in there.items()]
    return from_template(
        "claim.md.jinja",
        claim=claim,
        reported=reported,
        lines=lines or [("", verdicts.MISSING, [], "none")],
        short=len(found) <= SHORT,
        summary=_summary(found),
        refuted=_REFUTED[claim["quantifier"]],
        power=[
            f"{PLACES[place]} {_power(claim, own)}"
            for place, own in there.items()
            if given[place] == verdicts.INCONCLUSIVE
        ],
        settle=filled(claim.get("settle", ""), numbers) or claim.get("settle", ""),
        link=_link(claim, results),
        measured=_measured(claim, found, results),
    )


def _shown(claim: Mapping[str, Any], there: list[Judged]) -> list[tuple[str, list[str]]]:
    """Write the effects that the table shows: in words, and a value with its interval for each network."""
    models = {one.model: one.numbers for one in there}
    effects = []
    for shown in claim.get("shown", ()):
        form, values, what = shown.get("form", ".3f"), [], None
        for model, numbers in models.items():
            effect = shown["effect"] if shown["effect"] in numbers else shown.get("or", shown["effect"])
            # Blanks that do not break keep a value and its interval on one line.
            value = filled(
                f"{{{effect}:{form}}}\u00a0[{{{effect}-low:{form}}},\u00a0{{{effect}-high:{form}}}]", numbers
            )
            if value is None:
                continue
            what = what or filled(shown["what"], numbers)
            chance = computed(shown["chance"], numbers) if "chance" in shown else None
            name = f"{display_name(model)}: " if len(models) > 1 else ""
            values.append(name + value + ("" if chance is None else f"; by chance {chance:{form}}"))
        if values and what:
            effects.append((what, values))
    return effects


def _networks(claim: Mapping[str, Any], there: list[Judged], place: str) -> str:
    """Describe the networks of a place by their kind, and by name where they are few."""
    if place == "paper":
        return claim.get("values", "the values that the paper prints")
    models = list(dict.fromkeys(one.model for one in there))
    if any(model in SUITES for model in models):
        return f"{networks(there)} networks trained here"
    one, more = _KINDS[place]
    return f"{len(models)} {more if len(models) > 1 else one}: {', '.join(map(display_name, models))}"


def _summary(found: list[Judged]) -> str:
    """Count the readings of a claim by their verdicts."""
    outcomes = Counter(one.evidence.outcome for one in found if one.decides)
    counts = [f"{outcomes[name]} {name}" for name in _OUTCOMES if outcomes[name]]
    beside = [f"{n} beside"] if (n := sum(not one.decides for one in found)) else []
    return f"Tests: {', '.join([*counts, *beside])}" if found else "How it is measured"


def _absent(everything: list[tuple[dict[str, Any], list[Judged]]]) -> list[tuple[str, int, int]]:
    """List the networks in which claims were not measured: how many of those that are about them."""
    about = Counter(model for claim, _ in everything for model in claim["models"])
    seen = Counter(model for _, found in everything for model in {one.model for one in found if one.decides})
    order = [*DECODERS, *(model for model in about if model not in DECODERS)]
    return [
        (display_name(model), about[model] - seen[model], about[model]) for model in order if about[model] > seen[model]
    ]


def _power(claim: Mapping[str, Any], there: list[Judged]) -> str:
    """Write the effects for which the undecided readings of a place had 80 % power, by unit."""
    seen: dict[str, list[verdicts.Evidence]] = {}
    for one in there:
        if one.evidence.outcome == verdicts.UNDECIDED:
            unit = claim["test"][one.reading].get("unit", "the effect's unit")
            seen.setdefault(unit, []).append(one.evidence)
    parts = []
    for unit, several in seen.items():
        sizes = sorted(one.detectable for one in several if one.detectable < one.limit)
        blind = len(several) - len(sizes)
        ends = dict.fromkeys(f"{value:.2g}" for value in (sizes[:1] + sizes[-1:]))
        parts += [f"{' to '.join(ends)} ({unit})"] * bool(sizes)
        parts += [f"no effect, however large, in {blind} of {len(several)} tests ({unit})"] * bool(blind)
    return "we had 80 % power for " + ", ".join(parts)


def _measured(claim: Mapping[str, Any], found: list[Judged], results: Path) -> str:
    """Write the evidence: a line per reading under each model's name, with outcome and probabilities."""
    lines, command = [], f"papermill notebooks/{claim['notebook']}.ipynb out.ipynb"
    absent = []
    for model in claim["models"]:
        own = sorted((one for one in found if one.model == model), key=lambda one: not one.decides)
        readings = [f"  - {one.measured}: {_outcome(one)}" for one in own]
        readings += [f"  - {line}" for line in unjudged(claim, results, model)]
        lines += [f"- `{model}`", *readings] if readings else []
        # The page says once how the decoders whose weights do not ship are measured.
        absent += [] if readings or model in decoders.MODELS else [model]
    if absent:
        where = "" if absent == ["suite"] else f" -p model {absent[0]}"
        lines.append(f"- {', '.join(f'`{model}`' for model in absent)}: not measured here; run `{command}{where}`")
    apart = dict.fromkeys(test["beside"] for test in claim["test"] if "beside" in test)
    needs = filled(claim.get("needs", ""), found[0].numbers if found else {})
    lines += ["", *(f"What stands beside the claim decides nothing: {why}.\n" for why in apart)]
    return "\n".join([*lines, f"{needs}\n" if needs else ""])


def _outcome(one: Judged) -> str:
    """Write the verdict of a reading: its mark, the probability before and after correction, and power if undecided."""
    evidence, within = one.evidence, one.evidence.claims == "within"
    name = {verdicts.NEGLIGIBLE: "small", verdicts.AGAINST: "large" if within else "differs"}.get(
        evidence.outcome, "small" if within else "differs"
    )
    shown = f"p {_probability(evidence.p[name])}, corrected {_probability(evidence.corrected[name])}"
    if name == "small":
        shown = f"smaller than {(evidence.size or evidence).margin:.2g}: {shown}"
    if evidence.outcome == verdicts.UNDECIDED:
        seen = f"{evidence.detectable:.2g}" if evidence.detectable < evidence.limit else ""
        shown += f"; 80 % power for {seen}" if seen else "; no effect, however large, would have been seen"
    mark = _OUTCOMES[evidence.outcome]
    if not one.decides and evidence.outcome in (verdicts.FOR, verdicts.AGAINST):
        mark = f"beside it, {'above' if evidence.difference > 0 else 'below'} {evidence.null:.2g}"
    return f"**{mark}** ({shown})"


def _probability(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 0.9995 else "1"


def _filled_paper(claim: Mapping[str, Any], numbers: Numbers) -> str:
    text = filled(claim["paper"], numbers)
    if text is None:
        raise ParameterError(f"the claim {claim['claim']!r} names a number that data/paper_figures.csv does not have")
    return text


def _link(claim: Mapping[str, Any], results: Path) -> str:
    """Link the section of the page that measures a claim, of the first model for which it has been run."""
    name = claim["notebook"]
    for model in claim["models"]:
        page = results / model / f"{name}.ipynb"
        if page.is_file():
            headings = re.findall(
                r"^#+ (.+)$", "\n".join(c.source for c in cells_of(page) if c.cell_type == "markdown"), re.M
            )
            anchor = f"#{slug(claim['section'])}" if claim["section"] in headings else ""
            return f"Measured in [{name}, {claim['section']}](../results/{model}/{name}.ipynb{anchor}) (`{model}`)"
    return f"Measured by the notebook *{escape(name)}*, {claim['section']}"


def slug(heading: str) -> str:
    """Return the anchor of a heading, as the book makes it: lower case, blanks as hyphens, punctuation left out."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
