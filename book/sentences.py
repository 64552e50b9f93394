"""Checks the sentences of the book that compare or judge against the numbers of this build. Run by `make book`.

Beside each page lies a table, `book/sentences/PAGE.toml`; that of a notebook is `notebooks-NAME.toml`, that of a part
which a program writes `made-NAME.toml`:

    model = "smollm2-135m"     # whose numbers a name without a model means

    [[sentence]]
    says = "Four bits move coupling by less than a tenth of it."
    if = "abs([precision-change-nf4]) < 0.1 * [precision-coupling-float32]"

    [free]                     # what compares, but states nothing that was measured here
    definition = ["0 is perfect coupling."]

`says` is the sentence without markup, with `{}` for a number that is put in. `if` is an expression that
`evaluated` of `named_numbers` knows. In it `[nano-neox/depth-coupled]` is a number as a notebook remembers it, and
`column("depth-mismatch", "value", network="trained")` a column of the table under a figure; a few values in parentheses
choose rows that have one of them, `entry_*` several columns, and `book/NAME` the figure of `results/book/NAME.md`.
`data("suite", "step")` is a column of a table of `data/`, `verdict(1, "decoder")` the verdict on a claim,
`margin("coupling")` the smallest effect that matters. The condition of a notebook's sentence has to hold for every
model that the book ran the notebook for. What makes a sentence one of these stands in `comparing`.
"""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from chapters import models_of
from comparing import compares
from known import Known
from named_numbers import evaluated, names_in
from page_text import sentences_in, sentences_made, sentences_of

from coupling_lib import paths
from coupling_lib.errors import CouplingError, ParameterError

TABLES = Path(__file__).resolve().parent / "sentences"
RECORDS = (
    "claims",
    "landing-verdicts",
    "experiments",
    "verdicts-",
    "run-",
    "models",
    "machine",
    "versions",
    "measured",
    "reproduce",
    "explorer",
    "atlas",
)
"""Parts that a program writes by a rule of its own, by how their names begin: records, commands, verdicts, samples."""
REASONS = {
    "definition": "says what a word, a number or a mark in a figure means",
    "mathematics": "holds for any numbers: follows from a formula, or from how a block is built",
    "method": "says how something was measured, computed, chosen or drawn",
    "software": "says what a program does; its tests check it",
    "paper": "tells what the paper, or other work, reports or leaves open",
    "question": "asks, supposes or instructs, or says what would be",
    "limit": "says what is not measured, not known or not meant here",
    "machine": "tells what was recorded on one named machine",
    "number": "gives a number, which is read from the notebook",
    "label": "is a heading, a cell or a pointer that judges nothing",
    "quoted": "is a sample, or someone else's words",
}
"""Why a sentence needs no condition."""


class Page(NamedTuple):
    """A page as its reader sees it."""

    name: str
    sentences: dict[str, tuple[str, ...]]
    """Each sentence with the models for which it is shown; none where the page is written once."""


@dataclass
class Table:
    """What stands beside a page."""

    model: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    free: dict[str, str] = field(default_factory=dict)


def read_table(file: Path) -> Table:
    """Read conditions and reasons beside a page, by sentence; a file that does not exist is empty."""
    if not file.is_file():
        return Table()
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ParameterError(f"{file.name} is no TOML: {error}") from error
    if unknown := content.get("free", {}).keys() - REASONS.keys():
        raise ParameterError(f"{file.name} gives the reasons {sorted(unknown)}; known are {', '.join(REASONS)}")
    bound = [(entry["says"], entry["if"]) for entry in content.get("sentence", [])]
    free = [(said, reason) for reason, several in content.get("free", {}).items() for said in several]
    said = [one for one, _ in (*bound, *free)]
    if twice := {one for one in said if said.count(one) > 1}:
        raise ParameterError(f"{file.name} names a sentence twice: {min(twice)!r}")
    return Table(content.get("model", ""), dict(bound), dict(free))


