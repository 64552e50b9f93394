"""Gives the theme's controls names that a screen reader can say and a voice can call.

The theme gives the button that unfolds a part of the sidebar no name, and names others by something else than what
stands on them. What it leaves to a style sheet and a script is in the static files of the same name.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

_FOLDED = re.compile(
    r'(?P<link><a class="[^"]*\breference\b[^"]*"[^>]*>(?P<title>(?:(?!</a>).)*)</a>)'
    r"(?P<details><details[^>]*>)<summary>"
    r'(?=<span class="toctree-toggle")',
    re.DOTALL,
)
_TAG = re.compile(r"<[^>]+>")


def _named(part: re.Match[str]) -> str:
    title = html.escape(html.unescape(_TAG.sub("", part["title"])).strip())
    return f'{part["link"]}{part["details"]}<summary aria-label="Pages below {title}">'


def accessible(page: str) -> str:
    """Names the controls of a page; one that has passed already is left as it is."""
    page = _FOLDED.sub(_named, page)
    # These say by themselves what they do: "Show code cell source", "Search".
    page = page.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    page = re.sub(r'(<button class="[^"]*search-button-field[^>]*?) aria-label="Search"', r"\1", page)
    # An entry of a bibliography is an item of the list in which it stands; the other role is no longer in use.
    page = page.replace('role="doc-biblioentry"', 'role="listitem"')
    # The three pictures of one button are not three names of it.
    return re.sub(r'(<i class="theme-switch [^>]*?)\s+title="[^"]*"', r"\1", page)


def _finish(app: Any, failed: Exception | None) -> None:
    if failed or app.builder.name != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        named = accessible(page)
        if named != page:
            path.write_text(named, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Connects the naming, after all pages are written."""
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
