"""The atlas: measured and digitised values apart, axes; in a browser sorting, filtering, two models side by side."""

import re

import atlas
import axe
import pytest
from browser import HTML, PHONE, address, show

from companion.tables import card as cards
from companion.tables.generalization import figure_1a

PAGE = HTML / "book" / "models.html"
ROWS = "[...document.querySelectorAll('.atlas-scroll tbody tr')].filter(row => !row.hidden)"
NAMES = f"{ROWS}.map(row => row.cells[0].textContent)"


def test_rows_mark_cards_and_points_and_show_numbers():
    text = atlas.atlas_page()
    rows = re.findall(r'<tr class="(\w+)"><th scope="row">(.+?)</th><td><span[^>]*>(.)</span> (\w+)</td>', text)
    measured = [("measured", cards.name_of(card), "●", "measured") for card in cards.atlas()]
    digitised = [("digitised", name, "◇", "digitised") for name in figure_1a()["model"]]
    assert rows == measured + digitised and len(measured) >= 10 and len(digitised) == 28
    assert text.count('<g class="atlas-point') == len(rows)
    assert re.findall(r"(?:<circle|<path) ", text).count("<path ") == 28
    card = next(card for card in cards.atlas() if cards.name_of(card) == "nano-neox-step100")
    row = atlas.of_card(card)
    whole = card["coupling"]["whole"]
    assert row.values["coupling"] == whole["all"]["mean"] and row.away == whole["by_distance"]
    assert row.values["known"] == card["known_from"]["median"] / 12 and row.values["width"] == 96
    ends = f"[{whole['all']['low']:.3f}, {whole['all']['high']:.3f}]"
    assert atlas.shown(row, "coupling") == f"{whole['all']['mean']:.3f} <small>{ends}</small>"
    assert atlas.shown(row, "score") == ""


def test_axes_have_round_labels_and_enclose_their_points():
    shares, sizes = [0.2, 0.4, 0.6, 0.8], [50, 100, 200, 500, 1000, 2000, 5000]
    for values, log, ticks in (((0.05, 0.95), False, shares), ((36, 5120), True, sizes), ((2.0, 2.0), False, [2.0])):
        low, high, found = atlas.axis(values, log)
        assert low < min(values) and high > max(values) and found == pytest.approx(ticks), values
    places, labels = atlas.placed([1.0, None, 3.0], False, 100, 200)
    assert places[1] is None and 100 < places[0] < places[2] < 300 and labels[0][1] == "1"


@pytest.mark.browser
def test_sorting_and_filtering_update_table_and_figure(tab):
    show(tab, PAGE)
    assert tab.evaluate(NAMES) == [cards.name_of(card) for card in cards.atlas()]
    assert tab.locator(".atlas-point.digitised:not([hidden])").count() == 0
    tab.get_by_label("Rows").select_option("all")
    everything = tab.evaluate(NAMES)
    tab.locator("thead th[data-name=coupling] button").press("Enter")
    tab.keyboard.press("Enter")
    values = tab.evaluate(f"{ROWS}.map(row => +row.cells[2].dataset.value)")
    assert values == sorted(values, reverse=True) and len(values) == len(everything)
    assert tab.locator("thead th[aria-sort=descending]").inner_text().startswith("coupling")
    tab.get_by_label("Name contains").fill("nano-neox")
    assert sorted(tab.evaluate(NAMES)) == sorted(name for name in everything if "nano-neox" in name)
    status = tab.locator(".atlas [role=status]").inner_text()
    assert status == f"4 of {len(everything)} models in the table, 4 in the figure"
    assert tab.locator(".atlas-point:not([hidden])").count() == 4
    tab.get_by_label("Name contains").fill("")
    tab.get_by_label("Rows").select_option("digitised")
    assert len(tab.evaluate(NAMES)) == 28
    tab.locator(".atlas-axes select").nth(1).select_option("line")
    assert tab.locator(".atlas-point:not([hidden])").count() == 0 and tab.wrong == []


@pytest.mark.browser
def test_accessible_atlas_changes_axes_and_compares_two_models(tab):
    show(tab, PAGE)
    assert axe.findings(tab, "light") + axe.findings(tab, "dark") == []
    point = tab.locator(".atlas-point:not([hidden])").first
    before = point.get_attribute("transform")
    tab.get_by_label("Across").select_option("blocks")
    assert point.get_attribute("transform") != before
    assert tab.locator(".atlas-x-name").text_content() == "blocks"
    tab.locator(".atlas-two select").first.select_option("nano-neox-step100|measured")
    tab.locator(".atlas-two select").last.select_option("gpt2-large|digitised")
    heads = tab.locator(".atlas-pair thead th").all_inner_texts()
    assert heads == ["nano-neox-step100", "gpt2-large"] and tab.locator(".atlas-pair polyline").count() == 1
    assert "digitised" in tab.locator(".atlas-pair tbody tr").first.inner_text()


@pytest.mark.browser
def test_address_restores_axes_and_phone_labels_stay_legible(tab):
    show(tab, PAGE)
    tab.get_by_label("Across").select_option("rank")
    tab.locator(".atlas-axes select").nth(1).select_option("null")
    tab.get_by_label("Rows").select_option("digitised")
    assert address(tab).endswith("#x=rank&y=null&rows=digitised")
    tab.goto("about:blank")
    tab.set_viewport_size(PHONE)
    tab.goto(f"{PAGE.as_uri()}#y=null&x=nothing", wait_until="load")
    assert [tab.locator(f".atlas-{axis}-name").text_content() for axis in "xy"] == ["width", "by chance"]
    labels = tab.locator(".atlas-figure .atlas-y").first.locator("text").all_text_contents()
    assert len(labels) == len(set(labels)) > 2
    drawn = tab.locator(".atlas-figure svg").first
    scale = drawn.evaluate("e => e.getBoundingClientRect().width / e.viewBox.baseVal.width")
    assert 13 * scale > 10 and tab.wrong == []
