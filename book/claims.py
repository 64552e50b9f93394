"""Writes the table of the paper's claims: what it reports, what was measured here, and which verdict follows.

The claims and the rules that decide them stand in `data/claims.toml`. The numbers come from executed notebooks, which
keep them as records, and from `data/paper_figures.csv`. Nothing here knows a number.
"""

from __future__ import annotations

import ast
import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.measures.generalization import paper_figures

REPRODUCED, NOT, DEPENDS, MISSING = (
    "reproduced",
    "not reproduced",
    "depends on the definition",
    "not measured here",
)
"""The verdicts."""

Numbers = Mapping[str, float | str]

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq,
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}


@dataclass(frozen=True)
class Outcome:
    """What one model's measurements say of a claim.

    Args:
        model: folder of results.
        verdict: one of the verdicts.
        measured: what was measured, in Markdown, a text per reading.
    """

    model: str
    verdict: str
    measured: tuple[str, ...]


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


def decide(rule: str, numbers: Numbers) -> bool | None:
    """Evaluate a rule.

    Args:
        rule: an expression of comparisons, `and`, `or`, arithmetic, min, max and abs over numbers named in brackets.
        numbers: numbers by name.

    Returns:
        whether it holds; None if a number is missing.

    Raises:
        ParameterError: if the rule holds anything else.
    """
    names = re.findall(r"\[([^\]]+)\]", rule)
    if any(name not in numbers for name in names):
        return None
    places = {f"n{at}": float(numbers[name]) for at, name in enumerate(dict.fromkeys(names))}
    for place, name in zip(places, dict.fromkeys(names), strict=True):
        rule = rule.replace(f"[{name}]", f" {place} ")
    return bool(_value(ast.parse(rule.strip(), mode="eval").body, places))


def filled(text: str, numbers: Numbers) -> str | None:
    """Put numbers into a text.

    Args:
        text: a text with names in braces, each with a format behind a colon if wanted.
        numbers: numbers by name.

    Returns:
        the text; None if a number is missing.
    """
    parts = re.split(r"\{([^{}]+)\}", text)
    for at in range(1, len(parts), 2):
        name, _, form = parts[at].partition(":")
        if name not in numbers:
            return None
        value = numbers[name]
        parts[at] = format(value, form) if form else _plain(value)
    return "".join(parts)


def judge(claim: Mapping[str, Any], results: Path, model: str) -> Outcome:
    """Judge a claim by one model's measurements.

    Args:
        claim: an entry of `data/claims.toml`.
        results: folder of all results.
        model: folder in it.

    Returns:
        the outcome; a reading whose numbers are missing counts as not measured.
    """
    numbers: dict[str, float | str] = {}
    for notebook in sorted(_notebooks(claim)):
        numbers |= remembered(results / model / f"{notebook}.ipynb")
    decided = [decide(test["rule"], numbers) for test in claim["test"]]
    known = [value for value in decided if value is not None]
    if not known:
        return Outcome(model, MISSING, ())
    verdict = REPRODUCED if all(known) else DEPENDS if any(known) else NOT
    texts = [filled(test["measured"], numbers) for test in claim["test"]]
    shown = [
        f"{text} ({'holds' if value else 'does not hold'})"
        for text, value in zip(texts, decided, strict=True)
        if text is not None and value is not None
    ]
    return Outcome(model, verdict, tuple(shown))


def read_claims(file: Path | None = None) -> list[dict[str, Any]]:
    """Read the claims.

    Args:
        file: by default `data/claims.toml`.

    Returns:
        its entries.
    """
    return tomllib.loads((file or paths.DATA / "claims.toml").read_text(encoding="utf-8"))["claim"]


def verdict(outcomes: list[Outcome]) -> str:
    """Join the verdicts of several models.

    Args:
        outcomes: one per model.

    Returns:
        the verdict they share, or each with its model's name; a model that was not measured does not enter, unless none
        was.
    """
    known = [outcome for outcome in outcomes if outcome.verdict != MISSING]
    verdicts = list(dict.fromkeys(outcome.verdict for outcome in known))
    if len(verdicts) < 2:
        return verdicts[0] if verdicts else MISSING
    return "; ".join(f"{outcome.verdict} ({outcome.model})" for outcome in known)


def claims_page(results: Path | None = None) -> str:
    """Write the table of claims and, below it, the rules that the verdicts follow.

    Args:
        results: folder of all results; by default `results`.

    Returns:
        Markdown: a count, the table, and the rules.
    """
    results = results or paths.RESULTS
    paper = paper_numbers()
    rows, rules, counts = [], [], dict.fromkeys((REPRODUCED, NOT, DEPENDS, MISSING), 0)
    for number, claim in enumerate(read_claims(), start=1):
        outcomes = [judge(claim, results, model) for model in claim["models"]]
        decision = verdict(outcomes)
        counts[decision if decision in counts else DEPENDS] += 1
        written = _measured(claim, outcomes)
        if claim.get("needs"):
            written += f"<br>*{claim['needs']}*"
        rows.append((f"{number}. {_link(claim, results)}", _paper(claim, paper), written, f"**{decision}**"))
        rules.append(f"{number}. {claim['claim']}: {'; '.join(test['says'] for test in claim['test'])}.")
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    head = ("claim", "the paper reports", "measured here", "verdict")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([
        f"Of {len(rows)} claims: {summary}. A claim on which models differ counts as depending on the definition.\n",
        *lines,
        "\n## How each verdict is reached\n",
        "The claim is reproduced where all of its rules hold, not reproduced where none does:\n",
        *rules,
        "",
    ])  # fmt: skip


def _measured(claim: Mapping[str, Any], outcomes: list[Outcome]) -> str:
    parts = []
    for outcome in outcomes:
        if outcome.verdict != MISSING:
            parts.append("<br>".join([f"`{outcome.model}`", *(f"– {text}" for text in outcome.measured)]))
        else:
            where = "" if outcome.model == "suite" else f" -p model {outcome.model}"
            command = f"papermill notebooks/{claim['notebook']}.ipynb out.ipynb{where}"
            parts.append(f"`{outcome.model}`: not measured here; run `{command}`")
    return "<br>".join(parts)


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


def _notebooks(claim: Mapping[str, Any]) -> set[str]:
    text = " ".join(test["rule"] + test["measured"] for test in claim["test"])
    names = re.findall(r"[\[{]([a-z]+)[-.]", text)
    return {claim["notebook"], *names}


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
    """Evaluate an expression of the few kinds that rules are made of."""
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Name(id=name) if name in places:
            return places[name]
        case ast.BoolOp(op=op, values=values):
            return (all if isinstance(op, ast.And) else any)(_value(value, places) for value in values)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, places))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, places), _value(right, places))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, places) for argument in args))
        case ast.Compare(left=left, ops=ops, comparators=right):
            values = [_value(part, places) for part in (left, *right)]
            pairs = zip(ops, values, values[1:], strict=False)
            return all(_OPERATORS[type(op)](a, b) for op, a, b in pairs)
    raise ParameterError(f"a rule holds {ast.unparse(node)!r}; only comparisons, and, or, arithmetic and min, max, abs")
