"""Asserts that the built book has its front page and every page of `_toc.yml`, and that its links lead somewhere.

Run by `make book`.
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePath
from typing import Any

import yaml
from links import all_broken

ROOT = Path(__file__).resolve().parent.parent


def pages(toc: Any) -> list[str]:
    """List the pages of a table of contents, or of a part of one: without ending, in reading order."""
    if isinstance(toc, list):
        return [page for part in toc for page in pages(part)]
    if not isinstance(toc, dict):
        return []
    own = [toc[key] for key in ("root", "file") if key in toc]
    return own + [page for part in toc.values() for page in pages(part)]


def listed(root: Path = ROOT) -> list[str]:
    """List the pages of `_toc.yml`."""
    return pages(yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8")))


def executed() -> list[PurePath]:
    """List the pages below `results/` as MODEL/NOTEBOOK; a model's own page is called index."""
    return [PurePath(page).relative_to("results") for page in listed() if page.startswith("results/")]


def missing(root: Path) -> list[str]:
    """Return the files, relative to `_build/html`, that the built book lacks or has empty."""
    wanted = ["index.html", *(f"{page}.html" for page in listed(root))]
    html = root / "_build" / "html"
    return [name for name in wanted if not (html / name).is_file() or not (html / name).stat().st_size]


if __name__ == "__main__":
    if lacking := missing(ROOT):
        sys.exit(f"error: the book lacks {', '.join(lacking)}")
    if lost := all_broken(ROOT / "_build" / "html"):
        sys.exit("\n".join([f"error: {len(lost)} links within the book lead nowhere, such as", *lost[:20]]))
