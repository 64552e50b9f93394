"""Finds the panels of a picture, so that a narrow screen shows them below each other at a size that can be read.

A picture is as wide as the book's column. On a phone it would shrink until its words are five pixels high. A script
cuts it into windows instead (figures.js); this file says where to cut, from the groups that matplotlib writes into SVG:
each axes begins with its frame, seen or not, and a text is a row of glyphs with their places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WRITTEN = re.compile(r"translate\(([\d.-]+) ([\d.-]+)\)(?: rotate\(([\d.-]+)\))? scale\(([\d.]+) -\4\)")
_BLANK = "-3"  # ends the name of a glyph: the number of a blank in the font
_GLYPH = 65.0  # about how wide the last glyph of a text is, in hundredths of its size
THIN = 14.0  # points: what is narrower is a colour bar
LONGEST = 180.0  # points: a longer text may be too wide for a phone at a size that can be read


class Box(NamedTuple):
    """A rectangle in the picture's units, y downwards."""

    left: float
    top: float
    right: float
    bottom: float


class Piece(NamedTuple):
    """Windows side by side: a panel with its labels, or, loose, words that may wrap."""

    windows: list[Box]
    loose: bool = False


class _Word(NamedTuple):
    """A text: its box, whether it is level, and the ends of its blanks."""

    box: Box
    level: bool
    blanks: list[float]


class _Panel(NamedTuple):
    frame: Box
    words: list[Box]


class _Loose(NamedTuple):
    box: Box
    pieces: list[Piece]


def smallest(svg: str) -> float:
    """Return the size of the smallest text of a picture in points; indices of a formula are part of its text."""
    return min((100 * float(text[4]) for text in _WRITTEN.finditer(svg)), default=8.0)


def windows(svg: str) -> list[Piece]:
    """Cut a picture into panels and loose pieces, in reading order; nothing if an axes has no frame."""
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.get("viewBox").split()[2:])
    panels, loose = _found(root)
    rows = _rows(panels)
    pieces = [_row(row, width, height) for row in rows]
    return _by_columns(rows, pieces, loose) if _share_numbers(rows) else _by_rows(rows, pieces, loose)


def written(pieces: list[Piece], scale: float) -> str:
    """Write pieces, loose ones behind a tilde, as windows joined by plus signs: left, top, width, height in pixels."""

    def one(box: Box) -> str:
        sides = (box.left, box.top, box.right - box.left, box.bottom - box.top)
        return ",".join(f"{side * scale:.0f}" for side in sides)

    return " ".join("~" * piece.loose + "+".join(map(one, piece.windows)) for piece in pieces)


def _found(root: ElementTree.Element) -> tuple[list[_Panel], list[_Loose]]:
    """Find panels and loose pieces from top to bottom; nothing if an axes has no frame."""
    panels: list[_Panel] = []
    loose: list[_Loose] = []
    for part in _parts(root):
        words, kind = [_word(text) for text in _texts(part)], part.get("id").partition("_")[0]
        frame = _frame(part) if kind == "axes" else None
        if kind == "axes" and not frame:
            # A second scale has the frame of the first, which is drawn before it.
            if not panels or not any(child.get("id", "").startswith("matplotlib.axis") for child in part):
                return [], []
            panels[-1].words.extend(word.box for word in words)
            continue
        if frame and min(frame.right - frame.left, frame.bottom - frame.top) > THIN:
            same = next((panel for panel in panels if panel.frame == frame), None)
            boxes = [word.box for word in words]
            same.words.extend(boxes) if same else panels.append(_Panel(frame, boxes))
        else:
            found = _entries(part) if kind == "legend" else _bar(frame, words) if frame else map(_flowing, words)
            made = list(found)
            if made:
                loose.append(_Loose(_around([box for piece in made for box in piece.windows]), made))
    return panels, sorted(loose if panels else [], key=lambda one: one.box.top)


