"""The story of the front page: it shows what was measured, moves by keys, and stands still without a script."""

import json

import numpy as np
import pytest
import story
from browser import DESKTOP, HTML, PHONE, show
from playwright.sync_api import expect

from companion.figures import story as figures
from companion.figures import style
from companion.tables import generalization
from companion.tables.files import read_table
from coupling_lib import paths

PAGE = HTML / "book" / "index.html"
# Where `make book` writes; the tests' own results lie elsewhere.
EXPLORED = paths.ROOT / "results" / "book" / "explorer" / "explorer-data"
LEAST_FRAMES, SLOWER = 30, 4
LABELS = [*(f"Step {n:,}:" for n in (0, 10, 32, 100, 1000, 10_000)), "Coupling in Smol", "The paper"]


def test_decoder_coupling_is_that_of_their_notebooks():
    known = read_table(paths.DATA / "decoders.csv").set_index(["model", "name"])["value"]
    found = story.decoders()
    blocks = {"SmolLM2-135M": 30, "Gemma 3 270M": 18, "Qwen2.5-Coder-0.5B": 24}
    assert {name: values.shape for name, values in found.items()} == {name: (n, n) for name, n in blocks.items()}
    for model, values in zip(story.DECODERS[1:], list(found.values())[1:], strict=True):
        assert float(values.mean()) == pytest.approx(float(known[model, "depth-coupling-trained"]), abs=1e-6)
    assert min(found, key=lambda name: float(found[name].mean())) == "Gemma 3 270M"


@pytest.mark.browser
def test_training_matches_cards_and_peaks_at_step_100():
    one = story.training(EXPLORED)
    for step in (0, 100, 1000, 10_000):
        card = json.loads((paths.DATA / "atlas" / f"nano-neox-step{step}.json").read_text(encoding="utf-8"))
        # A card has 24 prompts, the book 12.
        low, high = (card["coupling"]["whole"]["all"][end] for end in ("low", "high"))
        assert low - 0.005 < float(one.mean_coupling.sel(step=step)) < high + 0.005, step
        assert one.by_chance == pytest.approx(card["coupling"]["whole"]["null"]["mean"], abs=1e-3)
    energy = one.A**2
    share = {int(step): np.trace(energy.sel(step=step)) / float(energy.sel(step=step).sum()) for step in one.step}
    assert share[100] > 0.85 and share[0] < 0.2 and share[10_000] < 0.2 and max(share, key=share.get) == 100
    assert one.loss.diff("step").max() < 0
    data = story.moving(one, story.decoders(), generalization.figure_1a())
    assert [data["steps"][at] for at in data["stops"]] == list(story.STOPS) and len(data["points"]) == 28
    assert data["maps"][3][1] == pytest.approx(float(one.coupling.sel(step=100)[0, 1]), abs=5e-4)
    assert data["maps"][3][0] is None and len(json.dumps(data)) < 60_000
    drawn = figures.take_stills(one, story.decoders(), generalization.figure_1a())
    with style.theme("light"):
        shown = [axes.get_title() for axes in figures.draw_stills(drawn).get_axes()]
    assert [title for title in shown if title.startswith("step")] == ["step 0", "step 100", "step 1,000", "step 10,000"]


@pytest.mark.browser
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_keys_lead_through_the_story_on_one_screen(tab, size):
    tab.set_viewport_size(size)
    tab.emulate_media(reduced_motion="reduce")
    show(tab, PAGE)
    stage, slider, canvas = (tab.locator(f".story-stage{part}") for part in ("", " input", " canvas"))
    slider.focus()
    pictures = []
    for label in LABELS:
        expect(tab.locator(".story-now .story-label")).to_contain_text(label)
        told = slider.get_attribute("aria-valuetext")
        assert told.startswith(label) and canvas.get_attribute("aria-label") == told
        pictures.append(canvas.evaluate("canvas => canvas.toDataURL()"))
        box, text = stage.bounding_box(), tab.locator(".story-now .story-label").bounding_box()
        if label != "Step 0:":  # which is shown from where the figure comes into sight
            bottom = box["y"] + box["height"]
            assert 0 <= box["y"] and bottom <= text["y"] and text["y"] + text["height"] < size["height"], label
        tab.keyboard.press("ArrowRight")
    assert len(set(pictures)) == 8
    slider.blur()
    tab.keyboard.press("ArrowLeft")
    expect(tab.locator(".story-now .story-label")).to_contain_text("Coupling in Smol")
    assert tab.locator("#fig-landing-story").is_hidden() and tab.wrong == []


@pytest.mark.browser
def test_story_plays_at_thirty_frames_per_second(tab):
    tab.set_viewport_size(DESKTOP)
    tab.emulate_media(reduced_motion="no-preference")
    show(tab, PAGE)
    button = tab.locator(".story-controls button")
    button.click()
    assert button.inner_text() == "Pause"
    # Looked for in the page at each frame: it is there for less than two seconds.
    tab.wait_for_function("document.querySelector('.story-now .story-label').textContent.includes('Step 32:')")
    button.press("Enter")
    assert button.inner_text() == "Play"
    # Processor time of all that a frame takes (scripts, layout, paint), which does not depend on what else runs; a
    # processor throttled four times takes four times as long for it.
    meter = tab.context.new_cdp_session(tab)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _busy(meter)
    frames = tab.evaluate("""() => new Promise((done) => {
        let frames = 0;
        (function next() {
            scrollBy({ top: 8, behavior: "instant" });
            ++frames < 100 ? requestAnimationFrame(next) : done(frames);
        })();
    })""")
    assert SLOWER * (_busy(meter) - before) / frames < 1 / LEAST_FRAMES and tab.wrong == []


def _busy(meter) -> float:
    return {one["name"]: one["value"] for one in meter.send("Performance.getMetrics")["metrics"]}["TaskDuration"]


@pytest.mark.browser
def test_printed_or_scriptless_story_shows_stills_and_text(tab, plain_tab):
    show(tab, PAGE)
    tab.emulate_media(media="print")
    plain_tab.goto(PAGE.as_uri())
    for page in (tab, plain_tab):
        assert page.locator("#fig-landing-story img.only-light").is_visible()
        assert page.locator(".story-stop").count() == 8 and page.locator(".story-stop").first.is_visible()
    assert tab.locator(".story-stage").is_hidden() and plain_tab.locator(".story-stage").count() == 0
