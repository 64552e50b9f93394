"""Checks headings and first screens of the book that compare against the numbers of this build. Run by `make book`.

`book/conditions.toml` holds at most sixty of them:

    [[sentence]]
    page = "precision"
    model = "smollm2-135m"     # whose numbers a name without a model means
    says = "Four bits move coupling by less than a tenth of it"
    if = "abs([precision-change-nf4]) < 0.1 * [precision-coupling-float32]"

`says` is the sentence without markup, with `{}` for a number that is put in. `if` is an expression that `evaluated` of
`named_numbers` knows. In it `[nano-neox/depth-coupled]` is a number as a notebook remembers it,
`column("depth-mismatch", "value", network="trained")` a column of the table under a figure, `data("suite", "step")` one
of a table of `data/`, `verdict("local", "decoder")` the verdict on a claim, and `margin("coupling")` the smallest
effect that matters.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from known import Known
from named_numbers import evaluated, names_in
from page_text import sentences_of

from coupling_lib import paths
from coupling_lib.errors import CouplingError, ParameterError

BOOK = Path(__file__).resolve().parent
MOST = 60


class Condition(NamedTuple):
    """A sentence of a page, and its condition."""

    page: str
    model: str
    sentence: str
    expression: str


def read(file: Path) -> list[Condition]:
    """Read the conditions of the book."""
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("sentence", [])
        found = [Condition(*(entry[key] for key in ("page", "model", "says", "if"))) for entry in entries]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise ParameterError(f"{file.name}: {error}; each [[sentence]] has page, model, says and if") from error
    if len(found) > MOST:
        raise ParameterError(f"{file.name} holds {len(found)} conditions; at most {MOST} headings and first screens do")
    return found


def wrong(condition: Condition, results: Path, book: Path = BOOK) -> str | None:
    """Return the fault of a sentence in the numbers of a build; None if its condition holds."""
    page, model, sentence, expression = condition
    if sentence not in sentences_of((book / f"{page}.md").read_text(encoding="utf-8")):
        return f"{page}: a sentence of conditions.toml does not stand on the page: {sentence!r}"
    known = Known(results, model)
    functions = {name: getattr(known, name) for name in ("column", "data", "margin", "verdict")}
    try:
        if np.all(evaluated(expression, known, functions)):
            return None
    except KeyError as error:
        return f"{page}: {sentence!r}\n  cannot be checked: there is no {error.args[0]} in {results}"
    values = "".join(f"\n    {name} = {known[name]}" for name in names_in(expression))
    return f"{page}: {sentence!r}\n  is not true in this build: {' '.join(expression.split())}{values}"


def main() -> None:
    """Check the book."""
    try:
        conditions = read(BOOK / "conditions.toml")
        found = [error for each in conditions if (error := wrong(each, paths.RESULTS))]
    except CouplingError as error:
        sys.exit(f"error: {error}")
    if found:
        sys.exit("\n".join(["error: headings of the book and its numbers disagree", *found]))
    print(f"   {len(conditions)} headings and first screens hold")


if __name__ == "__main__":
    main()
