"""The explorer's first screen, and what is chosen: what a model lacks is named, a second network stands beside it."""

import re

import axe
import explorer
import numpy as np
import pytest
from browser import DESKTOP, PHONE, address, first_of
from test_explorer_page import HERE, NEOX, choice, measured, opened, shown, status_text, unfolded

import coupling_lib as cl

pytestmark = pytest.mark.browser

FULL = explorer.MODELS["smollm2-135m"]
LACKS = {
    "": ("", {}),
    "model=nothing&l=-3&m=x&prompt=y&state=z&reading=w&part=v&with=u": (
        "There is no model “nothing” here. Shown instead: nano-neox. There is no part “v” here. Shown instead: whole "
        "Jacobians. nano-neox has no “z”, no prompt “y”, no reading “w”, no block -3 or x (it has 12). Shown instead: "
        "step 100, the mean over prompts, Coupling, blocks 4 and 5. There is no “u” to compare "
        "with here. Shown instead: one network alone.",
        {"state": "step100", "reading": "paper", "part": "whole"},
    ),
    "l=99&m=1e9": ("nano-neox has no block 99 or 1e9 (it has 12). Shown instead: blocks 4 and 5.", {}),
}  # fmt: skip


@pytest.mark.parametrize("asked", first_of(LACKS, 2))
def test_missing_choices_in_an_address_are_reported(tab, asked):
    opened(tab, asked)
    line, rest = LACKS[asked]
    assert tab.locator("#coupling-explorer").get_attribute("data-ready") == f"{NEOX} 12"
    assert tab.locator('[role=gridcell][aria-selected="true"]').count() == 1 and status_text(tab) == line
    wanted = {"model": NEOX, "prompt": "mean"} | rest
    assert choice(tab) == (wanted if asked else {}) and tab.wrong == []


def test_changing_the_model_keeps_what_it_has(tab):
    opened(tab, "model=smollm2-135m&l=12&m=14&prompt=gsm8k-style-13&reading=project&part=shared&state=untrained")
    tab.get_by_label("Model", exact=True).select_option(NEOX)
    tab.locator(f"#coupling-explorer[data-ready='{NEOX} 12']").wait_for()
    line = r"nano-neox has no block 14 \(it has 12\). Shown instead: (blocks \d+ and \d+)."
    instead = re.fullmatch(line, status_text(tab))[1]
    assert tab.locator("caption").filter(has_text=instead.capitalize()).is_visible()
    kept = {"prompt": "gsm8k-style-13", "reading": "project", "part": "shared"}
    assert choice(tab) == {"model": NEOX, "state": "step0"} | kept
    tab.get_by_label("Training: ").fill("4")
    tab.wait_for_function("location.hash.includes('step316')")
    tab.get_by_label("Model", exact=True).select_option("smollm2-135m")
    tab.locator("#coupling-explorer[data-ready='smollm2-135m 30']").wait_for()
    # A step in the middle has no counterpart.
    assert status_text(tab) == "" and "state" not in choice(tab)
    assert tab.locator(".cx output").first.text_content() == "trained"
    opened(tab, f"model={NEOX}&prompt=arc-style-13&token=9&l=3&m=4")
    assert tab.locator(".cx-prompt mark").text_content() == "car"
    tab.get_by_label("Model", exact=True).select_option("smollm2-135m")
    tab.locator("#coupling-explorer[data-ready='smollm2-135m 30']").wait_for()
    assert status_text(tab) == f"{FULL} has no token “car” at position 9 of this prompt. Shown instead: its last token."
    assert "token" not in choice(tab) and choice(tab)["prompt"] == "arc-style-13"
    assert tab.locator(".cx-prompt mark").text_content() == "?" and tab.wrong == []


