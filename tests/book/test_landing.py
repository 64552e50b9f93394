"""The front page's answer: a figure that moves by keyboard, says the very numbers of the chapter, and stands still."""

from __future__ import annotations

import gzip
import json
import re

import landing
import numpy as np
import pytest
from browser import HTML, PHONE, show

from companion.figures import generalization as figures
from companion.tables import correlations, generalization

PAGE = HTML / "book" / "index.html"


def test_every_moment_has_the_correlation_of_the_chapter():
    suite = generalization.suite()
    found = landing.moments(suite)
    signs = correlations.sign_along_training(suite, "negative_loss", figures.READING).set_index("step")
    assert found["steps"] == signs.index.tolist() == [32, 100, 300, 600]
    told = found["readings"]["whole blocks"]["r"]
    assert told == [pytest.approx(row, abs=1e-4) for row in signs[["r", "low", "high"]].to_numpy().tolist()]
    # Shuffled coordinates leave of coupling what random directions have, at every step and in every model.
    assert np.abs(found["readings"]["blocks with shuffled coordinates"]["coupling"]).max() < 0.05
    assert np.min(found["readings"]["their traceless part"]["coupling"][-1]) > 0.04
    assert all(len(found["models"]) == len(row) == signs["models"].iloc[0] for row in found["loss"])


def test_what_moves_is_small():
    script = (landing.paths.ROOT / "book" / "_static" / "landing.js").read_bytes()
    assert len(gzip.compress(script)) < 25_000 and len(json.dumps(landing.moments(generalization.suite()))) < 300_000


@pytest.mark.browser
@pytest.mark.parametrize("size", [{"width": 1280, "height": 720}, PHONE], ids=["desktop", "phone"])
def test_the_slider_drives_the_models_by_keyboard(tab, size):
    tab.set_viewport_size(size)
    tab.emulate_media(reduced_motion="reduce")
    show(tab, PAGE)
    said, slider = tab.locator("#answer-said"), tab.get_by_label("Training step")
    assert re.match(r"Step 600: r = −\d\.\d\d .* the more coupled model is the worse one", said.inner_text())
    before = tab.locator(".answer-figure .model").first.get_attribute("cy")
    slider.focus()
    tab.keyboard.press("Home")
    assert re.match(r"Step 32: r = \+\d\.\d\d .* the more coupled model is the better one", said.inner_text())
    assert float(tab.locator(".answer-figure .model").first.get_attribute("cy")) > float(before)
    assert slider.get_attribute("aria-valuetext") == "step 32"
    tab.get_by_label("Coupling of").select_option("blocks with shuffled coordinates")
    assert "no relation is shown" in said.inner_text() and tab.wrong == []
    assert tab.locator(".answer figure:not(.answer-figure)").first.is_hidden()


@pytest.mark.browser
def test_the_answer_and_the_strip_of_verdicts_stand_in_the_first_screen(tab):
    tab.set_viewport_size({"width": 1280, "height": 720})
    show(tab, PAGE)
    for place in ("#answer-said", ".verdict-strip", ".answer-controls"):
        box = tab.locator(place).bounding_box()
        assert box["y"] + box["height"] < 720, place
    tab.locator(".verdict-strip a").first.click()
    tab.wait_for_url("**/book/claims.html")


def test_the_strip_of_verdicts_counts_every_claim_in_every_place(monkeypatch):
    monkeypatch.setattr(landing, "from_template", lambda name, counted: counted)
    counted, n = landing.verdicts_strip(), len(landing.judge_all(landing.paths.RESULTS))
    assert n > 20 and {place: sum(found.values()) for place, found in counted.items()} == dict.fromkeys(counted, n)
