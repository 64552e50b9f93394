"""What figures and tables offer: their data, an entry to cite and a snippet, and the same in a browser."""

import csv
import gzip
import hashlib
import html
import io
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import axe
import offers
import pytest
from browser import HTML, PHONE, show
from PIL import Image

from companion.figures.figure_reader import Shown

CSV = "# figure demo\nblock,coupling\n1,0.25\n"


def book(folder: Path, address: str = "") -> SimpleNamespace:
    builder = SimpleNamespace(get_target_uri=lambda page: f"{page}.html")
    return SimpleNamespace(outdir=folder, builder=builder, config=SimpleNamespace(html_baseurl=address))


def test_short_data_are_inlined_and_long_data_compressed(tmp_path):
    short = offers.link(book(tmp_path), "book/depth", "demo", CSV)
    assert short.startswith('<a download="demo.csv" href="data:text/csv;charset=utf-8,') and short.endswith(">CSV</a>")
    assert unquote(re.search(r'href="[^,]*,([^"]*)"', short)[1]) == CSV and not list(tmp_path.iterdir())
    long = CSV * 400
    links = {offers.link(book(tmp_path), page, "demo", long) for page in ("book/depth", "book/nulls")}
    (file,) = (tmp_path / "_downloads" / "figures").iterdir()
    assert links == {f'<a download="demo.csv.gz" href="../_downloads/figures/{file.name}">CSV (gzip)</a>'}
    assert gzip.decompress(file.read_bytes()).decode() == long


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shown(**changed: str) -> Shown:
    given = {"markup": "", "name": "demo", "caption": "A & 5% of B_1. And more.", "origin": "", "drawn_by": ""}
    return Shown(**{**given, "csv": CSV, "images": "", **changed})


def test_figure_citation_holds_number_address_version_and_digest(tmp_path):
    arguments = ("Figure 3", "book/depth", "fig-demo", "abc.svg", "Coupling from 0.", ["<a>Notebook</a>"])
    there = book(tmp_path, "https://example.org/")
    made = offers.of_figure(there, "book/depth", shown(origin="model a · seed 0"), *arguments)
    assert '<summary aria-label="Source: Figure 3">Source</summary>' in made
    assert '<li><a download="demo.svg" href="../_images/abc.svg">SVG</a></li><li><a download="demo.csv"' in made
    assert "<li><a>Notebook</a></li></ul>" in made and '<pre class="tbc-provenance">model a · seed 0</pre>' in made
    bibtex, snippet = (html.unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", made, re.DOTALL))
    assert bibtex.startswith("@misc{coupling-demo,\n") and r"{Figure 3: A \& 5\% of B\_1}" in bibtex
    assert "= {https://example.org/book/depth.html#fig-demo}" in bibtex and f"data sha256 {digest(CSV)}" in bibtex
    assert re.search(r"version +\= \{\d+\.\d+\.\d+\}", bibtex)
    assert '<img src="https://example.org/_images/abc.svg" alt="Coupling from 0.">' in snippet
    assert "<figcaption>Figure 3. A &amp; 5% of B_1. And more. <a href=" in snippet and "folder of the book" not in made
    # Of a notebook's own figure the model is part of the key; without an address a script puts it.
    page = "results/m/depth"
    made = offers.of_figure(book(tmp_path), page, shown(), "", page, "fig-demo", "a.png", "", [])
    assert "@misc{coupling-m-demo," in made and '<span class="tbc-root"></span>results/m/depth.html#fig-demo' in made
    assert '<a download="demo.png"' in made and made.count("tbc-root") == 3 and "folder of the book" in made


def test_tables_with_heads_get_anchor_data_and_citation(tmp_path):
    table = """<section class="tex2jax_ignore" id="sizes">
<h2>Sizes &amp; more<a class="headerlink" href="#sizes">#</a></h2>
<div class="pst-scrollable-table-container"><table class="table" id="id1">
<thead><tr><th class="head"><p>model</p></th><th class="head"><p>blocks, <em>all</em></p></th></tr></thead>
<tbody><tr><td><p><code>nano</code></p></td><td><p>12</p></td></tr></tbody></table>
</div>
<table class="dataframe" border="1"><thead><tr><th></th><th>n</th></tr></thead><tr><th>0</th><td>7</td></tr></table>
<table class="table"><tbody><tr><td>no head</td></tr></tbody></table></section>"""
    made = offers.with_tables(book(tmp_path), "book/models", "Models", table)
    assert '<table id="table-sizes" class="table">' in made and '<table id="table-sizes-2" class="dataframe"' in made
    assert made.count("Table as CSV</a>") == made.count("<details") == 2 and 'id="id1"' not in made
    first, second = (unquote(found) for found in re.findall(r'href="data:[^,]*,([^"]*)"', made))
    assert list(csv.reader(io.StringIO(first))) == [["model", "blocks, all"], ["nano", "12"]]
    assert second == ",n\n0,7\n" and "</div><div" in made.replace("\n", "")
    assert f"data sha256 {digest(first)}" in made and "{Table of “Sizes &amp;amp; more”, Models}" not in made
    assert r"{Table of “Sizes \&amp; more”, Models}" in made and "models.html#table-sizes-2}" in made


@pytest.mark.browser
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_keyboard_saves_a_figure_in_page_colours(tab, scheme, tmp_path):
    tab.emulate_media(color_scheme=scheme)
    show(tab, HTML / "book" / "depth.html")
    menu = tab.locator("#fig-depth-mismatch .tbc-offers")
    menu.locator("summary").press("Enter")
    kinds = menu.locator("li").all_text_contents()[:3]
    assert [kind.partition(" ")[0] for kind in kinds] == ["SVG", "PNG", "CSV"]
    saved = {}
    for kind in kinds:
        tab.keyboard.press("Tab")
        with tab.expect_download() as waiting:
            tab.keyboard.press("Enter")
        saved[kind[:3]] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(saved[kind[:3]])
    assert saved["SVG"].name == "depth-mismatch.svg" and ":target" in saved["SVG"].read_text(encoding="utf-8")
    picture = Image.open(saved["PNG"]).convert("RGB")
    assert saved["PNG"].name == "depth-mismatch.png" and picture.width == 2160
    assert (sum(picture.getpixel((2, 2))) > 600) == (scheme == "light")
    data = saved["CSV"].read_bytes()
    text = (gzip.decompress(data) if saved["CSV"].suffix == ".gz" else data).decode()
    rows = [*csv.reader(line for line in text.splitlines() if not line.startswith("#"))]
    assert len(rows) > 2 and {len(row) for row in rows} == {len(rows[0])}
    assert f"data sha256 {digest(text)}" in menu.locator("pre:not(.tbc-provenance)").first.inner_text()
    tab.keyboard.press("Escape")
    assert not menu.evaluate("menu => menu.open")
    assert menu.locator("summary").evaluate("summary => summary === document.activeElement") and tab.wrong == []


@pytest.mark.browser
def test_open_menus_are_accessible_and_not_printed(tab):
    tab.set_viewport_size(PHONE)
    show(tab, HTML / "book" / "definitions.html")
    tab.evaluate("document.querySelectorAll('.tbc-offers').forEach(menu => { menu.open = true })")
    assert tab.locator(".tbc-offers pre:visible").count() >= 2
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert axe.findings(tab) + axe.findings(tab, "dark", colours_alone=True) + axe.unseen(tab) == []
    tab.emulate_media(media="print")
    assert tab.locator(".tbc-links:visible, .tbc-offers:visible").count() == 0