def _share_numbers(rows: list[list[_Panel]]) -> bool:
    """Return whether the tick labels of upper rows are on the axes of the last row."""
    alike = len({len(row) for row in rows}) == 1
    return alike and all(word.top < panel.frame.bottom for row in rows[:-1] for panel in row for word in panel.words)


def _by_columns(rows: list[list[_Panel]], pieces: list[list[Piece]], loose: list[_Loose]) -> list[Piece]:
    """Group panels that share an axis, with the pieces below them."""
    under = [one for one in loose if one.box.top > rows[-1][0].frame.top]
    made = [piece for one in loose if one not in under for piece in one.pieces]
    columns = list(zip(*pieces, strict=True))
    below = [_below(under, [piece.windows[-1] for piece in column]) for column in columns]
    below = below if all(below) else [[]] * len(columns)
    for column, own in zip(columns, below, strict=True):
        made += [*column, *(piece for one in own for piece in one.pieces)]
    return made + [piece for one in under if not any(one in own for own in below) for piece in one.pieces]


def _by_rows(rows: list[list[_Panel]], pieces: list[list[Piece]], loose: list[_Loose]) -> list[Piece]:
    """Arrange rows below each other, each after the pieces above it."""
    made: list[Piece] = []
    for row, pieces_of_row in zip(rows, pieces, strict=True):
        above = [one for one in loose if one.box.top <= row[0].frame.top]
        made += [piece for one in above for piece in one.pieces] + pieces_of_row
        loose = loose[len(above) :]
    return made + [piece for one in loose for piece in one.pieces]


