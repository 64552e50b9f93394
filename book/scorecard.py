"""Writes the page of the paper's claims: the verdicts counted, then a card for each claim, its numbers folded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import verdicts
from claims import ELSEWHERE, PLACES, Judged, at_place, counted, judge_all, networks, read_margins, unjudged, verdict_at
from named_numbers import Numbers, cells_of, filled, paper_numbers
from template import from_template

from companion.tables import decoders
from coupling_lib import paths
from coupling_lib.errors import ParameterError

RULES = "% The rules"
"""Line of the written text below which the claims end and the margins begin; `claims.md` includes the two apart."""

_OUTCOMES = {
    verdicts.FOR: "✓ for", verdicts.AGAINST: "✗ against", verdicts.NEGLIGIBLE: "≈ negligible",
    verdicts.UNDECIDED: "? undecided",
}  # fmt: skip


def claims_page(results: Path = paths.RESULTS) -> str:
    """Write the counts, the cards and, below `RULES`, the smallest effects that matter."""
    paper, everything = paper_numbers(), judge_all(results)
    return from_template(
        "claims.md.jinja",
        places=PLACES,
        # A script makes buttons of the counts, which choose the cards that are shown.
        counted=counted(everything),
        elsewhere=ELSEWHERE,
        cards=[card(claim, found, _filled_paper(claim, paper), results) for claim, found in everything],
        rules=RULES,
        readings=sum(len(found) for _, found in everything),
        margins=read_margins(),
    )


def card(claim: Mapping[str, Any], found: list[Judged], reported: str, results: Path) -> str:
    """Write one claim: what was found here beside what the paper reports, and the numbers behind it."""
    readings = len(found)
    given = {place: verdict_at(claim, found, place) for place in PLACES}
    open_at = [place for place in PLACES if given[place] == verdicts.INCONCLUSIVE]
    numbers = {name: value for one in found for name, value in one.numbers.items()}
    return from_template(
        "claim.md.jinja",
        claim=claim,
        given=given,
        reported=reported,
        here=[(place, _where(claim, found, place)) for place in PLACES if place != "paper"],
        power=[f"{PLACES[place]} {_power(claim, at_place(claim, found, place) or [])}" for place in open_at],
        settle=filled(claim.get("settle", ""), numbers) or claim.get("settle", ""),
        link=_link(claim, results),
        summary=f"{readings} reading{'s' * (readings != 1)} in numbers" if readings else "How it is measured",
        measured=_measured(claim, found, results),
    )


def _where(claim: Mapping[str, Any], found: list[Judged], place: str) -> str:
    """Name a place by how many networks it is that were measured there."""
    n = networks(at_place(claim, found, place) or [])
    if not n:
        return PLACES[place]
    return (
        f"in {n} public decoder{'s' * (n > 1)}" if place == "decoder" else f"in {n} network{'s' * (n > 1)} trained here"
    )


def _power(claim: Mapping[str, Any], there: list[Judged]) -> str:
    """Write which effects the undecided readings of a place would have found four times out of five, by unit."""
    seen: dict[str, list[float]] = {}
    for one in there:
        if one.decides and one.evidence.outcome == verdicts.UNDECIDED:
            unit = claim["test"][one.reading].get("unit", "the effect's unit")
            seen.setdefault(unit, []).append(min(one.evidence.detectable, one.evidence.limit))
    parts = []
    for unit, several in seen.items():
        ends = dict.fromkeys(f"{value:.2g}" for value in (min(several), max(several)))
        parts.append(f"{' to '.join(ends)} ({unit})")
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
    """Write what a reading says: its mark, the probability before and after correction, what this n could have seen."""
    evidence, within = one.evidence, one.evidence.claims == "within"
    name = {verdicts.NEGLIGIBLE: "small", verdicts.AGAINST: "large" if within else "differs"}.get(
        evidence.outcome, "small" if within else "differs"
    )
    shown = f"p {_probability(evidence.p[name])}, corrected {_probability(evidence.corrected[name])}"
    if name == "small":
        shown = f"smaller than {(evidence.size or evidence).margin:.2g}: {shown}"
    if evidence.outcome == verdicts.UNDECIDED:
        seen = f"{evidence.detectable:.2g}" if evidence.detectable < evidence.limit else "nothing, however large"
        shown += f"; this n could have seen {seen}"
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
