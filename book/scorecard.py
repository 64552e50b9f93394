"""Writes the page of the paper's claims: the verdicts counted, then a card for each claim, its numbers folded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import verdicts
from claims import PLACES, Judged, judge_all, read_margins, unjudged, verdict_at
from named_numbers import Numbers, cells_of, filled, paper_numbers
from template import from_template

from coupling_lib import paths
from coupling_lib.errors import ParameterError

RULES = "% The rules"
"""Line of the written text below which the claims end and the margins begin; `claims.md` includes the two apart."""

_OUTCOMES = {verdicts.FOR: "✓ for", verdicts.AGAINST: "✗ against", verdicts.UNDECIDED: "? undecided"}


def claims_page(results: Path = paths.RESULTS) -> str:
    """Write the counts, the cards and, below `RULES`, the smallest effects that matter."""
    paper, everything = paper_numbers(), judge_all(results)
    given = [{place: verdict_at(claim, found, place) for place in PLACES} for claim, found in everything]
    cards = [
        card(number, claim, found, verdict, _filled_paper(claim, paper), results)
        for number, ((claim, found), verdict) in enumerate(zip(everything, given, strict=True), start=1)
    ]
    counts = {place: Counter(verdict[place] for verdict in given) for place in PLACES}
    return from_template(
        "claims.md.jinja",
        places=PLACES,
        # A script makes buttons of the counts, which choose the cards that are shown.
        counted={at: {name: n[name] for name in verdicts.VERDICTS if n[name]} for at, n in counts.items()},
        cards=cards,
        rules=RULES,
        hypotheses=sum(len(one.evidence.p) for _, several in everything for one in several),
        margins=read_margins(),
    )


def card(
    number: int,
    claim: Mapping[str, Any],
    found: list[Judged],
    given: Mapping[str, str | None],
    reported: str,
    results: Path,
) -> str:
    """Write one claim: what was found here beside what the paper reports, and the numbers behind it."""
    readings = len(found)
    return from_template(
        "claim.md.jinja",
        number=number,
        claim=claim,
        given=given,
        reported=reported,
        here=[(place, words) for place, words in PLACES.items() if place != "paper"],
        link=_link(claim, results),
        summary=f"{readings} reading{'s' * (readings != 1)} in numbers" if readings else "How it is measured",
        measured=_measured(claim, found, results),
    )


def _measured(claim: Mapping[str, Any], found: list[Judged], results: Path) -> str:
    """Write the evidence: a line per reading under each model's name, with outcome and probabilities."""
    lines = []
    for model in claim["models"]:
        readings = [f"  - {one.measured}: {_outcome(one.evidence)}" for one in found if one.model == model]
        readings += [f"  - {line}" for line in unjudged(claim, results, model)]
        where = "" if model == "suite" else f" -p model {model}"
        command = f"papermill notebooks/{claim['notebook']}.ipynb out.ipynb{where}"
        lines += [f"- `{model}`", *readings] if readings else [f"- `{model}`: not measured here; run `{command}`"]
    needs = filled(claim.get("needs", ""), found[0].numbers if found else {})
    return "\n".join([*lines, "", f"{needs}\n" if needs else ""])


def _outcome(evidence: verdicts.Evidence) -> str:
    """Write what a reading says: its mark, the probability before and after correction, what this n could have seen."""
    name = "small" if evidence.claims == "within" or evidence.corrected["differs"] >= verdicts.LEVEL else "differs"
    name = name if name in evidence.p else "differs"
    if name == "small" and evidence.corrected[name] >= verdicts.LEVEL:
        name = "large" if "large" in evidence.p else "differs"
    shown = f"p {_probability(evidence.p[name])}, corrected {_probability(evidence.corrected[name])}"
    if name == "small":
        shown = f"smaller than {evidence.margin:.2g}: {shown}"
    if evidence.outcome == verdicts.UNDECIDED:
        seen = f"{evidence.detectable:.2g}" if evidence.detectable < evidence.limit else "nothing, however large"
        shown += f"; this n could have seen {seen}"
    return f"**{_OUTCOMES[evidence.outcome]}** ({shown})"


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
    """Give the anchor of a heading, as the book makes it: lower case, blanks as hyphens, punctuation left out."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
