"""How heavy the built book is: the site, each page, and what the front page loads."""

from __future__ import annotations

import gzip
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import test_browser
from test_book import HTML

pytestmark = pytest.mark.browser
chromium, tab = test_browser.chromium, test_browser.tab


def test_the_site_takes_at_most_45_megabytes():
    # Of these, 6 are the model that runs in a page, 5 the data of the explorer and 4 the sources of the library.
    assert sum(path.stat().st_size for path in HTML.rglob("*") if path.is_file()) < 45_000_000


def test_no_page_takes_more_than_one_and_a_half_megabytes():
    sizes = {path.relative_to(HTML).as_posix(): path.stat().st_size for path in HTML.rglob("*.html")}
    assert len(sizes) > 40 and {name: size for name, size in sizes.items() if size > 1_500_000} == {}


def test_the_front_page_loads_at_most_800_kilobytes(tab):
    loaded = set()
    tab.on("request", lambda request: loaded.add(request.url))
    test_browser.show(tab, HTML / "book" / "index.html")
    files = [Path(unquote(urlsplit(address).path)) for address in loaded if address.startswith("file:")]
    assert len(files) > 10
    # Every server packs text; pictures that are drawn in text are text too.
    packed = {path.name: len(gzip.compress(path.read_bytes())) for path in files}
    assert sum(packed.values()) < 800_000, sorted(packed.items(), key=lambda one: -one[1])[:5]
