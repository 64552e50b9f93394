"""Ten steps of a reader who is new to all of this and has a laptop or a phone."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browser import HTML, PHONE
from playwright.sync_api import expect
from reader import Reader, shell

pytestmark = pytest.mark.browser


@pytest.fixture
def reader(tab) -> Reader:
    return Reader(tab)


def test_1_coupling_is_explained_in_the_first_screen(reader, tab):
    first = tab.locator("article p").filter(has_text=re.compile(r"\bcoupl(ed|ing)\b"))
    assert reader.screens(first) < 0.6
    assert reader.screens(tab.locator("article .story-stage canvas")) < 2


def test_2_quality_prediction_is_answered_in_first_screen(reader, tab):
    reader.follow("generalization.html", text="predict|generali[sz]ation|quality")
    verdict = tab.locator("article p").filter(has_text=re.compile(r"quality|score|loss", re.IGNORECASE))
    assert reader.screens(verdict) < 1


def test_3_explorer_blocks_are_chosen_by_keys(reader, tab):
    reader.follow("explorer.html", text="explore")
    tab.locator("#coupling-explorer[data-ready]").wait_for()
    tab.locator('[role=gridcell][tabindex="0"]').focus()
    before = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    tab.keyboard.press("ArrowRight")
    after = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    pattern = r"Jacobian of block \d+, vectors of block \d+: \d\.\d+"
    assert re.fullmatch(pattern, before) and re.fullmatch(pattern, after) and before != after


def test_4_new_words_are_explained_in_place(reader, tab):
    tab.locator("article a[data-preview][href*='#term-']:visible").first.hover()
    tooltip = tab.locator("[role=tooltip]")
    expect(tooltip).to_be_visible()
    assert len(tooltip.inner_text().split()) >= 8
    tab.keyboard.press("Escape")
    expect(tooltip).to_have_count(0)


def test_5_one_table_links_models_to_measurements(reader, tab):
    reader.follow("models.html", text="models")
    table = tab.locator("article table").first
    assert reader.screens(table) < 1
    head = table.locator("th").all_text_contents()
    assert {"smollm2-135m", "nano-neox"} <= {text.strip() for text in head}
    table.locator("a[href$='nano-neox/depth.html']").click()
    reader.arrived("nano-neox/depth.html")
    assert "nano-neox" in tab.locator("article h1:visible").first.inner_text()


def test_6_own_model_command_fits_the_first_screen(reader, tab):
    reader.follow("own-model.html", text="own model")
    command = tab.locator("article pre").filter(has_text="papermill")
    assert reader.screens(command) < 1
    assert command.first.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_7_help_command_prints_the_parameters(reader, tab, tmp_path):
    reader.follow("own-model.html", text="own model")
    output = shell(reader.block("--help-notebook").strip(), tmp_path)
    assert re.search(r"^\s+k: int .*number of singular vectors", output, re.MULTILINE)


def on_a_phone(tab, page: str, text: str) -> None:
    """A reader who has come to a page by the menu of a phone, and finds that it fits."""
    reader = Reader(tab, PHONE)
    tab.locator("button.primary-toggle:visible").first.click()
    reader.follow(page, text)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_8_phone_menu_leads_to_a_fitting_chapter(tab):
    on_a_phone(tab, "depth.html", text="depth")
    assert tab.locator("article h1").first.is_visible()
    tab.locator("figure.tbc-figure img:visible").first.scroll_into_view_if_needed()
    assert tab.locator("figure.tbc-figure").first.bounding_box()["width"] <= PHONE["width"]


def test_9_on_a_phone_the_claims_fit(tab):
    on_a_phone(tab, "claims.html", text="claims|what holds")
    assert tab.locator("article :text('contradicted'):visible").count() >= 1


@pytest.fixture
def served() -> Iterator[str]:
    """The address of the book on a server of this machine."""
    handler = partial(Quiet, directory=HTML)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_10_dark_stays_dark_from_page_to_page(tab, served):
    # On a disk Chromium gives a page now and then an empty storage, for as long as it is open; the next has all again.
    # Of a server's pages each has what the one before it kept.
    tab.emulate_media(color_scheme="light")
    reader = Reader(tab)
    tab.goto(f"{served}/book/index.html")
    theme = "document.documentElement.dataset.theme"
    for _ in range(2):
        if tab.evaluate(theme) != "dark":
            tab.locator("button.theme-switch-button:visible").first.click()
    assert tab.evaluate(theme) == "dark"
    reader.follow("idea.html", text="idea")
    tab.wait_for_function(f"{theme} === 'dark'")
