"""The claims in a browser: counts that choose the cards by pointer and keys, the address, a phone, no script."""

from __future__ import annotations

import pytest
import verdicts
from browser import DESKTOP, HTML, address, show
from claims import PLACES, read_claims

pytestmark = pytest.mark.browser


PAGE = HTML / "book" / "claims.html"
SHOWN = "() => [...document.querySelectorAll('.claim')].filter(e => e.checkVisibility()).length"


def pressed(tab) -> list[str]:
    return tab.eval_on_selector_all(".scorecard [aria-pressed=true]", "all => all.map(e => e.innerText.trim())")


def test_every_count_is_a_button_that_shows_as_many_cards(tab):
    show(tab, PAGE)
    everything = tab.evaluate(SHOWN)
    assert everything == 27
    items = tab.locator(".scorecard li[data-place]")
    assert items.count() >= len(PLACES)
    for at in range(items.count()):
        item = items.nth(at)
        place, verdict = item.get_attribute("data-place"), item.get_attribute("data-verdict")
        assert place in PLACES and verdict in verdicts.VERDICTS
        item.locator("button").click()
        count = int(item.locator("b").inner_text())
        assert tab.evaluate(SHOWN) == count and len(pressed(tab)) == 1
        assert tab.locator(".scorecard [role=status]").inner_text() == (
            f"{count} of {everything} claims: {verdict} {PLACES[place]}"
        )
        assert address(tab).endswith(f"#{place}={verdict.replace(' ', '-')}")
    item.locator("button").click()
    assert tab.evaluate(SHOWN) == everything and pressed(tab) == [] and "#" not in address(tab)
    assert tab.wrong == []


def test_keys_choose_and_undo(tab):
    show(tab, PAGE)
    first = tab.locator(".scorecard li button").first
    first.focus()
    tab.keyboard.press("Enter")
    assert first.get_attribute("aria-pressed") == "true" and tab.evaluate(SHOWN) < 27
    while "Show all claims" not in tab.evaluate("document.activeElement.innerText"):
        tab.keyboard.press("Tab")
    tab.keyboard.press("Space")
    assert tab.evaluate(SHOWN) == 27
    assert tab.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"


def test_an_address_opens_what_it_names(tab):
    show(tab, PAGE)
    place, verdict = (tab.locator(".scorecard li").first.get_attribute(f"data-{name}") for name in ("place", "verdict"))
    tab.goto("about:blank")
    tab.goto(f"{PAGE.as_uri()}#{place}={verdict.replace(' ', '-')}", wait_until="load")
    chosen = tab.evaluate(SHOWN)
    assert chosen < 27 and len(pressed(tab)) == 1
    hidden = tab.evaluate("[...document.querySelectorAll('.claim')].findIndex(e => !e.checkVisibility())")
    target = f"claim-{read_claims()[hidden]['id']}"
    tab.evaluate(f"location.hash = '#{target}'")
    tab.wait_for_function(f"({SHOWN})() === 27")
    assert pressed(tab) == []
    top = tab.evaluate(f"document.getElementById('{target}').getBoundingClientRect().top")
    assert 0 <= top < DESKTOP["height"]


def test_numbers_are_folded_under_a_summary_that_names_its_claim(tab):
    show(tab, PAGE)
    details = tab.locator(".claim details")
    assert details.count() == 27 and tab.locator(".claim details[open]").count() == 0
    said = tab.eval_on_selector_all(".claim summary", "all => all.map(e => e.textContent)")
    assert len(set(said)) == 27 and all(
        text.endswith(f" of “{c['claim']}”") for c, text in zip(read_claims(), said, strict=True)
    )
    tab.locator(".claim summary").first.click()
    assert "What is asked:" in details.first.inner_text()


def test_a_verdict_is_told_by_its_shape_and_its_word(tab):
    show(tab, PAGE)
    shapes = tab.eval_on_selector_all(
        ".verdict", "all => all.map(e => [e.textContent, e.querySelector('use').getAttribute('href')])"
    )
    assert len({word for word, _ in shapes}) == len({shape for _, shape in shapes}) >= 3
    sizes = tab.eval_on_selector_all(".verdict-shape", "all => all.map(e => e.getBoundingClientRect().width)")
    assert min(sizes) >= 10


def test_on_a_phone_a_card_is_one_column_and_nothing_scrolls_sideways(tab):
    tab.set_viewport_size({"width": 390, "height": 844})
    show(tab, PAGE)
    tab.evaluate("document.querySelectorAll('.claim details').forEach(e => { e.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    wide = tab.eval_on_selector_all(
        ".claim, .scorecard", "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
    )
    assert wide == 0
    here, paper = (tab.locator(f".claim-{side}").first.bounding_box() for side in ("here", "paper"))
    assert paper["y"] >= here["y"] + here["height"]
    heights = tab.eval_on_selector_all(".scorecard li button", "all => all.map(e => e.offsetHeight)")
    assert min(heights) >= 44