def _parts(group: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Return the axes, legends and texts of a figure; an axes has its own legends and texts inside."""
    for child in group:
        kind = child.get("id", "").partition("_")[0]
        # Axes that are an empty place of a grid may hold a legend.
        empty = kind == "axes" and all(part.get("id", "").startswith("legend") for part in child)
        if empty or kind in ("figure", "subfigure"):
            yield from _parts(child)
        elif kind in ("axes", "legend", "text"):
            yield child


def _texts(part: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the groups that hold the glyphs of a text."""
    return [group for group in part.iter() if _WRITTEN.fullmatch(group.get("transform", "")) and len(group)]


def _frame(axes: ElementTree.Element) -> Box | None:
    """Return the frame of an axes: its patch, which is drawn first."""
    first = next(iter(axes), None)
    if first is None or not first.get("id", "").startswith("patch_"):
        return None
    numbers = [float(number) for path in first for number in _NUMBER.findall(path.get("d", ""))]
    x, y = numbers[::2], numbers[1::2]
    return Box(min(x), min(y), max(x), max(y))


def _word(text: ElementTree.Element) -> _Word:
    """Measure a text from matplotlib's output: its start, its size, and the position of each glyph."""
    found = _WRITTEN.fullmatch(text.get("transform"))
    x, y, turn, scale = float(found[1]), float(found[2]), float(found[3] or 0), float(found[4])
    glyphs = [(float(_NUMBER.findall(one.get("transform", "0"))[0]), _named(one)) for one in text if _named(one)]
    size, long = 100 * scale, scale * (max((at for at, _ in glyphs), default=0.0) + _GLYPH)
    up, down = 0.78 * size, 0.26 * size
    if not turn:
        later = [at for at, _ in glyphs[1:]] + [long / scale]
        blanks = [x + scale * end for (_, name), end in zip(glyphs, later, strict=True) if name.endswith(_BLANK)]
        return _Word(Box(x, y - up, x + long, y + down), True, blanks)
    if abs(turn) == 90:
        return _Word(Box(x - up, y - long, x + down, y), False, [])
    # Slanted labels rise to the right: they are nowhere as far out as a level one.
    return _Word(Box(x - up, y - 0.71 * long, x + 0.94 * long, y + down), False, [])


def _named(glyph: ElementTree.Element) -> str:
    return glyph.get("{http://www.w3.org/1999/xlink}href", "")


def _flowing(word: _Word) -> Piece:
    """Create a loose piece of a text; of a long one, words that may wrap."""
    box = word.box
    ends = [box.left - 1, *(word.blanks if box.right - box.left > LONGEST else []), box.right + 1]
    cut = pairwise(ends)
    return Piece([Box(left, box.top - 1, right, box.bottom + 1) for left, right in cut], loose=True)


def _entries(legend: ElementTree.Element) -> list[Piece]:
    """Return the title of a legend, and its entries: what is drawn before a text belongs to it."""
    title, entries, drawn = [], [], []
    for child in legend:
        if not child.get("id", "").startswith("text"):
            drawn += [float(_NUMBER.search(path.get("d"))[0]) for path in child if path.get("d")]
            drawn += [float(use.get("x")) for use in child.iter() if use.get("x")]
        elif drawn:
            words = _around([_word(text).box for text in _texts(child)])
            entries.append(Box(min(drawn) - 4, words.top - 2, words.right + 9, words.bottom + 2))
            drawn = []
        else:
            title += [_flowing(_word(text)) for text in _texts(child)]
    for at, (one, following) in enumerate(pairwise(entries)):
        # What is drawn of the next in a row is not part of this one.
        if one.left < following.left and one.top < following.bottom and following.top < one.bottom:
            entries[at] = one._replace(right=min(one.right, following.left))
    return [*title, Piece(entries, loose=True)] if entries else title


def _bar(frame: Box, words: list[_Word]) -> list[Piece]:
    """Return a colour bar with its numbers, and its label, which is longer than they are."""
    names = [word for word in words if word.level and word.box.top > frame.bottom + 11]
    around = _around([frame, *(word.box for word in words if word not in names)])
    bar = Box(around.left - 6, around.top - 3, around.right + 6, around.bottom)
    return [Piece([bar], loose=True), *map(_flowing, names)]


def _below(under: list[_Loose], column: list[Box]) -> list[_Loose]:
    """Select the pieces that stand under one column and are about as wide."""
    held = _around(column)
    fits = [one for one in under if one.box.right - one.box.left < 1.2 * (held.right - held.left)]
    return [one for one in fits if held.left < (one.box.left + one.box.right) / 2 < held.right]


def _around(boxes: Sequence[Box]) -> Box:
    """Return the bounding box of boxes."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return Box(min(left), min(top), max(right), max(bottom))


def _rows(panels: list[_Panel]) -> list[list[_Panel]]:
    """Sort panels into rows, from top to bottom, each from left to right."""
    rows: list[list[_Panel]] = []
    for panel in sorted(panels, key=lambda panel: (panel.frame.top, panel.frame.left)):
        if rows and panel.frame.top < rows[-1][0].frame.bottom - THIN:
            rows[-1].append(panel)
        else:
            rows.append([panel])
    return [sorted(row, key=lambda panel: panel.frame.left) for row in rows]


def _row(row: list[_Panel], width: float, height: float) -> list[Piece]:
    """Return the pieces of a row of panels, all of one height."""
    held = [_around([panel.frame, *panel.words]) for panel in row]
    top, bottom = max(0.0, min(box.top for box in held) - 3), min(height, max(box.bottom for box in held) + 3)
    ends = [0.0, *((one.right + other.left) / 2 for one, other in pairwise(held)), width]
    first, pieces = row[0].frame, []
    axis = [word.left for word in row[0].words if word.right <= first.left + 1]
    for panel, box, left, right in zip(row, held, ends, ends[1:], strict=False):
        piece = [Box(max(left, box.left - 5), top, min(right, box.right + 5), bottom)]
        own = any(word.right <= panel.frame.left + 1 for word in panel.words if word.bottom > panel.frame.top)
        if axis and panel is not row[0] and not own:
            # The first panel's numbers below the axis are not part of it.
            piece.insert(0, Box(max(0.0, min(axis) - 2), top, first.left, first.bottom + 4))
        pieces.append(Piece(piece))
    return pieces
