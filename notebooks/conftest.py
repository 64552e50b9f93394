"""How `pytest --nbval notebooks` compares: all that a fresh run shows with what stands in the notebook, but pictures.

nbval compares texts. Numbers that were computed on another processor, or by another count of threads, differ in their
last digits, which no rounding hides for good: some number always lies at a border. Here a number may therefore differ
from the stored one by what was measured (`workflow/spreads.py`, in `spreads.json` beside this file); whole numbers and
words may not. Pictures depend on fonts and are left out; what they show stands beside each as a line of text.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile

from companion.figures.figure_reader import FIGURE

# The text twins are scripts, and measure when they are imported.
collect_ignore_glob = ["*.py"]

SPREADS = Path(__file__).with_name("spreads.json")
SHOWN, REMEMBERED = "shown", "remembered"
"""What is drawn and printed, and what is remembered for the book: also errors and fits of small differences."""
ALONE = "alone"
"""Numbers that differ by more than `MOST`, small differences of large numbers: each has a limit of its own."""
MOST = 0.01
NOTHING = 1e-6
"""Numbers below this are rounding errors of float32 themselves, whose relative difference has no meaning."""

_REMEMBERED = "application/papermill.record/text/plain"
# A sum of third powers that nearly cancel: of values equal to seven digits it differs in the fifth decimal from one
# maker's processors to another's, and a probability follows its second.
_DIGITS_OF_SKEWNESS = 3
_NUMBER = re.compile(r"((?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|\.\d))")
_WHOLE = re.compile(r"-?\d+")

_collect, _compare = IPyNbFile.collect, IPyNbCell.compare_outputs


def collect(file: IPyNbFile) -> Iterator[IPyNbCell]:
    """Refuse a notebook whose spread nobody measured, before it runs."""
    try:
        allowed(file.path)
    except KeyError as unknown:
        raise pytest.Collector.CollectError(unknown.args[0]) from None
    yield from _collect(file)


def compare_outputs(cell: IPyNbCell, fresh: list[NotebookNode], stored: list[NotebookNode], *skipped: object) -> bool:
    """Compare as nbval does, which reports what differs, after pictures and small differences are out of the way."""
    fresh, stored, spread = copy.deepcopy(fresh), copy.deepcopy(stored), allowed(cell.parent.path)
    for output in chain(fresh, stored):
        texts_of(output)
    for at, (new, old) in enumerate(zip(map(_texts, fresh), map(_texts, stored), strict=False)):  # nbval counts them
        for mime, text in new.items():
            if isinstance(old.get(mime), str):
                alone = {n: most for (*place, n), most in spread[ALONE].items() if place == [cell.cell_num, at, mime]}
                new[mime] = near(text, old[mime], spread[kind(mime)], alone)
    return _compare(cell, fresh, stored, *skipped)


IPyNbFile.collect, IPyNbCell.compare_outputs = collect, compare_outputs


def allowed(notebook: Path, table: Path = SPREADS) -> dict[str, Any]:
    """Return how far a notebook's numbers may be from the stored ones, relative to them by kind, some by place."""
    known = json.loads(table.read_text(encoding="utf-8")) if table.is_file() else {}
    if (spread := known.get(notebook.stem)) is None:
        raise KeyError(f"the spread of {notebook.stem} is unknown; measure it: make spreads ONLY={notebook.stem}")
    alone = {placed(name): rounded_up(most) for name, most in spread.get(ALONE, {}).items()}
    return {of: rounded_up(spread[of]) for of in (SHOWN, REMEMBERED)} | {ALONE: alone}


def placed(name: str) -> tuple[int, int, str, int]:
    """Read where a number stands: cell, output, kind of text, and which of the text's pieces it is."""
    cell, output, mime, number = name.split(" ")
    return int(cell), int(output), mime, int(number)


def rounded_up(spread: float) -> float:
    """Round to a power of ten, upwards: the one step between what was measured and what is allowed."""
    # The processors that were measured are not all there are.
    return 10.0 ** math.ceil(math.log10(spread) - 1e-9) if spread > 0 else 0.0


def texts_of(output: NotebookNode) -> dict[str, str]:
    """Find the texts of an output by their kinds; pictures are taken out of them and skewness is rounded, in place."""
    texts = _texts(output)
    texts.update({kind: FIGURE.sub("<figure>", text) for kind, text in texts.items() if isinstance(text, str)})
    if output.get("metadata", {}).get("scrapbook", {}).get("name", "").endswith("-skew"):
        texts[_REMEMBERED] = f"{float(texts[_REMEMBERED]):.{_DIGITS_OF_SKEWNESS}f}"
    return texts


def _texts(output: NotebookNode) -> Any:
    """Find those that were displayed, or what was printed."""
    return output.get("data", output)


def kind(mime: str) -> str:
    """Classify a text by the spread it falls under."""
    return REMEMBERED if mime == _REMEMBERED else SHOWN


def near(fresh: str, stored: str, relative: float = 0.0, alone: Mapping[int, float] | None = None) -> str:
    """Write a fresh text with the stored one's numbers, and spaces between them, where the two agree."""
    alone = alone or {}
    return "".join(
        old if apart(new, old) <= relative or (at in alone and difference(new, old) <= alone[at]) else new
        for at, (new, old) in enumerate(pairs(fresh, stored))
    )


def difference(new: str, old: str) -> float:
    """Return the difference of two numbers, infinite of whole ones and of anything else."""
    numbers, whole = ((kind.fullmatch(new) and kind.fullmatch(old)) for kind in (_NUMBER, _WHOLE))
    return abs(float(new) - float(old)) if numbers and not whole else math.inf


def pairs(one: str, other: str) -> Iterator[tuple[str, str]]:
    """Cut two texts into numbers and what lies between them, piece by piece."""
    return zip_longest(_NUMBER.split(one), _NUMBER.split(other), fillvalue="")


def apart(new: str, old: str) -> float:
    """Return the relative difference of two numbers beyond their last digit; of other texts, 0 or infinity."""
    if not (_NUMBER.fullmatch(new) and _NUMBER.fullmatch(old)):
        return 0.0 if new.split() == old.split() else math.inf  # a shorter number moves the columns of a table
    if _WHOLE.fullmatch(new) and _WHOLE.fullmatch(old):
        return 0.0 if new == old else math.inf
    last, difference = 10.0 ** -max(map(_decimals, (new, old))), abs(float(new) - float(old))
    if difference <= max(1.01 * last, NOTHING):
        return 0.0
    return difference / abs(float(old)) if float(old) else math.inf


def _decimals(number: str) -> int:
    mantissa, _, exponent = number.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)
