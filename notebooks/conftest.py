"""How `pytest --nbval notebooks` compares: all that a fresh run shows with what stands in the notebook, but pictures.

nbval compares texts. Numbers that were computed on another processor, or by another count of threads, differ in their
last digits, which no rounding hides for good: some number always lies at a border. Here a number may therefore differ
a little from the stored one; whole numbers and words may not. Pictures depend on fonts and are left out; what they show
stands beside each as a line of text.
"""

from __future__ import annotations

import copy
import re
from itertools import chain, zip_longest

from nbformat import NotebookNode
from nbval.plugin import IPyNbCell

# The text twins are scripts, and measure when they are imported.
collect_ignore_glob = ["*.py"]

NEAR, REMEMBERED_NEAR, NOTHING = 1e-4, 1e-2, 1e-6
"""How far a number may be from the stored one, relative to it, and at any size. With another instruction set, what is
drawn and printed moves by 1e-5 at most; what is remembered are also errors and fits of small differences (6e-3)."""

_REMEMBERED = "application/papermill.record/text/plain"
_NUMBER = re.compile(r"((?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|\.\d))")
_WHOLE = re.compile(r"-?\d+")
_FIGURE = re.compile(r'<style>.*?</style><figure class="tbc-figure"[^>]*>.*</figure>', re.DOTALL)

_compare = IPyNbCell.compare_outputs


def compare_outputs(cell: IPyNbCell, fresh: list[NotebookNode], stored: list[NotebookNode], *skipped: object) -> bool:
    """Compare as nbval does, which also says what differs, after pictures and small differences are out of the way."""
    fresh, stored = copy.deepcopy(fresh), copy.deepcopy(stored)
    for texts in map(_texts, chain(fresh, stored)):
        texts.update({kind: _FIGURE.sub("<figure>", text) for kind, text in texts.items() if isinstance(text, str)})
    for new, old in zip(map(_texts, fresh), map(_texts, stored), strict=False):  # nbval counts them
        new.update({kind: near(text, old[kind], kind) for kind, text in new.items() if isinstance(old.get(kind), str)})
    return _compare(cell, fresh, stored, *skipped)


IPyNbCell.compare_outputs = compare_outputs


def _texts(output: NotebookNode) -> NotebookNode:
    """Find the texts of an output by their kinds: those that were displayed, or what was printed."""
    return output.get("data", output)


def near(fresh: str, stored: str, kind: str = "text/plain") -> str:
    """Write a fresh text with the stored one's numbers, and spaces between them, where the two agree."""
    relative = REMEMBERED_NEAR if kind == _REMEMBERED else NEAR
    pairs = zip_longest(_NUMBER.split(fresh), _NUMBER.split(stored), fillvalue="")
    return "".join(old if _agree(new, old, relative) else new for new, old in pairs)


def _agree(new: str, old: str, relative: float) -> bool:
    if not (_NUMBER.fullmatch(new) and _NUMBER.fullmatch(old)):
        return new.split() == old.split()  # a shorter number moves the columns of a table
    if _WHOLE.fullmatch(new) and _WHOLE.fullmatch(old):
        return new == old
    last = 10.0 ** -max(map(_decimals, (new, old)))
    return abs(float(new) - float(old)) <= max(1.01 * last, relative * abs(float(old)), NOTHING)


def _decimals(number: str) -> int:
    mantissa, _, exponent = number.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)
