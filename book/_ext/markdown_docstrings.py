"""Lets Sphinx read the library's docstrings, which are written in Markdown, as everything else in the book.

Autodoc and napoleon expect reStructuredText. The two differ in few places that docstrings use: code between single
backticks, mathematics between dollar signs, lists and indented code without further marks, and signs that mean
something there and nothing in Markdown: bars, trailing underscores, the at sign. These are rewritten, docstring by
docstring, before napoleon sees them.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

_DISPLAY = re.compile(
    r"^(?P<indent> *)(?P<before>[^\n]*?)\$\$(?P<body>.+?)\$\$(?P<after>[^\n]*)$", re.DOTALL | re.MULTILINE
)
_INLINE = re.compile(
    r"(?P<kept>:[\w:]+:`[^`]+`|``[^`]+``)|(?<!`)`(?P<code>[^`]+)`(?!`)|(?<![\\$])\$(?P<math>[^$]+?)\$(?!\$)"
)
_BULLET = re.compile(r" *[-*] ")


def to_restructured_text(docstring: str) -> str:
    r"""Rewrite a docstring in Google style from Markdown to reStructuredText; examples and code stay as they are."""
    made: list[str] = []
    margin, code = 0, False
    for paragraph in docstring.split("\n\n"):
        # What is indented by four more is code, up to the next paragraph that is not.
        if made and _indent(paragraph) >= margin + 4:
            made += [paragraph] if code else [" " * margin + "::", paragraph]
            code = True
            continue
        prose = re.split(r"^(?= *>>>)", paragraph, maxsplit=1, flags=re.MULTILINE)[0]
        made.append(_prose(prose) + paragraph[len(prose) :])
        margin, code = _indent(prose.rstrip("\n").rpartition("\n")[2]) if prose.strip() else margin, False
    return "\n\n".join(made)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _prose(text: str) -> str:
    lines: list[str] = []
    for line in _DISPLAY.sub(_display, text).split("\n"):
        previous = lines[-1] if lines else ""
        begins = _BULLET.match(line) and previous.strip() and not _BULLET.match(previous)
        if begins and _indent(previous) <= _indent(line) and not previous.rstrip().endswith(("Args:", "Returns:")):
            lines.append("")
        lines.append(line)
    parts, end = [], 0
    text = "\n".join(lines)
    for match in _INLINE.finditer(text):
        parts.append(_plain(text[end : match.start()]))
        # Inline markup has to be set off from letters around it; an escaped blank does so without showing.
        if match.start() and (text[match.start() - 1].isalnum()):
            parts.append("\\ ")
        if match["code"] is not None:
            parts.append(f"``{' '.join(match['code'].split())}``")
        elif match["math"] is not None:
            parts.append(f":math:`{' '.join(match['math'].split())}`")
        else:
            parts.append(match["kept"])
        end = match.end()
        if end < len(text) and text[end].isalnum():
            parts.append("\\ ")
    return "".join([*parts, _plain(text[end:])])


def _display(match: re.Match[str]) -> str:
    indent, body = match["indent"], " ".join(match["body"].split())
    before, after = f"{indent}{match['before']}".rstrip(), indent + match["after"].lstrip()
    return f"{before}\n\n{indent}.. math:: {body}\n\n{after}"


def _plain(text: str) -> str:
    if ".. math::" in text:
        return "\n".join(line if ".. math::" in line else _plain(line) for line in text.split("\n"))
    return re.sub(r"(?<=\w)_(?!\w)|[|@]", r"\\\g<0>", text)


def _process(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = to_restructured_text("\n".join(lines)).split("\n")
    if what in ("attribute", "data", "property"):
        # Napoleon takes what stands before a colon in the first line of these for a type: give it an empty comment.
        lines[:0] = ["..", ""]


def _skip(app: Any, what: str, name: str, obj: object, skip: bool, options: Any) -> bool | None:
    """Omit the fields of named tuples, which the class itself describes better, and imported names."""
    if what == "module" and (inspect.isclass(obj) or inspect.isfunction(obj)):
        # Autodoc leaves the latter out itself, but first it reads the source code of wherever a class comes from.
        module = sys.modules[app.env.temp_data["autodoc:module"]]
        return True if obj.__module__ != module.__name__ and not hasattr(module, "__all__") else None
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Any) -> dict[str, bool]:
    """Connect the two hooks, the first before napoleon's."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}
