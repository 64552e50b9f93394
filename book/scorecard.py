"""Writes the page of the paper's claims: the verdicts counted, then a card for each claim, its numbers folded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import verdicts
from claims import PLACES, Judged, judge_all, read_margin_reasons, unjudged, verdict_at
from named_numbers import Numbers, cells_of, filled, paper_numbers

from coupling_lib import paths
from coupling_lib.errors import ParameterError

SYMBOLS = {
    verdicts.REPRODUCED: '<circle class="full" cx="8" cy="8" r="7.5"/><path class="cut" d="M4.5 8.3 7 11l4.7-5.7"/>',
    verdicts.DEPENDS: '<path class="line" d="M8 1 15 8 8 15 1 8z"/><path class="full" d="M8 1v14L1 8z"/>',
    verdicts.ON_CONDITION["training step"]: (
        '<circle class="line" cx="8" cy="8" r="7"/><path class="line" d="M8 4v4.2l3 1.8"/>'
    ),
    verdicts.CONTRADICTED: '<path class="full" d="M1 1h14v14H1z"/><path class="cut" d="m5 5 6 6m0-6-6 6"/>',
    verdicts.INCONCLUSIVE: '<circle class="line" cx="8" cy="8" r="7"/><path class="line" d="M4 9q2-3 4-1t4-1"/>',
    verdicts.MISSING: '<circle class="line" cx="8" cy="8" r="6.8" stroke-dasharray="2.4 2.3"/>',
}
"""The shape of each verdict, so that colour is never alone: SVG in a square of 16."""

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
    hypotheses = sum(len(one.evidence.p) for _, several in everything for one in several)
    margins = [f"- {name}: {entry['value']:g}, {entry['why']}" for name, entry in read_margin_reasons().items()]
    return "\n".join([
        counts_line(given),
        "## The claims\n",
        *cards,
        f"{RULES}\n",
        f"{hypotheses} hypotheses are tried on this page, and their probabilities are corrected together.\n",
        "### The smallest effects that matter\n",
        "They were written down before the verdicts were computed:\n",
        *margins,
        "",
    ])  # fmt: skip


def mark(verdict: str) -> str:
    """Write a verdict as a shape and its word."""
    name = verdict.replace(" ", "-")
    shape = f'<svg class="verdict-shape" viewBox="0 0 16 16" aria-hidden="true"><use href="#mark-{name}"></use></svg>'
    return f'<span class="verdict verdict-{name}">{shape}{verdict}</span>'


def counts_line(given: list[dict[str, str | None]]) -> str:
    """Count the verdicts of each place; a script makes buttons of the counts, which choose the cards that are shown."""
    symbols = "".join(
        f'<symbol id="mark-{name.replace(" ", "-")}" viewBox="0 0 16 16">{shape}</symbol>'
        for name, shape in SYMBOLS.items()
    )
    lines = [f'<svg width="0" height="0" style="position: absolute" aria-hidden="true">{symbols}</svg>']
    lines += [f'<div class="scorecard" data-claims="{len(given)}">']
    for place, words in PLACES.items():
        counted = Counter(verdict[place] for verdict in given)
        lines += [f'<div class="scorecard-line" role="group" aria-label="Verdicts {words}">']
        lines += [f'<p class="scorecard-place">{words[0].upper()}{words[1:]}</p>', "<ul>"]
        lines += [
            f'<li data-place="{place}" data-verdict="{name}"><b>{counted[name]}</b> {mark(name)}</li>'
            for name in verdicts.VERDICTS
            if counted[name]
        ]
        lines += ["</ul>", "</div>"]
    return "\n".join(["```{raw} html", *lines, "</div>", "```\n"])


def card(
    number: int,
    claim: Mapping[str, Any],
    found: list[Judged],
    given: Mapping[str, str | None],
    reported: str,
    results: Path,
) -> str:
    """Write one claim: what was found here beside what the paper reports, and the numbers behind it."""

    def listed(places: list[str]) -> list[str]:
        marks = [(place, given[place], PLACES[place] if place != "paper" else "") for place in places if given[place]]
        items = [f'<li data-place="{place}" data-verdict="{name}">{mark(name)} {of}</li>' for place, name, of in marks]
        return ['<ul class="claim-verdicts">', *items, "</ul>"]

    readings = len(found)
    summary = f"{readings} reading{'s' * (readings != 1)} in numbers" if readings else "How it is measured"
    asked = "; ".join(test["says"] for test in claim["test"])
    return "\n".join([
        f"(claim-{number})=",
        f"### {number}. {claim['claim']}\n",
        '<div class="claim">',
        '<div class="claim-here">',
        '<p class="claim-where">Here</p>',
        *listed([place for place in PLACES if place != "paper"]),
        "</div>",
        '<div class="claim-paper">',
        "<p class=\"claim-where\">In the paper's models</p>\n",
        f"The paper reports: {reported}.\n",
        *listed(["paper"]),
        "</div>\n",
        f"{_link(claim, results)}\n",
        '<details class="claim-numbers">',
        f'<summary>{summary}<span class="claim-of"> of claim {number}</span></summary>\n',
        f"*What is asked:* {asked}.\n",
        _measured(claim, found, results),
        "</details>",
        "</div>\n",
    ])  # fmt: skip


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
