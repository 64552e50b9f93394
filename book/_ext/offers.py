"""Downloads of figures and tables for further use: files, an entry to cite, a snippet to embed.

All of it stands in the page, as links and text. A script (offers.js) adds what only a script can do: a picture of
pixels, buttons that copy, and the address at which the book is read.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import html
import io
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cited
from sphinx.util.osutil import relative_uri
from template import from_template

from companion.figures.figure_reader import Shown

LARGE = 10_000
"""Number of characters from which data are stored in a file of their own, once for all pages that show them."""
_PARTS = re.compile(
    r'<section[^>]* id="(?P<id>[^"]+)">\s*(?:<span[^>]*></span>\s*)*'
    r'<h\d>(?P<heading>.*?)(?:<a class="headerlink|</h\d>)'
    r'|(?P<box><div class="pst-scrollable-table-container">)?<table(?= [^>]*class="[^"]*\b(?:table|dataframe)\b)'
    r"(?P<table>[^>]*>(?:(?!</table>).)*<thead(?:(?!</table>).)*</table>)(?(box)\s*</div>)",
    re.DOTALL,
)
_ROW, _CELL = re.compile(r"<tr.*?</tr>", re.DOTALL), re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)

_commit = cache(cited.commit)  # once for all figures


def link(app: Any, page: str, name: str, data: str, label: str = "CSV") -> str:
    """Link data as CSV: inside the page, or where they are long in a packed file."""
    address = "data:text/csv;charset=utf-8," + quote(data, safe=",:/-+@*()=")
    if len(address) < LARGE:
        return f'<a download="{name}.csv" href="{address}">{label}</a>'
    content = gzip.compress(data.encode(), mtime=0)
    file = Path("_downloads", "figures", f"{hashlib.sha256(content).hexdigest()[:16]}.csv.gz")
    (Path(app.outdir) / file).parent.mkdir(parents=True, exist_ok=True)
    (Path(app.outdir) / file).write_bytes(content)
    address = relative_uri(app.builder.get_target_uri(page), file.as_posix())
    return f'<a download="{name}.csv.gz" href="{address}">{label} (gzip)</a>'


def reference(app: Any, page: str, anchor: str, title: str, data: str) -> str:
    """Write the BibTeX entry of a part of a page, with a digest of its data, as HTML."""
    place, name = Path(page), anchor.removeprefix("fig-")
    key = "-".join(["coupling", *place.parts[1:-1], name])
    digest = hashlib.sha256(data.encode()).hexdigest()[:16]
    tex = re.sub(r"([&%$#_{}])", r"\\\1", title)
    url = f"ROOT{app.builder.get_target_uri(page)}#{anchor}"
    commit = _commit()
    note = f"commit {commit}; data sha256 {digest}" if commit else f"data sha256 {digest}"
    entry = cited.companion(cited.software(), commit, key, title=f"{{{tex}}}", url=url, note=note)
    return rooted(app, html.escape(entry))


def rooted(app: Any, text: str) -> str:
    """Replace ROOT by the book's address; while it has none, a script inserts the address at which it is read."""
    return text.replace("ROOT", app.config.html_baseurl or '<span class="tbc-root"></span>')


def of_figure(
    app: Any,
    page: str,
    shown: Shown,
    number: str,
    home: str,
    anchor: str,
    picture: str,
    description: str,
    links: list[str],
) -> str:
    """Write the downloads of a figure on a page, by its number if it has one and its home page."""
    to, kind = app.builder.get_target_uri, picture.rpartition(".")[2]
    address = relative_uri(to(page), f"_images/{picture}")
    saved = [f'<a download="{shown.name}.{kind}" href="{address}">{kind.upper()}</a>']
    saved += [link(app, page, shown.name, shown.csv)] if shown.csv else []
    first = shown.opening.rstrip(".")
    label, caption = f"{number}. " * bool(number), html.escape(shown.caption)
    place = f"{to(home)}#{anchor}"
    values = {"picture": picture, "description": description, "caption": label + caption, "place": place}
    snippet = from_template("embed.html.jinja", **values, book=cited.software()["title"])
    cite = reference(app, home, anchor, f"{number}: {first}" if number else first, shown.csv)
    texts = [("BibTeX", cite), ("HTML", rooted(app, html.escape(snippet)))]
    return _offers(app, "Source", number or shown.name, [*saved, *links], texts, html.escape(shown.origin))


def packed(name: str, drawing: bytes) -> str:
    """Write a drawing as a script: a page on a disk may read nothing else, and saves pictures of pixels from it."""
    content = base64.b64encode(gzip.compress(drawing, mtime=0)).decode()
    return f'tbcPicture("{name.partition(".")[0]}", "{content}");\n'


def _offers(app: Any, label: str, name: str, links: list[str], texts: list[tuple[str, str]], origin: str = "") -> str:
    values = {"label": label, "of": name, "links": links, "texts": texts, "origin": origin}
    return from_template("offers.html.jinja", **values, placed=app.config.html_baseurl)


def with_tables(app: Any, page: str, title: str, body: str) -> str:
    """Add data and an entry to cite under each table of a page that has a head, and an anchor."""
    section, heading, counted = "", title, {}

    def offered(part: re.Match[str]) -> str:
        nonlocal section, heading
        if part["id"]:
            section, heading = part["id"], _text(part["heading"])
            return part[0]
        counted[section] = counted.get(section, 0) + 1
        anchor = f"table-{section}" + (f"-{counted[section]}" if counted[section] > 1 else "")
        data = as_csv(part["table"])
        cite = reference(app, page, anchor, f"Table of “{heading}”, {title}", data)
        offers = _offers(app, "Cite this table", heading, [], [("BibTeX", cite)])
        saved = f"<span>{link(app, page, anchor, data, 'Table as CSV')}</span>"
        beside = f'<div class="tbc-links tbc-of-table">{saved}{offers}</div>\n'
        given = re.sub(r' id="[^"]*"', "", part["table"].partition(">")[0])
        table = f'{part["box"] or ""}<table id="{anchor}"{given}>{part["table"].partition(">")[2]}'
        return table + ("</div>" if part["box"] else "") + beside

    return _PARTS.sub(offered, body)


def as_csv(table: str) -> str:
    """Write a table of a page as CSV: the text of its cells, formulas in TeX."""
    written = io.StringIO()
    rows = ([_text(cell) for cell in _CELL.findall(row)] for row in _ROW.findall(table))
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()


def _text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


def _offer_tables(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    if document is not None and "<thead" in context.get("body", ""):
        context["body"] = with_tables(app, page, _text(context["title"]), context["body"])


def setup(app: Any) -> dict[str, bool]:
    """Connect the tables; figures are written by `book_figures`."""
    app.connect("html-page-context", _offer_tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
