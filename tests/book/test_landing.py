"""The front page: its answer and its story come first, and its verdicts are counted."""

import pytest
import scorecard
from browser import DESKTOP, HTML, PHONE, show


@pytest.mark.browser
@pytest.mark.parametrize("size", [DESKTOP, {"width": 1280, "height": 720}, PHONE], ids=["desktop", "laptop", "phone"])
def test_first_screen_answers_and_verdicts_lead_to_claims(tab, size):
    tab.set_viewport_size(size)
    show(tab, HTML / "book" / "index.html")
    answer = tab.locator("article p").first
    assert answer.inner_text().startswith("In small models") and answer.inner_text().endswith("not measured here.")
    for place in (answer, tab.locator(".story-controls"), tab.locator(".story-stage canvas")):
        box = place.bounding_box()
        assert box["y"] > 0 and box["y"] + box["height"] < size["height"], place
    tab.locator(".verdict-strip a").first.click()
    tab.wait_for_url("**/book/claims.html")


def test_verdict_strip_counts_every_claim_per_place(monkeypatch):
    monkeypatch.setattr(scorecard, "from_template", lambda name, counted: counted)
    counted, n = scorecard.verdicts_strip(), len(scorecard.judge_all(scorecard.paths.RESULTS))
    assert n > 20 and {place: sum(found.values()) for place, found in counted.items()} == dict.fromkeys(counted, n)
