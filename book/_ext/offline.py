"""Keeps out of the pages what the theme would load from elsewhere, so that the book reads the same without a network.

The theme adds to every page the address of Thebe, which runs cells on a remote server. The book does not use it. In a
book on a disk the search would fetch pages for excerpts, which browsers refuse there, with an error for each.
"""

from __future__ import annotations

from typing import Any

NO_EXCERPTS = "if (location.protocol === 'file:') DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;"


def _drop_remote_scripts(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop the scripts of a page that name Thebe, in their file name or in their text."""
    context["script_files"] = [
        script
        for script in context.get("script_files", [])
        if "thebe" not in f"{getattr(script, 'filename', script)} {getattr(script, 'attributes', '')}".lower()
    ]


def setup(app: Any) -> dict[str, bool]:
    """Connects the filter, after whatever adds scripts to single pages."""
    app.connect("html-page-context", _drop_remote_scripts, priority=900)
    app.add_js_file(None, body=NO_EXCERPTS)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
