"""Names the model in the title of each notebook that was run for several: searches and tabs show titles alone."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from docutils import nodes


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


def setup(app: Any) -> dict[str, bool]:
    """Connects the naming, before Sphinx collects titles."""
    app.connect("doctree-read", _name, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
