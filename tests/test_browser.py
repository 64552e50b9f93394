"""The built book in headless Chromium, opened from the disk: what a reader without a network sees."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from test_book import HTML, each_page

pytestmark = pytest.mark.browser

CHROMIUM = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
PHONE = {"width": 420, "height": 900}
# Chromium reports what it does for itself, apart from the page, unless it is told not to.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    (path, *_) = filter(None, CHROMIUM)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Page]:
    """A fresh tab that records what goes wrong in it."""
    page = chromium.new_page()
    page.wrong = []
    page.on("console", lambda m: page.wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("requestfailed", lambda request: page.wrong.append(f"failed: {request.url}"))
    page.on("request", lambda r: page.wrong.append(f"left: {r.url}") if not r.url.startswith(LOCAL) else None)
    yield page
    page.close()


LOCAL = ("file:", "data:", "blob:")
# What lies behind an image: its own ground, its figure's and that of the notebook cell around it.
GROUNDS = "([image, figure]) => [image, figure, figure.parentElement].map(e => getComputedStyle(e).backgroundColor)"


def show(tab: Page, page: Path) -> None:
    tab.goto(page.as_uri(), wait_until="load")
    # Mathematics is set after the page has loaded.
    tab.evaluate("window.MathJax ? MathJax.startup.promise.then(() => true) : true")


@each_page
def test_page_opens_without_an_error_and_without_leaving_the_machine(tab, page):
    show(tab, page)
    assert tab.title()
    assert tab.locator("article h1").count() >= 1
    assert tab.wrong == []


@each_page
def test_every_image_can_be_drawn(tab, page):
    show(tab, page)
    broken = tab.evaluate(
        """async () => {
            const images = [...document.images];
            const drawn = await Promise.all(images.map(i => i.decode().then(() => i.naturalWidth > 0, () => false)));
            return images.filter((_, n) => !drawn[n]).map(i => i.src.slice(0, 80));
        }"""
    )
    assert broken == []


@each_page
def test_mathematics_is_set(tab, page):
    show(tab, page)
    written = tab.locator("article .math").count()
    assert tab.locator("article .math mjx-container").count() >= written
    assert tab.locator("mjx-merror, [data-mml-node=merror]").count() == 0


def test_the_idea_is_full_of_mathematics(tab):
    show(tab, HTML / "book" / "idea.html")
    assert tab.locator("article .math mjx-container").count() > 20


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_shows_the_figures_of_its_colour_scheme_and_every_caption(tab, page, scheme):
    tab.emulate_media(color_scheme=scheme)
    show(tab, page)
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    other = {"light": "dark", "dark": "light"}[scheme]
    figures = tab.locator("figure.tbc-figure")
    for number in range(figures.count()):
        figure = figures.nth(number)
        assert figure.locator(f"img.only-{scheme}").is_visible()
        assert not figure.locator(f"img.only-{other}").is_visible()
        assert figure.locator("figcaption").is_visible()
        image = figure.locator(f"img.only-{scheme}")
        ground = tab.evaluate(GROUNDS, [image.element_handle(), figure.element_handle()])
        assert set(ground) == {"rgba(0, 0, 0, 0)"}
        assert image.evaluate("i => getComputedStyle(i).filter") == "none"


@each_page
def test_page_fits_a_phone(tab, page):
    tab.set_viewport_size(PHONE)
    show(tab, page)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_button_switches_between_light_and_dark(tab):
    tab.emulate_media(color_scheme="light")
    show(tab, HTML / "book" / "index.html")
    seen = set()
    for _ in range(3):
        tab.locator("button.theme-switch-button:visible").first.click()
        seen.add(tab.evaluate("document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}


def test_search_finds_a_word_of_the_book(tab):
    tab.goto((HTML / "search.html").as_uri() + "?q=Jacobian", wait_until="load")
    tab.locator("#search-results li a").first.wait_for(timeout=20_000)
    assert tab.locator("#search-results li a").count() > 2


@pytest.mark.parametrize("model", ["nano-neox", "nano-llama"])
def test_the_data_of_a_figure_downloads_as_csv(tab, model, tmp_path):
    show(tab, HTML / "results" / model / "depth.html")
    with tab.expect_download() as waiting:
        tab.locator("figure.tbc-figure a[download]").first.click()
    saved = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(saved)
    assert saved.suffix == ".csv"
    rows = [line for line in saved.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(rows) > 2
    assert {row.count(",") for row in rows} == {rows[0].count(",")}
