"""Writes a drawing of matplotlib in half its bytes. It looks the same, also enlarged.

matplotlib repeats the style of every mark, measures every point from the corner of the picture, and writes four bytes
for every cell of a map. Here a style has a name, a path goes from point to point in hundredths of a point, a map has a
palette, and what nobody sees is left out.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from itertools import chain
from string import ascii_letters
from xml.etree import ElementTree

import numpy as np
from PIL import Image

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_GLYPH = "scale(0.015625)"  # outlines come in 6400ths of the height of a letter
_TARGET = re.compile(r"(?<=#)[\w.-]+")
_LONG = re.compile(r"-?\b[1-9]\d*\.\d{3,}")  # a number below 1 may be a scale, which needs its digits
_FINE = re.compile(r"\b0\.\d{4,}")  # of opacity a screen shows 255 steps, of width no thousandth of a point
_MAP = "data:image/png;base64,"
_MOVED = re.compile(r"translate\((\S+) (\S+)\)")
_STEP = re.compile(r"([A-Za-z])([^A-Za-z]*)")


def light(svg: bytes) -> bytes:
    """Leaves out of a drawing what nobody sees: names that nothing refers to, empty groups, further digits, blanks."""
    root = ElementTree.fromstring(svg)
    every = list(root.iter())
    used = {name for one in every for value in one.attrib.values() for name in _TARGET.findall(value)}
    names = {name: _short(number) for number, name in enumerate(sorted({one.get("id") for one in every} & used))}
    styles: dict[str, str] = {}
    for one in every:
        one.attrib = dict(_attributes(one, names, styles))
        one.text, one.tail = one.text and one.text.strip(), None
    # From the leaves to the root: a group is seen after what it holds.
    for one in reversed(every):
        one[:] = chain.from_iterable(_kept(part, styles.get("fill:none", "")) for part in one)
    for sheet in root.iter(f"{_SVG}style"):
        sheet.text += "".join(f".{name}{{{style}}}" for style, name in styles.items())
    ElementTree.register_namespace("", _SVG[1:-1])
    return ElementTree.tostring(root).replace(b" />", b"/>")


def _attributes(one: ElementTree.Element, names: dict[str, str], styles: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Shorten what an element says; a style becomes the name of a class."""
    glyph = one.get("transform") == _GLYPH
    for key, value in one.attrib.items():
        moved = _MOVED.fullmatch(value) if one.tag == f"{_SVG}use" else None
        if key == "style":
            value = _FINE.sub(lambda fine: _number(float(fine[0]), 3), re.sub(r"(?<=[:;,]) ", "", value))
            yield "class", styles.setdefault(value, _short(len(styles)))
        elif key == "d":
            yield "d", path(value, 1 / 64, 1) if glyph else path(value)
        elif moved:  # the next letter of a word, in hundredths of its height
            ends = zip("xy", (_number(float(to), 1) for to in moved.groups()), strict=True)
            yield from (end for end in ends if end[1] != "0")
        elif value.startswith(_MAP):
            yield "href", _MAP + base64.b64encode(with_palette(base64.b64decode(value[len(_MAP) :]))).decode()
        elif (key != "id" or value in names) and value != _GLYPH:
            key = "href" if key == _LINK else key
            value = _TARGET.sub(lambda to: names.get(to[0], to[0]), names[value] if key == "id" else value)
            exact = value.startswith("matrix")  # scales of pictures, which are many points wide
            yield key, value if exact else _LONG.sub(lambda long: _number(float(long[0])), value)


def _kept(one: ElementTree.Element, unseen: str) -> list[ElementTree.Element]:
    """Give what stays of an element: itself, what it holds, or nothing."""
    kind = one.tag.removeprefix(_SVG)
    if kind == "g" and not one.attrib:
        return list(one)
    empty = kind in ("g", "defs") and not len(one)
    return [] if empty or kind == "metadata" or (kind == "path" and one.get("class") == unseen) else [one]


def with_palette(png: bytes) -> bytes:
    """Writes the same pixels as numbers of colours, where these are at most 256: a byte each instead of four."""
    pixels = np.array(Image.open(io.BytesIO(png)).convert("RGBA"))
    colours, numbers = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    if len(colours) > 256:
        return png
    picture = Image.fromarray(numbers.reshape(pixels.shape[:2]).astype(np.uint8), "P")
    picture.putpalette(colours[:, :3].tobytes())
    see_through = {"transparency": colours[:, 3].tobytes()} if (colours[:, 3] < 255).any() else {}
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True, **see_through)
    return min(png, buffer.getvalue(), key=len)


def path(steps: str, scale: float = 1.0, digits: int = 2) -> str:
    """Writes the steps of a path from point to point."""
    said, at, start = [], [0.0, 0.0], [0.0, 0.0]
    for letter, text in _STEP.findall(steps):
        ends = [round(scale * float(number), digits) for number in text.split()]
        far = ends if letter == "M" else [number - at[axis % 2] for axis, number in enumerate(ends)]
        said += [letter if letter == "M" else letter.lower(), *(_number(number, digits) for number in far)]
        start = ends if letter == "M" else start
        at = ends[-2:] or start
    return re.sub(r" (?=[a-zA-Z-])|(?<=[a-zA-Z]) |(?<![\d.])0(?=\.)", "", " ".join(said))


def _number(value: float, digits: int = 2) -> str:
    """Write a number without what does not count."""
    return f"{round(value, digits) + 0.0:.{digits}f}".rstrip("0").rstrip(".")


def _short(number: int) -> str:
    """Name things a, b, ... Z, aa, ab, ..."""
    number, letter = divmod(number, len(ascii_letters))
    return (_short(number - 1) if number else "") + ascii_letters[letter]
