"""Gives each link to the glossary the definition behind it, so that a script shows it without a network."""

from __future__ import annotations

import html
import re
from typing import Any

GLOSSARY = "book/glossary"
_LINK = re.compile(r'<a class="reference internal" href="[^"]*#(term-[^"]+)"')


def definitions(document: Any) -> dict[str, str]:
    """Takes the definitions out of a glossary.

    Args:
        document: the page, as Sphinx has read it.

    Returns:
        the first paragraph of each definition, by the anchor of its term.
    """
    found = {}
    for glossary in document.findall(lambda node: node.tagname == "glossary"):
        for item in glossary.children[0].children:
            *terms, definition = item.children
            for term in terms:
                found |= {anchor: definition.children[0].astext().replace("\n", " ") for anchor in term["ids"]}
    return found


def marked(body: str, said: dict[str, str]) -> str:
    """Writes definitions into the links of a page.

    Args:
        body: the page.
        said: definitions by anchor.

    Returns:
        the page; links to anything else are left as they are.
    """

    def with_definition(link: re.Match[str]) -> str:
        text = said.get(link[1])
        return link[0] if text is None else f'{link[0]} data-definition="{html.escape(text)}"'

    return _LINK.sub(with_definition, body)


def _mark_page(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    if GLOSSARY in app.env.found_docs and page != GLOSSARY and "#term-" in context.get("body", ""):
        if not hasattr(app, "_definitions"):
            app._definitions = definitions(app.env.get_doctree(GLOSSARY))
        context["body"] = marked(context["body"], app._definitions)


def setup(app: Any) -> dict[str, bool]:
    """Connects the marking of links.

    Args:
        app: the Sphinx application.

    Returns:
        what Sphinx asks of an extension.
    """
    app.connect("html-page-context", _mark_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
