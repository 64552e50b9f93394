"""The explorer's first screen: it opens at a diagonal with the strongest pair, says what is pointed at, and plays."""

import explorer
import numpy as np
import pytest
from browser import DESKTOP, PHONE
from test_explorer_page import NEOX, choice, opened, shown

import coupling_lib as cl

pytestmark = pytest.mark.browser


def coupling_of(step: int) -> np.ndarray:
    """Measure the coupling of all pairs at a step of the training, mean over prompts."""
    ds = cl.sweep(cl.measure_depth, cl.load_model(NEOX, revision=f"step{step}"), cl.load_prompts(n=12), ks=(10,))
    return 1 - ds["normalized_miscoupling"].sel(k=10).mean("prompt").values


def strongest(coupling: np.ndarray) -> str:
    """Name the most coupled pair of different blocks, as the page does."""
    first, second = np.unravel_index(np.where(np.eye(len(coupling)), -1, coupling).argmax(), coupling.shape)
    return f"Blocks {first + 1} and {second + 1}: coupling {coupling[first, second]:.3f}"


def test_explorer_opens_with_the_strongest_pair(tab):
    opened(tab)
    line = tab.locator(".cx-here")
    assert tab.locator(".cx output").first.text_content() == "step 100"
    assert line.text_content().startswith(strongest(coupling_of(100))) and ", by chance 0.05" in line.text_content()
    assert float(tab.locator(".cx-squares figure").first.get_attribute("data-share")) > 85
    tab.get_by_label("Training: ").fill("7")
    tab.wait_for_url("**state=step10000**")
    assert line.text_content().startswith(strongest(coupling_of(10_000))) and "l" not in choice(tab)
    opened(tab, f"model={NEOX}&state=step100&l=3&m=9")
    tab.get_by_label("Training: ").fill("7")
    tab.wait_for_url("**state=step10000**")
    assert line.text_content().startswith(f"Blocks 3 and 9: coupling {coupling_of(10_000)[2, 8]:.3f}, by chance ")
    assert (choice(tab)["l"], choice(tab)["m"]) == ("3", "9") and tab.wrong == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_map_fits_first_screen_and_describes_hovered_pairs(tab, size):
    opened(tab, size=size)
    grid, line = tab.locator("[role=grid]").first, tab.locator(".cx-here")
    box, coupling = grid.bounding_box(), coupling_of(100)
    assert box["y"] + box["height"] <= size["height"] and box["width"] > 250
    before = line.text_content()
    place = {"x": box["width"] * 9.5 / 12, "y": box["height"] * 1.5 / 12}
    grid.hover(position=place)
    assert line.text_content().startswith(f"Blocks 2 and 10: coupling {coupling[1, 9]:.3f}, by chance 0.05")
    grid.hover(position={"x": box["width"] * 3.5 / 12, "y": box["height"] * 3.5 / 12})
    assert line.text_content() == "Block 4 with itself: coupled by construction"
    tab.mouse.move(2, 2)
    assert line.text_content() == before and "l" not in choice(tab)
    grid.click(position=place)
    assert choice(tab)["l"] == "2" and choice(tab)["m"] == "10"
    assert line.text_content().startswith(f"Blocks 2 and 10: coupling {coupling[1, 9]:.3f}") and tab.wrong == []


def test_training_plays_or_steps_with_reduced_motion(tab):
    opened(tab, "l=4&m=5")
    step = tab.locator(".cx output").first
    # Noted in the page: each is shown for a second, which may pass before one asks for it.
    step.evaluate("""step => {
      window.played = [];
      new MutationObserver(() => { played.push(step.textContent); }).observe(step, {childList: true});
    }""")
    tab.get_by_role("button", name="Play").click()
    tab.wait_for_function("played.includes('step 32')")
    tab.get_by_role("button", name="Pause").press("Enter")
    tab.locator("#coupling-explorer:not([aria-busy])").wait_for()
    assert tab.evaluate("played.slice(0, 3)") == ["step 0 (untrained)", "step 10", "step 32"]
    stopped = step.text_content()
    tab.wait_for_timeout(1300)
    assert step.text_content() == stopped and choice(tab)["l"] == "4"
    tab.emulate_media(reduced_motion="reduce")
    opened(tab, "state=step3162")
    following = tab.get_by_role("button", name="Next step")
    for name in ("step 10,000 (trained)", "step 0 (untrained)"):
        following.click()
        step.filter(has_text=name).wait_for()
        tab.wait_for_timeout(1100)
        assert step.text_content() == name
    opened(tab, "model=smollm2-135m")
    assert following.is_hidden() and tab.wrong == []


def test_decoders_show_what_was_measured_of_them(tab):
    opened(tab, "model=gemma3-270m")
    options = tab.get_by_label("Model", exact=True).locator("option")
    assert options.all_text_contents() == list(explorer.MODELS.values())
    assert options.evaluate_all("all => all.filter(o => o.disabled).map(o => o.value)") == []
    assert tab.locator("[role=gridcell]").count() == 18 * 18 and len(shown(tab)) == 4
    assert tab.get_by_text("The matrices of this pair were not kept: they are not measured here.").is_visible()
    opened(tab, "model=gemma3-270m&l=7&m=8")
    assert tab.locator(".cx-squares canvas:visible").count() == 4 and tab.wrong == []
