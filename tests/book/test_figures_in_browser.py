"""Figures of the built book in headless Chromium: on a phone, enlarged, previewed, and the code that draws them."""

import re

import pytest
from browser import HTML, PHONE, book_pages, show
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_over_a_third_of_figures_have_phone_panels():
    texts = [page.read_text(encoding="utf-8") for page in book_pages()]
    figures = [found for text in texts for found in re.findall(r'<figure class="tbc-figure"[^>]* id="[^>]*>', text)]
    assert len(figures) > 100 and sum("data-windows=" in figure for figure in figures) > len(figures) / 3


def test_phone_front_page_shows_a_whole_panel_first(tab):
    tab.set_viewport_size(PHONE | {"width": 590})
    show(tab, HTML / "book" / "index.html")
    panel = "#fig-coupling-before-and-after-training .tbc-window"
    windows = tab.locator(panel)
    wide = windows.first.bounding_box()["width"]
    tab.set_viewport_size(PHONE)  # as a phone is turned
    tab.wait_for_function("([panel, wide]) => document.querySelector(panel).offsetWidth < wide", arg=[panel, wide])
    first, second = (windows.nth(place).bounding_box() for place in (0, 1))
    assert second["y"] >= first["y"] + first["height"] and first["width"] > 320
    assert first["x"] >= 0 and first["x"] + first["width"] <= PHONE["width"]


def test_panels_are_cut_exactly_in_both_themes(tab):
    # What a theme puts around a picture would move it under the windows that it is cut into.
    tab.set_viewport_size(PHONE)
    moved = "i => [getComputedStyle(i).padding, i.style.width, i.offsetWidth]"
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        show(tab, HTML / "results" / "nano-neox" / "dynamics.html")
        found = tab.locator("#fig-dynamics-carried .tbc-panels img").evaluate_all(f"all => all.map({moved})")
        shown = [(padding, float(width[:-2]), wide) for padding, width, wide in found if wide]
        assert len(shown) == len(found) / 2 > 3, scheme
        assert all(padding == "0px" and abs(width - wide) < 1 for padding, width, wide in shown), scheme


def test_figure_source_links_to_its_drawing_function(tab):
    show(tab, HTML / "book" / "depth.html")
    figure = tab.locator("#fig-depth-mismatch")
    figure.locator("summary", has_text="Source").click()
    figure.get_by_role("link", name="figures.depth.draw_map").click()
    tab.wait_for_url("**/book/api/figures.html#companion.figures.depth.draw_map")
    tab.locator('[id="companion.figures.depth.draw_map"] a[href*="_modules/"]').click()
    tab.wait_for_url("**/_modules/companion/figures/depth.html#draw_map")
    assert "def draw_map(pairs" in tab.locator("#draw_map").inner_text()
    assert tab.wrong == []


@pytest.mark.thorough
def test_api_pages_are_small_and_old_addresses_redirect(tab):
    moved = {
        "companion.figures.depth.draw_map": "api/figures.html",
        "module-coupling_lib.metrics.nulls": "api/metrics.html",
        "coupling_lib.provenance.versions": "api/ground.html",
        "coupling_lib.measure_depth": "api.html",
    }
    api = HTML / "book" / "api"
    sizes = {page.stem: page.stat().st_size for page in [*api.glob("*.html"), HTML / "book" / "api.html"]}
    assert {name: size for name, size in sizes.items() if size > 540_000} == {}
    for old, new in moved.items():
        tab.goto(f"{(HTML / 'book' / 'api.html').as_uri()}#{old}")
        tab.wait_for_url(f"**/{new}#{old}")
        assert tab.evaluate("document.getElementById(decodeURIComponent(location.hash.slice(1))) !== null")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_enter_enlarges_a_figure_and_escape_closes_it(tab, scheme):
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size(PHONE)
    show(tab, HTML / "book" / "depth.html")
    button = tab.locator("#fig-depth-mismatch").get_by_role("button", name="Enlarge Figure")
    button.press("Enter")
    image = tab.locator(f"dialog.tbc-large[open] img.only-{scheme}")
    before = image.bounding_box()["width"]
    assert before >= 675 and tab.locator("dialog.tbc-large img:visible").count() == 1
    tab.keyboard.press("+")
    assert image.bounding_box()["width"] > 1.3 * before
    tab.keyboard.press("Escape")
    # A browser says that a dialogue was closed a moment after it is.
    expect(tab.locator("dialog.tbc-large")).to_have_count(0)
    assert button.evaluate("button => button === document.activeElement")


def test_links_preview_figures_terms_and_citations(tab):
    show(tab, HTML / "book" / "depth.html")
    preview = tab.locator("[role=tooltip].link-preview")
    tab.locator('a[href="#fig-depth-mismatch"][data-preview]').focus()
    expect(preview).to_contain_text(re.compile(r"^Figure "))
    assert preview.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    tab.keyboard.press("Escape")
    expect(preview).to_have_count(0)
    tab.locator('a[href*="#term-"][data-preview]').first.hover()
    expect(preview).to_have_count(1)
    expect(preview.locator("img")).to_have_count(0)
    tab.keyboard.press("Escape")
    expect(preview).to_have_count(0)
    show(tab, HTML / "book" / "index.html")
    tab.locator('a[href*="bibliography.html#"][data-preview]').first.focus()
    expect(preview).to_contain_text("Papyan")


def test_figure_without_script_shows_picture_and_origin(plain_tab):
    plain_tab.goto((HTML / "book" / "depth.html").as_uri())
    figure = plain_tab.locator("#fig-depth-mismatch")
    assert figure.locator("img.only-light").is_visible() and not figure.locator("img.only-dark").is_visible()
    assert not figure.locator(".tbc-provenance").is_visible()
    figure.locator("summary", has_text="Source").click()
    assert figure.locator(".tbc-provenance").is_visible()
