"""Prints the built book as one PDF: contents with page numbers, then every page of `_toc.yml`. Run by `make pdf`.

Chromium prints each page as a reader sees it on paper; what is joined gets one numbering, bookmarks, and links that
lead to the printed page instead of a file of this machine.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from complete import pages
from playwright.sync_api import Page, sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import Link
from pypdf.generic import ArrayObject, Fit, NameObject
from template import from_template

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
OUT = ROOT / "_build" / "transformer-block-coupling.pdf"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

TEMPLATES = Path(__file__).with_name("templates")
MARGIN = {"top": "16mm", "bottom": "18mm", "left": "16mm", "right": "16mm"}
NUMBER = '<div style="width: 100%; text-align: center; font: 9px sans-serif"><span class="pageNumber"></span></div>'


@dataclass
class Entry:
    """A page of the book: its file, depth in the contents, caption and title."""

    path: Path
    depth: int
    caption: str
    title: str = ""
    first: int = 0


def entries(toc: dict[str, Any], site: Path) -> list[Entry]:
    """List the pages in reading order."""

    def below(parts: list[dict[str, Any]], depth: int, caption: str) -> Iterator[Entry]:
        for part in parts:
            yield Entry(site / f"{part['file']}.html", depth, caption)
            yield from below(part.get("sections", []), depth + 1, caption)

    found = [Entry(site / f"{toc['root']}.html", 0, "")]
    for part in toc.get("parts", [{"caption": "", "chapters": toc.get("chapters", [])}]):
        found += below(part["chapters"], 0, part.get("caption", ""))
    if len(found) != len(pages(toc)):
        raise ValueError("_toc.yml has pages in a form that the contents of the PDF do not know")
    return found


def printed(tab: Page, address: str, file: Path, **options: Any) -> PdfReader:
    """Print what lies at an address."""
    tab.goto(address, wait_until="load")
    tab.add_style_tag(path=TEMPLATES / "paper.css")
    tab.evaluate((TEMPLATES / "ready.js").read_text(encoding="utf-8"))
    tab.pdf(path=file, format="A4", margin=MARGIN, **options)
    return PdfReader(file)


def contents(found: list[Entry], title: str, offset: int) -> str:
    """Write the table of contents; pages are numbered from the first of the PDF, `offset` of which are contents."""
    return from_template("contents.html.jinja", title=title, entries=found, offset=offset)


def destination(link: Any, named: dict[str, int], first: dict[Path, int], start: int) -> int | None:
    """Find the page that a link leads to: by a name within the same document, or by the file of another."""
    if "/Dest" in link:
        within = named.get(str(link["/Dest"]))
        return None if within is None else start + within
    address = urlsplit(str(link.get("/A", {}).get("/URI", "")))
    return first.get(Path(unquote(address.path))) if address.scheme == "file" else None


def leads_outside(link: Any) -> bool:
    """Return whether a link is to the web and stays as it is."""
    return urlsplit(str(link.get("/A", {}).get("/URI", ""))).scheme in ("https", "http", "mailto")


def join(parts: list[PdfReader], found: list[Entry], numbers: PdfReader, title: str) -> PdfWriter:
    """Join the parts, contents first, into one document with links, bookmarks and numbers."""
    writer = PdfWriter()
    for part in parts:
        writer.append(part, import_outline=False)
    starts = [0, *accumulate(len(part.pages) for part in parts)]
    first = {entry.path: starts[at] for at, entry in enumerate(found, start=1)}
    for part, start in zip(parts, starts, strict=False):
        named = {name: part.get_destination_page_number(to) for name, to in part.named_destinations.items()}
        for at in range(start, start + len(part.pages)):
            page = writer.pages[at]
            links = list(page.get("/Annots", []))
            page[NameObject("/Annots")] = ArrayObject(link for link in links if leads_outside(link.get_object()))
            for link in (link.get_object() for link in links):
                to = destination(link, named, first, start)
                if to is not None:
                    writer.add_annotation(at, Link(rect=link["/Rect"], target_page_index=to, fit=Fit.fit()))
            page.merge_page(numbers.pages[at])
            page.compress_content_streams()  # what is merged is not compressed any more
    above: list[Any] = []
    for entry in found:
        parent = above[entry.depth - 1] if entry.depth else None
        above[entry.depth :] = [
            writer.add_outline_item(title=entry.title, page_number=first[entry.path], parent=parent)
        ]
    writer.add_metadata({"/Title": title})
    writer.compress_identical_objects()
    return writer


def print_book(site: Path, toc: dict[str, Any], title: str, out: Path) -> int:
    """Print all pages of a built book into one file, and return the number of its sheets."""
    found = entries(toc, site)
    browser_file = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser_file:
        sys.exit("error: no Chromium found; the PDF is printed by it: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        work = Path(folder)
        browser = playwright.chromium.launch(executable_path=browser_file, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1000, "height": 1400}, color_scheme="light")
        tab.set_default_timeout(0)  # where other programs have the processor, a page may take a minute to load
        parts, sheets = [], 0
        for at, entry in enumerate(found):
            part = printed(tab, entry.path.as_uri(), work / f"{at}.pdf", print_background=True)
            heading = tab.locator("article h1").first.evaluate("e => e.firstChild.textContent")
            entry.title, entry.first = " ".join(heading.split()), sheets
            parts.append(part)
            sheets += len(part.pages)
            print(f"   {entry.path.relative_to(site)}: {len(part.pages)} sheets", flush=True)
        # The first time to see how many sheets the contents themselves take.
        offset = 0
        for _ in range(2):
            (work / "contents.html").write_text(contents(found, title, offset), encoding="utf-8")
            listed = printed(tab, (work / "contents.html").as_uri(), work / f"contents{offset}.pdf")
            offset = len(listed.pages)
        blank = '<div style="break-after: page">&nbsp;</div>' * (offset + sheets - 1)
        (work / "numbers.html").write_text(f"<!DOCTYPE html>{blank}&nbsp;", encoding="utf-8")
        foot = {"display_header_footer": True, "header_template": "<span></span>", "footer_template": NUMBER}
        numbers = printed(tab, (work / "numbers.html").as_uri(), work / "numbers.pdf", **foot)
        browser.close()
        out.parent.mkdir(parents=True, exist_ok=True)
        join([listed, *parts], found, numbers, title).write(out)
    return offset + sheets


if __name__ == "__main__":
    began = time.monotonic()
    settings, listed = (
        yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in ("_config.yml", "_toc.yml")
    )
    count = print_book(SITE, listed, settings["title"], OUT)
    size, took = OUT.stat().st_size / 1e6, time.monotonic() - began
    print(f"{OUT.relative_to(ROOT)}: {count} sheets, {size:.1f} MB, printed in {took:.0f} s")
