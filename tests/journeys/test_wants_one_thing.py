"""Ten readers who each want one thing: what leads to it, and how many screens down, in light, dark and on a phone."""

import csv
import re

import pytest
from browser import DESKTOP, HTML, PHONE, first_of
from playwright.sync_api import expect
from reader import Reader

pytestmark = pytest.mark.browser

KINDS = {"light": ("light", DESKTOP), "phone": ("light", PHONE), "dark": ("dark", DESKTOP)}


@pytest.fixture(params=first_of(KINDS, 2))
def reader(request, tab) -> Reader:
    """One on the front page; on a phone one more click may be needed, which opens the menu."""
    scheme, size = KINDS[request.param]
    tab.emulate_media(color_scheme=scheme)
    reader = Reader(tab, size)
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    return reader


def test_a_headline_verdict_is_in_first_screen(reader):
    reader.within(reader.tab.locator("article p:has(strong)").filter(has_text="In small models coupling correlates"))
    assert reader.tab.locator("article h1").inner_text().startswith("Does coupling predict quality?")


def test_b_figure_links_to_its_drawing_code(reader):
    figure = reader.tab.locator("#fig-generalization-paper")
    figure.locator("summary", has_text="Source").click()
    figure.get_by_role("link", name="figures.generalization.").click()
    reader.arrived("api/figures.html#companion.figures.generalization.")
    name = reader.tab.url.partition("#")[2]
    reader.tab.locator(f"[id='{name}'] a[href*='_modules/']").click()
    reader.arrived("_modules/companion/figures/generalization.html")
    code = reader.tab.locator(f"[id='{name.rpartition('.')[2]}']")
    assert f"def {name.rpartition('.')[2]}(" in code.inner_text()
    expect(code).to_be_in_viewport()
    assert code.evaluate("e => e.getBoundingClientRect().top < innerHeight")


def test_c_own_model_command_is_one_click_away(reader):
    reader.follow("own-model.html", text="own model|your model")
    reader.within(reader.tab.locator("article pre").filter(has_text="papermill notebooks/depth.ipynb"))


def test_d_a_figure_as_svg(reader):
    offers = reader.tab.locator("#fig-generalization-paper .tbc-offers")
    offers.locator("summary").click()
    name, drawing = reader.downloaded(offers.get_by_role("link", name="SVG"))
    assert name == "generalization-paper.svg"
    assert drawing.decode("utf-8").startswith("<svg ")


def test_e_explorer_map_is_reached_by_keyboard(tab):
    reader, keys = Reader(tab), 0
    for link in ("a[href$='explorer.html']", ".cx-skip a"):
        tab.locator(link).first.wait_for(state="attached")
        while not tab.evaluate(f'document.activeElement.matches("{link}")'):
            tab.keyboard.press("Tab")
            keys += 1
            assert keys < 15, tab.evaluate("document.activeElement.outerHTML")
        tab.keyboard.press("Enter")
        keys += 1
        reader.arrived("explorer.html")
    tab.wait_for_function("document.activeElement.getAttribute('role') === 'gridcell'")
    assert keys <= 15


def test_f_the_paper_s_spelling_finds_the_chapter(reader):
    found = [address for _, address in reader.search("generalization")]
    assert any("book/generalization.html" in address for address in found[:3]), found[:5]


def test_g_what_a_word_means(reader):
    reader.tab.locator("article a[href*='#term-coupling']:visible").first.click()
    reader.arrived("methods.html#term-coupling")
    term = reader.tab.locator("#term-coupling")
    meaning = term.locator("xpath=following-sibling::dd[1]").inner_text()
    assert len(meaning.split()) >= 8
    expect(term).to_be_in_viewport()
    assert 0 <= term.evaluate("e => e.getBoundingClientRect().top") < reader.tab.viewport_size["height"]


def test_h_the_data_of_a_table_as_csv(reader):
    reader.follow("scale.html", text="scale|takes|memory")
    _, data = reader.downloaded(reader.tab.locator("article a[download$='.csv']", has_text="Table as CSV").first)
    head, *rows = csv.reader(data.decode("utf-8").splitlines())
    shown = reader.tab.locator("article table:has(thead)").first
    assert [text.strip() for text in shown.locator("th").all_text_contents()] == head
    assert len(rows) == shown.locator("tbody tr").count() > 3
    reader.within(shown, screens=4)


def test_i_cite_the_book(reader):
    reader.follow("reproduce.html#cite", text="cite")
    reader.within(reader.tab.locator("article pre").filter(has_text="@inproceedings"))
    assert "@software{" in reader.block("@software")


def test_j_unmeasured_models_have_a_command(reader):
    paragraph = reader.tab.locator("article p").filter(has_text="own models are not measured here")
    assert paragraph.count() == 1
    reader.follow("claims.html", text="claims|not measured")
    reader.tab.locator("summary", has_text="The commands").click()
    command = reader.tab.locator("article pre").filter(has_text="-p model llama3-8b")
    assert command.first.is_visible()


def test_verdict_command_and_citation_work_without_script(plain_tab):
    plain_tab.goto((HTML / "book" / "index.html").as_uri())
    verdict = plain_tab.locator("article p").filter(has_text="In small models coupling correlates")
    assert verdict.bounding_box()["y"] < plain_tab.viewport_size["height"]
    for page, holds in (("own-model.html", "papermill notebooks/depth.ipynb"), ("reproduce.html#cite", "@software{")):
        plain_tab.goto((HTML / "book" / "index.html").as_uri())
        plain_tab.locator(f"article a[href$='{page}']:visible").first.click()
        plain_tab.wait_for_url(f"**/{page}")
        assert plain_tab.locator("article pre").filter(has_text=holds).first.is_visible()


def test_figure_offers_work_without_script(plain_tab):
    plain_tab.goto((HTML / "book" / "depth.html").as_uri())
    offers = plain_tab.locator("#fig-depth-mismatch .tbc-offers")
    offers.locator("summary").click()
    links = offers.locator("a[download]")
    assert [text.partition(" ")[0] for text in links.all_text_contents()] == ["SVG", "CSV"]
    drawing = links.first.get_attribute("href")
    assert (HTML / "book" / drawing).resolve().read_text(encoding="utf-8").startswith("<svg ")
    assert re.search(
        r"@misc\{coupling-depth-mismatch,.*sha256 [0-9a-f]{16}",
        offers.locator("pre:not(.tbc-provenance)").first.inner_text(),
        re.S,
    )
