"""Finds the links of the built book that lead nowhere, on every page of it, those of the source code included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What readers download, and templates that the theme ships, are no pages of the book.
_NO_PAGES = ("_downloads", "_static")


class Page(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag's address and anchors."""
        named = dict(attrs)
        self.anchors |= {value for key, value in attrs if key == "id" or (tag, key) == ("a", "name")}
        if tag == "a" and named.get("href"):
            self.links.append(named["href"])
        if tag == "link" and named.get("href"):
            self.loads.append(named["href"])
        if tag in {"script", "img", "iframe", "source", "video"} and named.get("src"):
            self.loads.append(named["src"])


@cache
def built(path: Path) -> Page:
    """Read a page, once."""
    return Page(path)


def broken(page: Path) -> Iterator[str]:
    """Return the addresses within the book that a page links or loads, and that lead to no file or no anchor of one."""
    for address in [*built(page).links, *built(page).loads]:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
        anchor = unquote(parts.fragment) if target.suffix == ".html" else ""
        if not target.is_file() or (anchor and anchor not in built(target).anchors):
            yield address


def all_broken(html: Path) -> list[str]:
    """Return each broken link of a built book, as its page and its address."""
    pages = [page for page in sorted(html.rglob("*.html")) if page.relative_to(html).parts[0] not in _NO_PAGES]
    return [f"{page.relative_to(html).as_posix()} -> {address}" for page in pages for address in broken(page)]
