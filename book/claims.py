"""Writes the table of the paper's claims: what it reports, what was measured here, and which verdict follows.

The claims and what is asked of them stand in `data/claims.toml`, the rule that decides in `verdicts`. The numbers come
from executed notebooks, which keep them as records, and from `data/paper_figures.csv`. Nothing here knows a number.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import verdicts

from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.measures.generalization import paper_figures

Numbers = Mapping[str, float | str]

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
DECODERS = ("smollm2-135m",)
PLACES = {"decoder": "in a public decoder", "trained": "in models trained here", "paper": "in the paper's models"}
"""Where a claim has a verdict: in the models of `DECODERS`, in all others, and in the values that the paper prints."""
_NONE = "–"
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}


@dataclass
class Judged:
    """What one reading of a claim says in one model: the evidence, and the text that shows it."""

    model: str
    reading: int
    scope: str
    evidence: verdicts.Evidence
    measured: str
    numbers: Numbers


def remembered(notebook: Path) -> dict[str, float | str]:
    """Read the numbers that an executed notebook keeps, and the parameters it ran with.

    Args:
        notebook: an executed notebook; one that does not exist has no numbers.

    Returns:
        numbers by the name under which they were remembered, and parameters as "NOTEBOOK.NAME".
    """
    if not notebook.is_file():
        return {}
    found: dict[str, float | str] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        if {"parameters", "injected-parameters"} & set(cell.metadata.get("tags", [])):
            found |= {f"{notebook.stem}.{name}": value for name, value in _assigned(cell.source).items()}
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            texts = [value for kind, value in output.get("data", {}).items() if kind.endswith("text/plain")]
            if name and texts and "text/html" not in "".join(output["data"]):
                found[name] = _number(texts[0])
    return found


def paper_numbers() -> dict[str, float]:
    """Give the paper's numbers under the names that claims use.

    Returns:
        numbers by "paper.FIGURE.SERIES.QUANTITY"; for a series of several points, the first and the last as
        "....first" and "....last"; for points of figure 6a, "paper.6a.RATE.r_squared".
    """
    found: dict[str, float] = {}
    table = paper_figures()
    for (figure, series, quantity), part in table.groupby(["figure", "series", "y_quantity"]):
        stem = f"paper.{figure}.{series}.{quantity}"
        if len(part) == 1:
            found[stem] = float(part["y"].iloc[0])
        else:
            found |= {f"{stem}.first": float(part["y"].iloc[0]), f"{stem}.last": float(part["y"].iloc[-1])}
            if part["x_quantity"].iloc[0] == "rate":
                found |= {f"paper.{figure}.{x:g}.{quantity}": float(y) for x, y in zip(part.x, part.y, strict=True)}
    return found


def computed(value: float | str, numbers: Numbers) -> float | None:
    """Evaluate a number that a claim names: a number, or arithmetic over numbers.

    Args:
        value: a number, or an expression over numbers named in brackets.
        numbers: numbers by name.

    Returns:
        the value; None if a number is missing.

    Raises:
        ParameterError: if the expression holds anything but arithmetic, min, max and abs.
    """
    if not isinstance(value, str):
        return float(value)
    names = list(dict.fromkeys(re.findall(r"\[([^\]]+)\]", value)))
    if any(name not in numbers for name in names):
        return None
    places = {f"n{at}": float(numbers[name]) for at, name in enumerate(names)}
    for place, name in zip(places, names, strict=True):
        value = value.replace(f"[{name}]", f" {place} ")
    return float(_value(ast.parse(value.strip(), mode="eval").body, places))


def filled(text: str, numbers: Numbers) -> str | None:
    """Put numbers into a text.

    Args:
        text: a text with names in braces, each with a format behind a colon if wanted.
        numbers: numbers by name.

    Returns:
        the text; None if a number is missing.
    """
    # Doubled braces are braces, as in a format string.
    parts = re.split(r"(?<!\{)\{([^{}]+)\}(?!\})", text)
    for at in range(1, len(parts), 2):
        name, _, form = parts[at].partition(":")
        if name not in numbers:
            return None
        value = numbers[name]
        parts[at] = format(value, form) if form else _plain(value)
    return "".join(parts).replace("{{", "{").replace("}}", "}")


def judge(claim: Mapping[str, Any], results: Path, model: str, margins: Mapping[str, float]) -> list[Judged]:
    """Take a claim's evidence from one model's measurements.

    Args:
        claim: an entry of `data/claims.toml`.
        results: folder of all results.
        model: folder in it.
        margins: smallest effect that matters, by unit.

    Returns:
        a line per reading whose numbers are there.
    """
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
    null = computed(test.get("than", 0.0), numbers)
    # The null's own error stands beside it, unless another is named.
    lone = re.fullmatch(r"\[([^\]]+)\]", str(test.get("than", "")))
    own = numbers.get(f"{lone[1]}-error", 0.0) if lone else 0.0
    null_error = computed(test.get("than_error", float(own)), numbers)
    margin = computed(test.get("margin", margins.get(test.get("unit", ""), math.nan)), numbers)
    if None in (*parts, null, null_error, margin):
        return None
    value, error, n = parts
    limit = 1.0 if test.get("unit") in _BOUNDED else math.inf
    return verdicts.Evidence(float(value), float(error), int(n), test["claims"], null, null_error, margin, limit)


def read_claims(file: Path | None = None) -> list[dict[str, Any]]:
    """Read the claims.

    Args:
        file: by default `data/claims.toml`.

    Returns:
        its entries.
    """
    return _read(file)["claim"]


def read_margins(file: Path | None = None) -> dict[str, float]:
    """Read the smallest effects that matter.

    Args:
        file: by default `data/claims.toml`.

    Returns:
        margins by unit.
    """
    return {name: float(entry["value"]) for name, entry in _read(file)["margin"].items()}


def _read(file: Path | None) -> dict[str, Any]:
    return tomllib.loads((file or paths.DATA / "claims.toml").read_text(encoding="utf-8"))


def decided(claim: Mapping[str, Any], found: list[Judged], scope: str) -> str:
    """Join a claim's readings of one scope to a verdict, once their probabilities are corrected.

    Args:
        claim: an entry of `data/claims.toml`.
        found: its evidence, of all models.
        scope: "here", or "paper" for readings of the paper's own values.

    Returns:
        one of the five verdicts; readings without numbers do not count.
    """
    readings = []
    for at, test in enumerate(claim["test"]):
        outcomes = [one.evidence.outcome for one in found if one.reading == at]
        if test.get("scope", "here") == scope and outcomes:
            readings.append(verdicts.across(outcomes))
    return verdicts.verdict(readings)


def judge_all(results: Path) -> list[tuple[dict[str, Any], list[Judged]]]:
    """Take the evidence of all claims and correct its probabilities together.

    Args:
        results: folder of all results.

    Returns:
        each claim with its evidence.
    """
    margins = read_margins()
    found = [
        (claim, [one for model in claim["models"] for one in judge(claim, results, model, margins)])
        for claim in read_claims()
    ]
    verdicts.correct(one.evidence for _, several in found for one in several)
    return found


def claims_page(results: Path | None = None) -> str:
    """Write the table of claims and, below it, the rules that the verdicts follow.

    Args:
        results: folder of all results; by default `results`.

    Returns:
        Markdown: a count, the table, and the rules.
    """
    results = results or paths.RESULTS
    paper = paper_numbers()
    rows, rules = [], []
    counts = {place: Counter() for place in PLACES}
    everything = judge_all(results)
    for number, (claim, found) in enumerate(everything, start=1):
        given = {place: verdict_at(claim, found, place) or _NONE for place in PLACES}
        for place, verdict in given.items():
            counts[place][verdict] += 1
        written = _measured(claim, found)
        if needs := filled(claim.get("needs", ""), found[0].numbers if found else {}):
            written += f"<br>*{needs}*"
        marks = [f"**{name}**" if name not in (verdicts.MISSING, _NONE) else name for name in given.values()]
        rows.append((f"{number}. {_link(claim, results)}", _paper(claim, paper), written, *marks))
        rules.append(f"{number}. {claim['claim']}: {'; '.join(test['says'] for test in claim['test'])}.")
    hypotheses = sum(len(one.evidence.p) for _, several in everything for one in several)
    summary = "\n".join(
        f"- *{PLACES[place]}*: {', '.join(f'{found[name]} {name}' for name in verdicts.VERDICTS if found[name])}"
        for place, found in counts.items()
    )
    head = ("claim", "the paper reports", "measured here", *PLACES.values())
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    units = [f"- {name}: {entry['value']:g}, {entry['why']}" for name, entry in _read(None)["margin"].items()]
    return "\n".join([
        f"The verdicts on {len(rows)} claims, counted. The probabilities of {hypotheses} hypotheses are corrected "
        f"together.\n\n{summary}\n",
        *lines,
        "\n## The smallest effects that matter\n",
        "They were written down before the verdicts were computed:\n",
        *units,
        "\n## What each claim is asked\n",
        *rules,
        "",
    ])  # fmt: skip


def verdict_at(claim: Mapping[str, Any], found: list[Judged], place: str) -> str | None:
    """Give the verdict of one of `PLACES`; None where the claim is about models of another kind."""
    if place == "paper":
        return decided(claim, found, "paper")
    models = [model for model in claim["models"] if (model in DECODERS) == (place == "decoder")]
    return decided(claim, [one for one in found if one.model in models], "here") if models else None


_BOUNDED = ("correlation", "explained", "cosine")
_MARKS = {verdicts.FOR: "✓ for", verdicts.AGAINST: "✗ against", verdicts.UNDECIDED: "? undecided"}


def _measured(claim: Mapping[str, Any], found: list[Judged]) -> str:
    """Write the evidence: a line per reading under each model's name, with outcome and probabilities."""
    parts = []
    for model in claim["models"]:
        lines = [f"– {one.measured}: {_outcome(one.evidence)}" for one in found if one.model == model]
        if lines:
            parts.append("<br>".join([f"`{model}`", *lines]))
        else:
            where = "" if model == "suite" else f" -p model {model}"
            command = f"papermill notebooks/{claim['notebook']}.ipynb out.ipynb{where}"
            parts.append(f"`{model}`: not measured here; run `{command}`")
    return "<br>".join(parts)


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
    return f"**{_MARKS[evidence.outcome]}** ({shown})"