def test_compared_networks_share_a_scale_and_name_gaps(tab):
    opened(tab, f"model={NEOX}&l=5&m=6&state=step10000")
    unfolded(tab)
    assert tab.locator(".cx-map:visible").count() == 1
    others = tab.get_by_label("Compare with")
    assert others.input_value() == "" and others.locator("option").count() == 1 + 8 + 2 * (len(HERE) - 1)
    others.select_option(f"{NEOX}.step0")
    tab.locator(".cx-map:visible").nth(1).wait_for()
    assert choice(tab)["with"] == f"{NEOX}.step0"
    titles = ["nano-neox, step 10,000 (trained)", "nano-neox, step 0 (untrained)"]
    assert tab.locator(".cx-title").all_text_contents() == titles
    wanted = []
    for ds in (measured(10_000), measured(0)):
        pairs = 1 - ds["normalized_miscoupling"].sel(k=10).mean("prompt").values
        null = 1 - cl.null_of(ds, "normalized_miscoupling")["value"].sel(k=10).values
        wanted += [pairs[4, 5], null[4], pairs[5, 4], null[5]]
    assert shown(tab) == pytest.approx(wanted, abs=6e-4)
    # The matrices of both pairs have one scale as well.
    assert len(set(tab.locator(".cx-entry:visible").all_text_contents())) == 1
    tab.locator("[role=grid]").nth(1).locator("[role=gridcell]").nth(2 * 12 + 8).click()
    tab.wait_for_function("location.hash.includes('m=9')")
    assert choice(tab)["l"] == "3"
    again = shown(tab)
    opened(tab, address(tab).partition("#")[2])
    assert shown(tab) == again
    opened(tab, "model=smollm2-135m&l=20&m=21")
    alone = shown(tab)
    opened(tab, f"model=smollm2-135m&l=20&m=21&with={NEOX}.step100")
    assert status_text(tab) == "nano-neox has no block 20 or 21 (it has 12). Shown instead: its map alone."
    assert shown(tab) == alone and tab.locator('[role=gridcell][aria-selected="true"]').count() == 1 and tab.wrong == []


def test_colours_run_from_0_to_1_and_follow_themes(tab):
    for name in ("smollm2-135m", NEOX):
        opened(tab, f"model={name}&l=5&m=6")
        shades = tab.evaluate("window.couplingExplorer.settings.book.light.ink")
        cell = tab.locator('[role=gridcell][aria-selected="true"]')
        label, colour = cell.get_attribute("aria-label"), cell.evaluate("cell => cell.style.backgroundColor")
        wanted = shades[round(float(label.rpartition(" ")[2]) * (len(shades) - 1))]
        assert colour == "rgb({}, {}, {})".format(*bytes.fromhex(wanted.removeprefix("#")))
    colour = "getComputedStyle(document.querySelector('.cx-cell')).backgroundColor"
    assert tab.evaluate(colour) == "rgb(196, 196, 196)"
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    tab.wait_for_function(f"{colour} === 'rgb(90, 90, 90)'")


def test_map_is_reached_by_few_keys(tab):
    def tabs(start: str) -> int:
        """Count keys from a link at the top of the page, which is followed, to the map."""
        opened(tab, f"model={NEOX}&l=3&m=4")
        for count in range(1, 60):
            focused = tab.evaluate("document.activeElement.textContent.trim()")
            tab.keyboard.press("Enter" if focused == start else "Tab")
            if tab.evaluate("document.activeElement.getAttribute('role')") == "gridcell":
                return count
        return 60

    assert tabs("Skip to the map") <= 4
    focused = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("Jacobian of block 3, vectors of")
    assert tabs("Skip to main content") <= 24
    regions = "[...document.querySelectorAll('.cx [role=region], .cx[role=region]')].filter(e => e.checkVisibility())"
    names = ["Explorer", "What is shown", "Map", "The chosen pair", "Singular values", "A measurement of your own"]
    assert tab.evaluate(f"{regions}.map(e => e.getAttribute('aria-label'))") == names
    assert axe.unseen(tab) == [] and tab.wrong == []


def coupling_of(step: int) -> np.ndarray:
    return 1 - measured(step)["normalized_miscoupling"].sel(k=10).mean("prompt").values


def strongest(coupling: np.ndarray) -> str:
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
