"""Metadata of a page for search engines, for previews of shared links, and for catalogues of scholarly work.

Every page gets a description, taken from its own first sentences; the front page, the paper and this software as
JSON-LD. What needs the book's public address (the address and picture of a shared link, a sitemap) is there once
`html: baseurl` is set in `_config.yml`, or BOOK_ADDRESS in the environment of the build.
"""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from xml.sax.saxutils import escape

import cited

# The picture of a shared link, 1200 x 630: the title, and beside it the coupling matrix of two coupled blocks.
CARD = "_static/card.png"
CARD_DESCRIPTION = (
    "A moment of a training: a map of coupled blocks, a matrix with a bright diagonal, coupling and loss by step"
)


def description(document: Any, otherwise: str, longest: int = 200) -> str:
    """Return the first paragraph of a page that is plain prose: without mathematics, and longer than a heading."""
    text = otherwise
    for paragraph in document.findall(_named("paragraph")) if document is not None else ():
        found = " ".join(paragraph.astext().split())
        inside_table = paragraph.parent.tagname == "entry"
        if len(found) >= 40 and not inside_table and not list(paragraph.findall(_named("math"))):
            text = found
            break
    if len(text) <= longest:
        return text
    return text[:longest].rpartition(" ")[0].rstrip(",;:.") + " …"


def _named(tag: str) -> Any:
    return lambda node: node.tagname == tag


def metatags(title: str, text: str, site: str, address: str | None, card: str | None) -> str:
    """Write description and Open Graph of a page; address and card are None while the book has no address."""
    named = {"description": text, "twitter:card": "summary_large_image" if card else "summary"}
    shared = {"og:title": title, "og:description": text, "og:type": "article", "og:site_name": site}
    shared |= {"og:url": address} if address else {}
    shared |= {"og:image": card, "og:image:alt": CARD_DESCRIPTION} if card else {}
    lines = [f'<meta name="{name}" content="{html.escape(value)}" />' for name, value in named.items()]
    lines += [f'<meta property="{name}" content="{html.escape(value)}" />' for name, value in shared.items()]
    return "\n".join(lines) + "\n"


def scholarly(citation: dict[str, Any], address: str | None) -> str:
    """Describe the paper and this software, as `CITATION.cff` names them, in the terms of schema.org."""
    cited = citation["preferred-citation"]
    paper = {
        "@id": cited["url"],
        "@type": "ScholarlyArticle",
        "name": cited["title"],
        "author": [
            {"@type": "Person", "givenName": one["given-names"], "familyName": one["family-names"]}
            for one in cited["authors"]
        ],
        "datePublished": str(cited["year"]),
        "isPartOf": {"@type": "PublicationVolume", "name": cited["collection-title"]},
        "identifier": cited["identifiers"][0]["value"],
        "url": cited["url"],
    }
    doi = citation.get("doi")
    software = {
        "@type": "SoftwareSourceCode",
        "name": citation["title"],
        "description": citation["abstract"],
        "version": citation["version"],
        "license": f"https://spdx.org/licenses/{citation['license']}",
        "identifier": f"https://doi.org/{doi}" if doi else None,
        "codeRepository": citation.get("repository-code"),
        "author": [{"@type": "Organization", **one} for one in citation["authors"]],
        "keywords": citation["keywords"],
        "url": address,
        "isBasedOn": {"@id": paper["@id"]},
    }
    graph = [paper, {name: value for name, value in software.items() if value}]
    text = json.dumps({"@context": "https://schema.org", "@graph": graph}, ensure_ascii=False).replace("</", r"<\/")
    return f'<script type="application/ld+json">{text}</script>\n'


def sitemap(address: str, pages: list[str]) -> str:
    """List the pages of the book for search engines."""
    lines = [f"  <url><loc>{escape(urljoin(address, page))}</loc></url>" for page in pages]
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    return "\n".join([head, *lines, "</urlset>"]) + "\n"


def _take_address(app: Any, config: Any) -> None:
    """Read the address from the environment, if it is there, and add a slash at its end."""
    given = os.environ.get("BOOK_ADDRESS") or config.html_baseurl
    config.html_baseurl = given.rstrip("/") + "/" if given.strip("/") else ""


def _describe(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    known, base, site = cited.software(), app.config.html_baseurl or None, app.config.html_title or app.config.project
    title = html.unescape(re.sub(r"<[^>]+>", "", context.get("title") or site))
    address = urljoin(base, app.builder.get_target_uri(page)) if base else None
    card = urljoin(base, CARD) if base else None
    head = metatags(title, description(document, known["abstract"]), site, address, card)
    if page == app.config.root_doc:
        head += scholarly(known, base)
    context["metatags"] = context.get("metatags", "") + head


def _finish(app: Any, failed: Exception | None) -> None:
    if failed or app.builder.name != "html" or not app.config.html_baseurl:
        return
    names = sorted(app.builder.get_target_uri(page) for page in app.env.found_docs)
    text = sitemap(app.config.html_baseurl, names)
    (Path(app.outdir) / "sitemap.xml").write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Connect the writing of each head, and of the sitemap at the end."""
    app.connect("config-inited", _take_address)
    app.connect("html-page-context", _describe)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
