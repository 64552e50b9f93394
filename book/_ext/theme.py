"""What Jupyter Book's theme leaves open: the model in a notebook's title, pages that need no network, all cores.

Searches and tabs show titles alone, and a notebook is run for several models. The theme adds to every page the address
of Thebe, which runs cells on a remote server; the book does not use it. In a book on a disk the search would fetch
pages for excerpts, which browsers refuse there, with an error for each. Half of a build is writing, and jupyter-book
has no option for doing it on all cores; pages are still read one after the other, since figures are numbered over all.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

from docutils import nodes

NO_EXCERPTS = "if (location.protocol === 'file:') DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;"


def model_of(page: str, pages: set[str]) -> str | None:
    """Names the model of a page; None where it is no notebook of a model that has a page of its own."""
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
    # One of the processes hands out the pages to the others.
    app.parallel = 1 + (os.cpu_count() or 1)
    return []


def setup(app: Any) -> dict[str, bool]:
    """Connect each: before titles are collected, when all pages are read, after whatever adds scripts to pages."""
    app.connect("doctree-read", _name, priority=400)
    app.connect("env-updated", _write_on_all_cores)
    app.connect("html-page-context", _drop_remote_scripts, priority=900)
    app.add_js_file(None, body=NO_EXCERPTS)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
