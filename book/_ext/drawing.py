"""Compression of matplotlib's drawings to half their bytes, both themes in one file, with the same look at any scale.

matplotlib repeats the style of every mark, measures every point from the corner of the picture, and writes four bytes
for every cell of a map. Here a style has a name, a path goes from point to point in hundredths of a point, a map has a
palette, and what nobody sees is left out. A drawing for dark pages differs from the one for light pages in its colours
alone; they hold where the address of the file ends in `#dark`.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from string import ascii_letters
from xml.etree import ElementTree

import numpy as np
from PIL import Image

DARK = "dark"
"""End of an address that asks a drawing for its colours on dark pages."""
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_GLYPH = "scale(0.015625)"  # outlines come in 6400ths of the height of a letter
_TARGET = re.compile(r"(?<=#)[\w.-]+")
_LONG = re.compile(r"-?\b[1-9]\d*\.\d{3,}")  # a number below 1 may be a scale, which needs its digits
_FINE = re.compile(r"\b0\.\d{3,}")  # neither a hundredth of opacity nor one of a point of width is seen
_MAP = "data:image/png;base64,"
_MOVED = re.compile(r"translate\((\S+) (\S+)\)")
_NOT = "display:none"
_STEP = re.compile(r"([A-Za-z])([^A-Za-z]*)")


def light(svg: bytes, dark: bytes = b"") -> bytes:
    """Compress a drawing, without its invisible parts, and add the colours of the same drawing for dark pages."""
    root, styles = ElementTree.fromstring(svg), {}
    _rewrite(root, ElementTree.fromstring(dark or svg), styles)
    # From the leaves to the root: a group is seen after what it holds.
    unseen = styles.get(("fill:none", "fill:none"), "")
    for one in reversed(list(root.iter())):
        one[:] = chain.from_iterable(_kept(part, unseen) for part in one)
    changed = {name: _changed(*pair) for pair, name in styles.items()}
    for sheet in root.iter(f"{_SVG}style"):
        sheet.text += "".join(f".{name}{{{style}}}" for (style, _), name in styles.items())
        sheet.text += "".join(f":target .{name}{{{style}}}" for name, style in changed.items() if style)
    if dark:
        root.set("id", DARK)
    ElementTree.register_namespace("", _SVG[1:-1])
    return ElementTree.tostring(root).replace(b" />", b"/>")


def _rewrite(root: ElementTree.Element, other: ElementTree.Element, styles: dict[tuple[str, str], str]) -> None:
    """Shorten the attributes of elements; a style, as a pair of light and dark, becomes the name of a class."""
    every, twins = list(root.iter()), list(other.iter())
    if [one.tag for one in every] != [twin.tag for twin in twins]:
        raise ValueError("the drawings for light and for dark pages differ in more than their colours")
    names, own = _names(every), _names(twins)
    above = {below: one for one in every for below in one}
    for one, twin in zip(every, twins, strict=True):
        attributes, dark_attributes = dict(_attributes(one, names)), dict(_attributes(twin, own))
        style_pair = attributes.pop("style", ""), dark_attributes.pop("style", "")
        if one in above and above[one].tag == f"{_SVG}defs":
            # A mark repeats its style where it is used, and a rule for the dark does not reach into what is used.
            style_pair = "", ""
        differ = {name for name, _ in attributes.items() ^ dark_attributes.items()}
        if differ == {"href"} and one.tag == f"{_SVG}image":
            # A map of other colours: both are there, and one is seen.
            beside = ElementTree.Element(
                one.tag, dark_attributes | _class(styles, (f"{_NOT};{style_pair[0]}", style_pair[1]))
            )
            above[one].insert(list(above[one]).index(one) + 1, beside)
            style_pair = style_pair[0], f"{_NOT};{style_pair[1]}"
        elif differ:
            raise ValueError(f"the drawings for light and for dark pages differ in {sorted(differ)}")
        one.attrib = attributes | _class(styles, style_pair)
        one.text, one.tail = one.text and one.text.strip(), None


def _names(every: list[ElementTree.Element]) -> dict[str, str]:
    """Shorten the names that something refers to, in the order in which they stand."""
    used = {name for one in every for value in one.attrib.values() if "#" in value for name in _TARGET.findall(value)}
    return {name: _short(at) for at, name in enumerate(one.get("id") for one in every if one.get("id") in used)}


def _class(styles: dict[tuple[str, str], str], style_pair: tuple[str, str]) -> dict[str, str]:
    """Return the class name of a style, a pair of light and dark."""
    return {"class": styles.setdefault(style_pair, _short(len(styles)))} if any(style_pair) else {}


def _changed(light: str, dark: str) -> str:
    """Return the part of a style that differs in the dark."""
    light_style, dark_style = (dict(part.split(":", 1) for part in style.split(";") if part) for style in (light, dark))
    return ";".join(
        f"{name}:{dark_style.get(name, 'unset')}"
        for name in light_style | dark_style
        if light_style.get(name) != dark_style.get(name)
    )


def _attributes(one: ElementTree.Element, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Shorten an element's attributes."""
    glyph = one.get("transform") == _GLYPH
    for key, value in one.attrib.items():
        moved = _MOVED.fullmatch(value) if one.tag == f"{_SVG}use" else None
        if key == "style":
            yield key, _FINE.sub(lambda fine: _number(float(fine[0])), re.sub(r"(?<=[:;,]) ", "", value))
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
    """Return the visible part of an element: itself, its children, or nothing."""
    kind = one.tag.removeprefix(_SVG)
    if kind == "g" and not one.attrib:
        return list(one)
    empty = kind in ("g", "defs") and not len(one)
    return [] if empty or kind == "metadata" or (kind == "path" and one.get("class") == unseen) else [one]


