"""The built book in headless Chromium, opened from the disk: what a reader without a network sees."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe
import phone
import pytest
from browser import DESKTOP, HTML, PHONE, pages_by_kind, show
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

SHOWN = Path(__file__).with_name("shown.js").read_text(encoding="utf-8")
READERS = {"light": ("light", DESKTOP), "dark on a phone": ("dark", PHONE)}


def readings() -> Iterator[Any]:
    """Each page with each of its readers; every second page of a kind of its own stands for all, with one of them."""
    first_of_kind, others = pages_by_kind()
    for number, page in enumerate([*first_of_kind, *others]):
        for turn, (name, reader) in enumerate(READERS.items()):
            marks = [pytest.mark.thorough] if page in others or number % 4 != 2 * turn else []
            yield pytest.param(page, *reader, id=f"{name}-{page.relative_to(HTML).as_posix()}", marks=marks)


# A page is loaded once for each reader: loading takes as long as half of what is asked of it.
@pytest.mark.parametrize(("page", "scheme", "size"), readings())
def test_page_renders_without_faults_and_is_accessible(tab, page, scheme, size):
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size(size)
    show(tab, page)
    shown = tab.evaluate(SHOWN, scheme)
    assert tab.title() and shown["headings"] >= 1
    assert tab.wrong == []
    assert shown["broken"] == []
    assert shown["errors"] == 0 and shown["set"] >= shown["written"]
    assert shown["theme"] == scheme
    assert shown["figures"] == []
    assert shown["width"] <= size["width"]
    assert size != PHONE or phone.faults(tab, page, scheme) == {}
    assert axe.findings(tab) == []
    assert axe.unseen(tab) == []


FAULTY = """<!DOCTYPE html><html data-theme="light">
<style>article {{ width: 3000px }} .grey {{ background: grey }}</style>
<article><h1>A</h1><p class="math">x</p><mjx-merror>y</mjx-merror><img src="data:image/png;base64,AAAA">
<img src="missing.png"><figure class="tbc-figure"><img class="only-light" style="display: none" src="{picture}">
<img class="only-dark" src="{picture}"></figure><div class="grey"><figure class="tbc-figure"><img class="only-light"
style="filter: blur(1px)" src="{picture}"><figcaption>B</figcaption></figure></div></article></html>"""
PICTURE = "data:image/svg+xml,<svg xmlns=%27http://www.w3.org/2000/svg%27 width=%279%27 height=%279%27/>"


def test_every_fault_of_a_page_is_seen(tab, tmp_path):
    (tmp_path / "page.html").write_text(FAULTY.format(picture=PICTURE), encoding="utf-8")
    tab.set_viewport_size(PHONE)
    show(tab, tmp_path / "page.html")
    shown = tab.evaluate(SHOWN, "light")
    missing = (tmp_path / "missing.png").as_uri()
    assert f"failed: {missing}" in tab.wrong
    assert shown.pop("width") > 3000
    figures = ["its picture is hidden", "the other scheme's picture is shown", "no caption"]
    figures += ["a ground behind the picture", "a filter over the picture"]
    broken = ["data:image/png;base64,AAAA", missing[:80]]
    counts = {"theme": "light", "headings": 1, "written": 1, "set": 0, "errors": 1}
    assert shown == counts | {"figures": figures, "broken": broken}


# What is wider than its column, and so scrolls, which nothing on the page says.
CUT = """kind => [...document.querySelectorAll(`article ${kind}`)]
  .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth).map(e => e.textContent)"""


@pytest.mark.parametrize("name", ["from-scratch", "gotchas", "own-model"])
def test_code_that_teaches_stands_whole_in_its_column(tab, name):
    show(tab, HTML / "book" / f"{name}.html")
    assert tab.locator("article pre").count() > 0 and tab.evaluate(CUT, "pre") == []


def test_a_table_that_scrolls_says_so(tab):
    script = """box => [box.scrollWidth > box.clientWidth, getComputedStyle(box, "::before").content]"""
    for size, scrolls in ((PHONE, True), (DESKTOP, False)):
        tab.set_viewport_size(size)
        show(tab, HTML / "book" / "definitions.html")
        table = tab.locator(".pst-scrollable-table-container").first
        expect(table).to_have_attribute("tabindex", "0" if scrolls else "-1")
        assert table.evaluate(script) == [scrolls, '"The table scrolls sideways."' if scrolls else "none"]


def test_the_definitions_stand_whole_on_a_phone(tab):
    tab.set_viewport_size(PHONE)
    show(tab, HTML / "book" / "idea.html")
    assert tab.locator("article div.math mjx-container").count() == 6 and tab.evaluate(CUT, "div.math") == []
    assert tab.evaluate(CUT, "div.math mjx-container") == []
    assert tab.locator("article .math mjx-container").count() > 20


def test_the_button_switches_between_light_and_dark(tab):
    tab.emulate_media(color_scheme="light")
    show(tab, HTML / "book" / "index.html")
    seen = set()
    for _ in range(3):
        tab.locator("button.theme-switch-button:visible").first.click()
        seen.add(tab.evaluate("document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}