def pages_of(results: Path, book: Path | None = None) -> list[Page]:
    """Read all pages, parts that a program writes, and notebooks."""
    pages = [
        Page(file.stem, dict.fromkeys(sentences_of(file.read_text(encoding="utf-8")), ()))
        for file in sorted((book or TABLES.parent).glob("*.md"))
    ]
    pages += [
        Page(f"made-{file.stem}", dict.fromkeys(sentences_made(file.read_text(encoding="utf-8")), ()))
        for file in sorted((results / "book").glob("*.md"))
        if not file.stem.startswith(RECORDS)
    ]
    for twin in sorted((paths.ROOT / "notebooks").glob("*.py")):
        shown: dict[str, tuple[str, ...]] = {}
        for model in models_of(twin.stem):
            if (notebook := results / model / f"{twin.stem}.ipynb").is_file():
                for sentence in dict.fromkeys(sentences_in(notebook)):
                    shown[sentence] = (*shown.get(sentence, ()), model)
        if shown:
            pages.append(Page(f"notebooks-{twin.stem}", shown))
    return pages


def unlisted(page: Page, table: Table) -> list[str]:
    """Names the sentences that compare and stand in no table, and those of the table that the page does not hold."""
    listed = table.conditions | table.free
    wrong = [
        f"{page.name}: a sentence compares and has no condition: {sentence!r}\n"
        f"  bind it in book/sentences/{page.name}.toml, or say there why it is free"
        for sentence in page.sentences
        if compares(sentence) and sentence not in listed
    ]
    for said in listed:
        if said not in page.sentences:
            nearest = difflib.get_close_matches(said, page.sentences, n=1)
            wrong.append(
                f"{page.name}: a sentence of the table does not stand on the page: {said!r}"
                + (f"\n  the nearest there is {nearest[0]!r}" if nearest else "")
            )
    return wrong


def untrue(page: Page, table: Table, results: Path) -> list[str]:
    """Names the sentences whose condition does not hold with the numbers of a build, with the values they were of."""
    wrong = []
    for said, condition in table.conditions.items():
        for model in (page.sentences[said] or (table.model,)) if said in page.sentences else ():
            known, values = Known(results, model), {}
            functions = {one: _noted(getattr(known, one), values) for one in ("column", "data", "margin", "verdict")}
            place = f"{page.name}{f' for {model}' if page.name.startswith('notebooks-') else ''}"
            try:
                held = bool(np.all(evaluated(condition, known, functions)))
            except KeyError as error:
                wrong.append(f"{place}: {said!r}\n  cannot be checked: there is no {error.args[0]} in {results}")
                continue
            if not held:
                values = {name: known[name] for name in names_in(condition)} | values
                shown = "".join(f"\n    {name} = {_short(value)}" for name, value in values.items())
                wrong.append(f"{place}: {said!r}\n  is not true in this build: {' '.join(condition.split())}{shown}")
    return wrong


def _noted(function: Any, values: dict[str, Any]) -> Any:
    """Keep what a function gives, to be shown if the condition does not hold."""

    def noting(*args: Any, **where: Any) -> Any:
        value = function(*args, **where)
        given = [*map(repr, args), *(f"{name}={wanted!r}" for name, wanted in where.items())]
        values[f"{function.__name__}({', '.join(given)})"] = value
        return value

    return noting


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        ends = ", ".join(_short(one) for one in value[:6])
        return f"{ends}{f', … ({len(value)} values)' if len(value) > 6 else ''}"
    return f"{value:.5g}" if isinstance(value, float) else " ".join(str(value).split())


def check(pages: Iterable[Page], results: Path, folder: Path = TABLES) -> tuple[list[str], int, int]:
    """Check pages against the tables beside them: what is wrong, and how many sentences are bound and free."""
    wrong, bound, free = [], 0, 0
    for page in pages:
        table = read_table(folder / f"{page.name}.toml")
        wrong += unlisted(page, table) + untrue(page, table, results)
        bound, free = bound + len(table.conditions), free + len(table.free)
    return wrong, bound, free


def main() -> None:
    """Check the book."""
    try:
        wrong, bound, free = check(pages_of(paths.RESULTS), paths.RESULTS)
    except CouplingError as error:
        sys.exit(f"error: {error}")
    if wrong:
        sys.exit("\n".join(["error: sentences of the book and its numbers disagree", *wrong]))
    print(f"   {bound} sentences bound, {free} free")


if __name__ == "__main__":
    main()