def with_palette(png: bytes) -> bytes:
    """Encode the same pixels as palette indices where there are at most 256 colours: a byte each instead of four."""
    pixels = np.array(Image.open(io.BytesIO(png)).convert("RGBA"))
    # A pixel as one number is sorted as its four would be, and sooner.
    found, numbers = np.unique(pixels.view(">u4"), return_inverse=True)
    colours = found.view(np.uint8).reshape(-1, 4)
    if len(colours) > 256:
        return png
    picture = Image.fromarray(numbers.reshape(pixels.shape[:2]).astype(np.uint8), "P")
    picture.putpalette(colours[:, :3].tobytes())
    see_through = {"transparency": colours[:, 3].tobytes()} if (colours[:, 3] < 255).any() else {}
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True, **see_through)
    return min(png, buffer.getvalue(), key=len)


@cache  # letters and frames are the same in most drawings, and lines in both themes
def path(steps: str, scale: float = 1.0, digits: int = 2) -> str:
    """Format the steps of a path from point to point."""
    commands, at, start = [], [0.0, 0.0], [0.0, 0.0]
    for letter, text in _STEP.findall(steps):
        ends = [round(scale * float(number), digits) for number in text.split()]
        far = ends if letter == "M" else [number - at[axis % 2] for axis, number in enumerate(ends)]
        letter, far = _level(letter, [_number(number, digits) for number in far])
        commands += [letter, *far]
        start = ends if letter == "M" else start
        at = ends[-2:] or start
    return re.sub(r" (?=[a-zA-Z-])|(?<=[a-zA-Z]) |(?<![\d.])0(?=\.)", "", " ".join(commands))


def _level(letter: str, far: list[str]) -> tuple[str, list[str]]:
    """Format a horizontal or vertical line as such."""
    if letter == "L" and (far[0] == "0") != (far[1] == "0"):
        return ("v", far[1:]) if far[0] == "0" else ("h", far[:1])
    return letter if letter == "M" else letter.lower(), far


def _number(value: float, digits: int = 2) -> str:
    """Format a number without superfluous digits."""
    return f"{value:z.{digits}f}".rstrip("0").rstrip(".")


def _short(number: int) -> str:
    """Return names in the order a, b, ... Z, aa, ab, ..."""
    number, letter = divmod(number, len(ascii_letters))
    return (_short(number - 1) if number else "") + ascii_letters[letter]
