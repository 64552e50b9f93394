"""Previews of the targets of links (terms, citations, figures), for a script to show without a network."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import book_figures
from sphinx.util.osutil import relative_uri

from companion.figures.figure_reader import figures_in

GLOSSARY = "book/methods"
_LINK = re.compile(
    r'<a class="reference internal" href="(?:[^"#]*#(?=term-|fig-)|[^"#]*bibliography\.html#(?=id))([^"]+)"'
    r'(?: title="[^"]*")?'
)


def definitions(document: Any) -> dict[str, str]:
    """Return the first paragraph of each definition in a glossary, by the anchor of its term."""
    found = {}
    for glossary in document.findall(lambda node: node.tagname == "glossary"):
        for item in glossary.children[0].children:
            *terms, definition = item.children
            for term in terms:
                found |= {anchor: definition.children[0].astext().replace("\n", " ") for anchor in term["ids"]}
    return found


def marked(body: str, behind: Mapping[str, Mapping[str, str]]) -> str:
    """Add previews to a page's links, by the end of an address: a text, and pictures."""

    def with_preview(link: re.Match[str]) -> str:
        shown = behind.get(link[1], {})
        # A browser would show a title beside the preview.
        plain = re.sub(r' title="[^"]*"$', "", link[0]) if shown else link[0]
        return plain + "".join(f' data-{name}="{html.escape(value)}"' for name, value in shown.items())

    return _LINK.sub(with_preview, body)


def of_figures(env: Any, address: Callable[[str], str]) -> dict[str, dict[str, str]]:
    """Return by anchor the previews of the chapters' figures: number and caption, and the pictures."""
    found = {}
    for one in book_figures.numbers(env).values():
        caption, files = _shown(one.markup)
        found[one.anchor] = {"preview": f"Figure {one.number}. {caption}"}
        found[one.anchor] |= {theme: address(file) for theme, file in files.items()}
    return found


@cache
def _shown(markup: str) -> tuple[str, dict[str, str]]:
    """Return the caption of a figure and the files of its pictures, once for all pages."""
    shown = next(figures_in(markup))
    return shown.caption, book_figures.files(shown)


def _mark_page(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    body = context.get("body", "")
    if not _LINK.search(body):
        return
    if not hasattr(app, "_texts_behind"):
        known = definitions(app.env.get_doctree(GLOSSARY)) if GLOSSARY in app.env.found_docs else {}
        known |= {
            one.citation_id: one.formatted_entry.text.render_as("text") for one in app.env.domains["cite"].citations
        }
        app._texts_behind = {anchor: {"preview": text} for anchor, text in known.items()}

    def address(name: str) -> str:
        return relative_uri(app.builder.get_target_uri(page), f"_images/{name}")

    context["body"] = marked(body, app._texts_behind | of_figures(app.env, address))


def setup(app: Any) -> dict[str, bool]:
    """Connect the marking of links."""
    app.connect("html-page-context", _mark_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
