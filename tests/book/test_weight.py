"""How heavy the built book is: the site, each page, and what the front page loads."""

import gzip
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pandas as pd
import pytest
from browser import HTML, requested, show

pytestmark = pytest.mark.browser


def test_the_site_takes_at_most_42_megabytes():
    # Of these, 9 are the drawings, a third of that packed for a page on a disk to save as pixels, 7 the data of the
    # explorer (half of them the traceless part's), 6 the model that runs in a page, and 5 the sources of the library.
    assert sum(path.stat().st_size for path in HTML.rglob("*") if path.is_file()) < 42_000_000


def test_pages_share_one_file_of_large_tables():
    links = {}
    for page in ("book/depth.html", "results/smollm2-135m/tokens.html"):
        text = (HTML / page).read_text(encoding="utf-8")
        for address in re.findall(r'<a download="tokens-self\.csv\.gz" href="([^"]+)">CSV \(gzip\)</a>', text):
            links[page] = ((HTML / page).parent / address).resolve()
    assert len(links) == 2 and len(set(links.values())) == 1
    table = pd.read_csv(next(iter(links.values())), comment="#")
    assert len(table) > 1000 and table.columns[0] == "network"


def test_every_page_stays_below_1500_kilobytes():
    sizes = {path.relative_to(HTML).as_posix(): path.stat().st_size for path in HTML.rglob("*.html")}
    assert len(sizes) > 40 and {name: size for name, size in sizes.items() if size > 1_500_000} == {}


def test_no_page_with_its_files_exceeds_three_megabytes():
    shared = ("_static/", "searchindex.js")  # what every page loads is read once
    sizes = {}
    for page in HTML.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        own = {(page.parent / unquote(part)).resolve() for part in re.findall(r' (?:src|href)="([^"#?:]+)', text)}
        own = {file for file in own if file.is_file() and file.suffix in (".svg", ".png", ".js", ".gz", ".csv")}
        own = {file for file in own if not file.relative_to(HTML).as_posix().startswith(shared)}
        sizes[page.relative_to(HTML).as_posix()] = page.stat().st_size + sum(file.stat().st_size for file in own)
    assert len(sizes) > 40 and {name: size for name, size in sizes.items() if size > 3_000_000} == {}


def test_the_front_page_loads_at_most_800_kilobytes(tab):
    with requested(tab) as loaded:
        show(tab, HTML / "book" / "index.html")
    files = {Path(unquote(urlsplit(address).path)) for address in loaded if address.startswith("file:")}
    assert len(files) > 10
    # Every server packs text; pictures that are drawn in text are text too.
    packed = {path.name: len(gzip.compress(path.read_bytes())) for path in files}
    assert sum(packed.values()) < 800_000, sorted(packed.items(), key=lambda one: -one[1])[:5]
