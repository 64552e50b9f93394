"""The table of claims in a browser: a row a claim, details by keys, the address, a phone."""

import pytest
import verdicts
from browser import DESKTOP, HTML, PHONE, show
from claims import PLACES, headline_ids, read_claims
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PAGE = HTML / "book" / "claims.html"


def test_rows_show_values_and_verdicts_at_their_address(tab):
    show(tab, PAGE)
    bodies = tab.locator(".claims .claim")
    assert bodies.count() == len(read_claims()) == 27
    first = tab.eval_on_selector_all(".claims .claim [id^=claim-]", "all => all.map(e => e.id)")
    assert list(dict.fromkeys(first))[: len(headline_ids())] == [f"claim-{one}" for one in headline_ids()]
    for at in range(bodies.count()):
        body = bodies.nth(at)
        assert len(body.locator(".claim-paper").inner_text()) > 10
        for cell in body.locator(".claim-verdict").all():
            place, verdict = cell.get_attribute("data-place"), cell.get_attribute("data-verdict")
            assert verdict in verdicts.VERDICTS and verdict in cell.inner_text()
            # Only a claim without any verdict is called not measured.
            assert place in PLACES or (verdict == verdicts.MISSING and body.locator(".claim-verdict").count() == 1)
        shown = [cell.inner_text() for cell in body.locator(".claim-ours").all()]
        measured = body.locator(f"[data-verdict='{verdicts.MISSING}']").count() == 0
        assert all(("[" in text and "]" in text) == measured for text in shown), shown
    target = f"claim-{read_claims()[-1]['id']}"
    tab.set_viewport_size(DESKTOP)
    tab.goto(f"{PAGE.as_uri()}#{target}", wait_until="load")
    expect(tab.locator(f"#{target}")).to_be_in_viewport()  # a browser scrolls to an address with a frame of its own
    top = tab.evaluate(f"document.getElementById('{target}').closest('.claim').getBoundingClientRect().top")
    assert 0 <= top < DESKTOP["height"] and tab.wrong == []


def test_folded_details_open_and_verdicts_differ_by_shape(tab):
    show(tab, PAGE)
    details = tab.locator(".claim details")
    assert details.count() == 27 and tab.locator(".claim details[open]").count() == 0
    summaries = tab.eval_on_selector_all(".claim summary", "all => all.map(e => e.textContent)")
    claims = [text.partition(" of “")[2].removesuffix("”") for text in summaries]
    assert sorted(claims) == sorted(one["claim"] for one in read_claims())
    details.first.locator("summary").press("Enter")
    assert "What would refute it:" in details.first.inner_text()
    shape = "e.querySelector('use').getAttribute('href')"
    shapes = tab.eval_on_selector_all(".verdict", f"all => all.map(e => [e.textContent, {shape}])")
    assert len({word for word, _ in shapes}) == len({shape for _, shape in shapes}) >= 3
    sizes = tab.eval_on_selector_all(".verdict-shape", "all => all.map(e => e.getBoundingClientRect().width)")
    assert min(sizes) >= 10


def test_phone_shows_labelled_claims_without_sideways_scrolling(tab):
    tab.set_viewport_size(PHONE)
    show(tab, PAGE)
    tab.evaluate("document.querySelectorAll('.claim details').forEach(e => { e.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
    assert tab.eval_on_selector_all(".claim, .claims td, .scorecard", wide) == 0
    first = tab.locator(".claim").first
    paper, ours = (first.locator(f".claim-{name}").first for name in ("paper", "ours"))
    assert ours.bounding_box()["y"] >= paper.bounding_box()["y"] + paper.bounding_box()["height"]
    assert paper.evaluate("e => getComputedStyle(e, '::before').content") == '"The paper"'
