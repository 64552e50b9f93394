"""Additions to Jupyter Book's theme: the model in a notebook's title, pages without a network, labels, all cores.

Searches and tabs show titles alone, and a notebook is run for several models. The theme adds to every page the address
of Thebe, which runs cells on a remote server; the book does not use it. In a book on a disk the search would fetch
pages for excerpts, which browsers refuse there, with an error for each. Half of a build is writing, and jupyter-book
has no option for doing it on all cores; pages are still read one after the other, since figures are numbered over all.
The theme gives the button that unfolds a part of the sidebar no name that a screen reader can say and a voice can call,
and names others by something else than what stands on them. What of this it leaves to a style sheet and a script is in
access.css and access.js.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes

_FOLDED = re.compile(
    r'(?P<link><a class="[^"]*\breference\b[^"]*"[^>]*>(?P<title>(?:(?!</a>).)*)</a>)'
    r"(?P<details><details[^>]*>)<summary>"
    r'(?=<span class="toctree-toggle")',
    re.DOTALL,
)
_TAG = re.compile(r"<[^>]+>")
NO_EXCERPTS = "if (location.protocol === 'file:') DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;"


def model_of(page: str, pages: set[str]) -> str | None:
    """Return the name of a page's model; None unless it is a notebook of a model that has a page of its own."""
    place = PurePosixPath(page)
    mine = place.parts[0] == "results" and place.name != "index" and f"{place.parent}/index" in pages
    return place.parent.name if mine else None


def _name(app: Any, document: nodes.document) -> None:
    model = model_of(app.env.docname, app.env.found_docs)
    title = next(document.findall(nodes.title), None)
    if model and title is not None:
        title += nodes.Text(f": {model}")


def _drop_remote_scripts(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop the scripts of a page that name Thebe, in their file name or in their text."""
    context["script_files"] = [
        script
        for script in context.get("script_files", [])
        if "thebe" not in f"{getattr(script, 'filename', script)} {getattr(script, 'attributes', '')}".lower()
    ]


def _write_on_all_cores(app: Any, env: Any) -> list[str]:
    # One of the processes distributes the pages to the others.
    app.parallel = 1 + (os.cpu_count() or 1)
    return []


def _named(part: re.Match[str]) -> str:
    title = html.escape(html.unescape(_TAG.sub("", part["title"])).strip())
    return f'{part["link"]}{part["details"]}<summary aria-label="Pages below {title}">'


def accessible(page: str) -> str:
    """Label the controls of a page; labels that are there are kept."""
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
    """Connect each hook: before titles are collected, when all pages are read, after scripts are added, at the end."""
    app.connect("doctree-read", _name, priority=400)
    app.connect("env-updated", _write_on_all_cores)
    app.connect("html-page-context", _drop_remote_scripts, priority=900)
    app.connect("build-finished", _finish)
    app.add_js_file(None, body=NO_EXCERPTS)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
