"""What is chosen in the explorer: what a model lacks is named, and a second network stands beside the first."""

import re

import axe
import explorer
import pytest
from browser import address, first_of
from test_explorer_page import HERE, NEOX, choice, measured, opened, shown, status_text, unfolded

import coupling_lib as cl

pytestmark = pytest.mark.browser

__all__ = ["measured"]

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
    assert status_text(tab) == "" and "state" not in choice(tab) and tab.wrong == []
    assert tab.locator(".cx output").first.text_content() == "trained"


def test_token_choice_is_kept_only_where_tokens_agree(tab):
    opened(tab, f"model={NEOX}&prompt=arc-style-13&token=9&l=3&m=4")
    assert tab.locator(".cx-prompt mark").text_content() == "car"
    tab.get_by_label("Model", exact=True).select_option("smollm2-135m")
    tab.locator("#coupling-explorer[data-ready='smollm2-135m 30']").wait_for()
    assert status_text(tab) == f"{FULL} has no token “car” at position 9 of this prompt. Shown instead: its last token."
    assert "token" not in choice(tab) and choice(tab)["prompt"] == "arc-style-13"
    assert tab.locator(".cx-prompt mark").text_content() == "?" and tab.wrong == []


def test_compared_networks_share_one_colour_scale(tab, measured):
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
    first = cl.sweep(cl.measure_depth, cl.load_model(NEOX, revision="step0"), cl.load_prompts(n=12), ks=(10,))
    wanted = []
    for ds in (measured, first):
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
    assert shown(tab) == again and tab.wrong == []


def test_colour_scale_runs_from_0_to_1(tab):
    for name in (NEOX, "smollm2-135m"):
        opened(tab, f"model={name}&l=5&m=6")
        shades = tab.evaluate("window.couplingExplorer.settings.book.light.ink")
        cell = tab.locator('[role=gridcell][aria-selected="true"]')
        label, colour = cell.get_attribute("aria-label"), cell.evaluate("cell => cell.style.backgroundColor")
        wanted = shades[round(float(label.rpartition(" ")[2]) * (len(shades) - 1))]
        assert colour == "rgb({}, {}, {})".format(*bytes.fromhex(wanted.removeprefix("#")))


def test_pair_missing_in_the_compared_model_is_reported(tab):
    opened(tab, "model=smollm2-135m&l=20&m=21")
    alone = shown(tab)
    opened(tab, f"model=smollm2-135m&l=20&m=21&with={NEOX}.step100")
    assert status_text(tab) == "nano-neox has no block 20 or 21 (it has 12). Shown instead: its map alone."
    assert shown(tab) == alone and tab.locator('[role=gridcell][aria-selected="true"]').count() == 1 and tab.wrong == []


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
