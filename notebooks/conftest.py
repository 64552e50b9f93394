"""How `pytest --nbval notebooks` compares: all that a fresh run shows with what stands in the notebook, but pictures.

nbval compares texts. Numbers that were computed on another processor, or by another count of threads, differ in their
last digits, which no rounding hides for good: some number always lies at a border. Here a number may therefore differ
from the stored one by what was measured (`workflow/spreads.py`, in `spreads.toml` beside this file); whole numbers and
words may not. Pictures depend on fonts and are left out; what they show stands beside each as a line of text.
"""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile

# The text twins are scripts, and measure when they are imported.
collect_ignore_glob = ["*.py"]

SPREADS = Path(__file__).with_name("spreads.toml")
SHOWN, REMEMBERED = "shown", "remembered"
"""What is drawn and printed, and what is remembered for the book: also errors and fits of small differences."""
NOTHING = 1e-6
"""Numbers below this are rounding errors of float32 themselves, whose relative difference says nothing."""

_REMEMBERED = "application/papermill.record/text/plain"
_NUMBER = re.compile(r"((?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|\.\d))")
_WHOLE = re.compile(r"-?\d+")
_FIGURE = re.compile(r'<style>.*?</style><figure class="tbc-figure"[^>]*>.*</figure>', re.DOTALL)

_collect, _compare = IPyNbFile.collect, IPyNbCell.compare_outputs


def collect(file: IPyNbFile) -> Iterator[IPyNbCell]:
    """Refuse a notebook whose spread nobody measured, before it runs."""
    try:
        allowed(file.path)
    except KeyError as unknown:
        raise pytest.Collector.CollectError(unknown.args[0]) from None
    yield from _collect(file)


def compare_outputs(cell: IPyNbCell, fresh: list[NotebookNode], stored: list[NotebookNode], *skipped: object) -> bool:
    """Compare as nbval does, which also says what differs, after pictures and small differences are out of the way."""
    fresh, stored, spread = copy.deepcopy(fresh), copy.deepcopy(stored), allowed(cell.parent.path)
    for output in chain(fresh, stored):
        texts_of(output)
    for new, old in zip(map(_texts, fresh), map(_texts, stored), strict=False):  # nbval counts them
        new.update({k: near(text, old[k], spread[kind(k)]) for k, text in new.items() if isinstance(old.get(k), str)})
    return _compare(cell, fresh, stored, *skipped)


IPyNbFile.collect, IPyNbCell.compare_outputs = collect, compare_outputs


def allowed(notebook: Path, table: Path = SPREADS) -> dict[str, float]:
    """Give how far a notebook's numbers may be from the stored ones, relative to them, by kind."""
    known = tomllib.loads(table.read_text(encoding="utf-8")) if table.is_file() else {}
    if (spread := known.get(notebook.stem)) is None:
        raise KeyError(f"the spread of {notebook.stem} is unknown; measure it: make spreads ONLY={notebook.stem}")
    return {of: rounded_up(spread[of]) for of in (SHOWN, REMEMBERED)}


def rounded_up(spread: float) -> float:
    """Round to a power of ten, upwards: the one step between what was measured and what is allowed."""
    # The processors that were measured are not all there are.
    return 10.0 ** math.ceil(math.log10(spread) - 1e-9) if spread > 0 else 0.0


def texts_of(output: NotebookNode) -> dict[str, str]:
    """Find the texts of an output by their kinds, and take the pictures out of them, in place."""
    texts = _texts(output)
    texts.update({kind: _FIGURE.sub("<figure>", text) for kind, text in texts.items() if isinstance(text, str)})
    return texts


def _texts(output: NotebookNode) -> Any:
    """Find those that were displayed, or what was printed."""
    return output.get("data", output)


def kind(mime: str) -> str:
    """Say which of the two spreads a text falls under."""
    return REMEMBERED if mime == _REMEMBERED else SHOWN


def near(fresh: str, stored: str, relative: float = 0.0) -> str:
    """Write a fresh text with the stored one's numbers, and spaces between them, where the two agree."""
    return "".join(old if apart(new, old) <= relative else new for new, old in _pairs(fresh, stored))


def spread_of(one: str, other: str) -> tuple[float, str]:
    """Give how far two texts are apart at the most, infinitely where words or whole numbers differ, and where."""
    return max(((apart(*pair), f"{pair[0]} and {pair[1]}") for pair in _pairs(one, other)), default=(0.0, ""))


def _pairs(one: str, other: str) -> Iterator[tuple[str, str]]:
    return zip_longest(_NUMBER.split(one), _NUMBER.split(other), fillvalue="")


def apart(new: str, old: str) -> float:
    """Give the relative difference of two numbers beyond their last digit; of other texts, 0 or infinity."""
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