def _probability(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 0.9995 else "1"


def _paper(claim: Mapping[str, Any], numbers: Numbers) -> str:
    text = filled(claim["paper"], numbers)
    if text is None:
        raise ParameterError(f"the claim {claim['claim']!r} names a number that data/paper_figures.csv does not have")
    return text


def _link(claim: Mapping[str, Any], results: Path) -> str:
    """Write the claim, with a link to the section of the page that measures it if that has been run."""
    name = claim["notebook"]
    for model in claim["models"]:
        page = results / model / f"{name}.ipynb"
        if page.is_file():
            cells = nbformat.read(page, as_version=4).cells
            headings = re.findall(r"^#+ (.+)$", "\n".join(c.source for c in cells if c.cell_type == "markdown"), re.M)
            anchor = f"#{slug(claim['section'])}" if claim["section"] in headings else ""
            return f"[{claim['claim']}](../results/{model}/{name}.ipynb{anchor})"
    return claim["claim"]


def slug(heading: str) -> str:
    """Give the anchor of a heading, as the book makes it.

    Args:
        heading: the text of the heading.

    Returns:
        lower case, blanks as hyphens, punctuation left out.
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def notebooks_of(claim: Mapping[str, Any]) -> set[str]:
    """Name the notebooks whose numbers a claim reads; not every one of the names need be a notebook."""
    text = " ".join(str(value) for test in claim["test"] for value in (test["measured"], test.get("than", "")))
    names = re.findall(r"[\[{]([a-z]+)[-.]", text)
    return {claim["notebook"], *names, *(test["effect"].split("-")[0] for test in claim["test"])}


def _assigned(source: str) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(getattr(node, "value", None), ast.Constant):
            found[target.id] = node.value.value
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _plain(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, int | float) else value


def _value(node: ast.expr, places: Mapping[str, float]) -> Any:
    """Evaluate an expression of the few kinds that numbers are made of."""
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Name(id=name) if name in places:
            return places[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, places))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, places), _value(right, places))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, places) for argument in args))
    raise ParameterError(f"a number is {ast.unparse(node)!r}; only arithmetic over numbers, and min, max, abs")
