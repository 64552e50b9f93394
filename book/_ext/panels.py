"""Finds the panels of a picture, so that a narrow screen shows them below each other at a size that can be read.

A picture is as wide as the book's column. On a phone it would shrink until its words are five pixels high. A script
cuts it into windows instead (figures.js); this file says where to cut, from the groups that matplotlib writes into SVG.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

_GROUP = re.compile(r'^  <g id="(axes|legend|text)_\d+">$(.*?)^  </g>$', re.DOTALL | re.MULTILINE)
_FRAME = re.compile(
    r'<g id="patch_\d+">\s*<path d="M ([\d.-]+) ([\d.-]+) *\s*L ([\d.-]+) [\d.-]+ *\s*L [\d.-]+ ([\d.-]+)'
)
_TEXT = re.compile(
    r'<!-- (.*?) -->\s*<g style="[^"]*" transform="translate\(([\d.-]+) ([\d.-]+)\)( rotate\(-90\))? scale\(([\d.]+)',
    re.DOTALL,
)
_LETTERS = re.compile(r"scale\(([\d.]+) -")
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
THIN = 14.0  # points: what is narrower is a colour bar


class Box(NamedTuple):
    """A rectangle in the picture's units, y downwards."""

    left: float
    top: float
    right: float
    bottom: float


def smallest(svg: str) -> float:
    """Gives the size of the smallest text of a picture.

    Args:
        svg: the picture.

    Returns:
        points; indices of a formula are part of its text.
    """
    return min((100 * float(size) for size in _LETTERS.findall(svg)), default=8.0)


def windows(svg: str) -> list[list[Box]]:
    """Cuts a picture into its panels and what stands under them.

    Args:
        svg: the picture.

    Returns:
        pieces in reading order, each of one window or, where a panel shares the axis of the first in its row, of that
        axis and the panel; none if there is one panel only, or if a cut would run through words.
    """
    width, height = map(float, _SIZE.search(svg).groups())
    panels, loose = [], []
    for kind, text in _GROUP.findall(svg):
        frame = _FRAME.search(text) if kind == "axes" else None
        box = None
        if frame:
            left, bottom, right, top = map(float, frame.groups())
            box = Box(min(left, right), min(top, bottom), max(left, right), max(top, bottom))
        words = [_extent(word) for word in _TEXT.finditer(text)]
        if kind == "axes" and box is None:
            return []
        if box and min(box.right - box.left, box.bottom - box.top) > THIN:
            same = next((panel for panel in panels if panel[0] == box), None)
            same[1].extend(words) if same else panels.append((box, words))
        else:
            loose.append(_around([*words, *([box] if box else [])]))
    rows = _rows(panels)
    if len(panels) < 2 or max(map(len, rows)) < 2:
        return []
    pieces, top = [], 0.0
    for row, below in zip(rows, [*rows[1:], None], strict=True):
        foot = max(word.bottom for box, words in row for word in [box, *words])
        if below:
            head = min(word.top for box, words in below for word in [box, *words])
            foot = (foot + head) / 2
        cuts = _cuts(row, width)
        if cuts is None or (below and foot < max(box.bottom for box, _ in row)):
            return []
        foot = min(foot + 3 * (below is None), height)
        first = row[0][0]
        for (box, words), (left, right) in zip(row, cuts, strict=True):
            piece = [Box(left, top, right, foot)]
            if box is not first and not any(word.right <= box.left + 1 for word in words if word.bottom > box.top):
                start = max(0.0, min([word.left for word in row[0][1]] + [first.left]) - 2)
                # The first panel's numbers below the axis are not part of it.
                piece.insert(0, Box(start, top, first.left, first.bottom + 4))
            pieces.append(piece)
        top = foot
    columns = len(rows[0])
    alike = all(len(row) == columns for row in rows)
    if alike and all(word.top < box.bottom for row in rows[:-1] for box, words in row for word in words):
        # The upper rows have their numbers on the axes of the last: what shares an axis stays together.
        pieces = [piece for column in range(columns) for piece in pieces[column::columns]]
    for box in loose:
        crossed = any(box.left < x < box.right and box.top < top - 4 for row in rows for x in _inner(row, width))
        if crossed:
            return []
    under = [box for box in loose if box.bottom > top + 2]
    if under:
        whole = _around(under)
        # The text of a legend begins right of its line or dot.
        pieces.append([Box(max(0.0, whole.left - 26), top, min(width, whole.right + 10), height)])
    return pieces


def written(pieces: list[list[Box]], scale: float) -> str:
    """Writes windows as an attribute of an element.

    Args:
        pieces: what `windows` gives.
        scale: CSS pixels per unit of the picture.

    Returns:
        pieces separated by blanks, windows by plus signs: left, top, width and height in CSS pixels.
    """

    def one(box: Box) -> str:
        sides = (box.left, box.top, box.right - box.left, box.bottom - box.top)
        return ",".join(f"{side * scale:.0f}" for side in sides)

    return " ".join("+".join(map(one, piece)) for piece in pieces)


def _extent(word: re.Match[str]) -> Box:
    """Give about the room that a text takes: matplotlib writes where it begins, how large and what it is."""
    size, x, y = 100 * float(word[5]), float(word[2]), float(word[3])
    plain = re.sub(r"\\\w+|[${}^_]", "", word[1])
    long = 0.58 * size * len(plain)
    return Box(x - size, y - long, x, y) if word[4] else Box(x, y - size, x + long, y + 0.25 * size)


def _around(boxes: list[Box]) -> Box:
    """Give what holds all boxes."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return Box(min(left), min(top), max(right), max(bottom))


def _rows(panels: list[tuple[Box, list[Box]]]) -> list[list[tuple[Box, list[Box]]]]:
    """Sort panels into rows, from top to bottom, each from left to right."""
    rows: list[list[tuple[Box, list[Box]]]] = []
    for panel in sorted(panels, key=lambda panel: (panel[0].top, panel[0].left)):
        if rows and panel[0].top < rows[-1][0][0].bottom - THIN:
            rows[-1].append(panel)
        else:
            rows.append([panel])
    return [sorted(row, key=lambda panel: panel[0].left) for row in rows]


def _cuts(row: list[tuple[Box, list[Box]]], width: float, near: float = 8.0) -> list[tuple[float, float]] | None:
    """Give the left and right end of each panel's window; None where words of two panels run into each other."""
    ends = _inner(row, width, near)
    return None if None in ends else list(zip([0.0, *ends], [*ends, width], strict=True))


def _inner(row: list[tuple[Box, list[Box]]], width: float, near: float = 8.0) -> list[float | None]:
    """Give where to cut between the panels of a row."""
    ends: list[float | None] = []
    for (one, words), (other, others) in pairwise(row):
        right = max([one.right, *(word.right for word in words)])
        left = min([other.left, *(word.left for word in others)])
        ends.append((right + left) / 2 if right - left < near else None)
    return ends
