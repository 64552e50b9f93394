"""The explorer in the built book: on its own page and in chapters, by keys, by pointer and by its address."""

import functools
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlparse

import explorer
import numpy as np
import packing
import phone
import pytest
from browser import DESKTOP, HTML, NARROW, address, first_of, requested

import coupling_lib as cl

pytestmark = pytest.mark.browser


PAGE = HTML / "book" / "explorer.html"
NEOX = "nano-neox"
CHAPTERS = {"emergence": NEOX, "depth": "smollm2-135m"}
HERE = list(explorer.MODELS)  # each of which is measured here


def opened(tab, view: str = "", size: dict[str, int] = DESKTOP, page=PAGE) -> None:
    tab.set_viewport_size(size)
    tab.goto("about:blank")
    tab.goto(f"{page.as_uri()}#{view}", wait_until="load")
    tab.locator("#coupling-explorer[data-ready]").wait_for()


def unfolded(tab) -> None:
    tab.locator(".cx-more").evaluate("fold => { fold.open = true }")


def shown(tab) -> list[float]:
    """Return the numbers beside the map: the pair's coupling and its value by chance, in both directions."""
    return [float(text) for text in tab.locator(".cx-numbers:visible td").all_text_contents() if text]


def status_text(tab) -> str:
    return tab.locator(".cx-notice").text_content()


def choice(tab) -> dict[str, str]:
    return dict(parse_qsl(address(tab).partition("#")[2]))


@functools.cache
def measured(step: int = 10_000):
    """Measure a step of the small model's training as Depth does."""
    return cl.sweep(cl.measure_depth, cl.load_model(NEOX, revision=f"step{step}"), cl.load_prompts(n=12), ks=(10,))


def test_pair_chosen_by_keys_shows_numbers_and_matrix(tab):
    opened(tab, f"model={NEOX}&state=step10000&l=3&m=4")
    tab.locator('[role=gridcell][tabindex="0"]').focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
    assert address(tab).endswith(f"#model={NEOX}&state=step10000&prompt=mean&l=5&m=5")
    tab.keyboard.press("ArrowRight")
    assert address(tab).endswith("l=5&m=6")
    focused = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    pairs = 1 - measured()["normalized_miscoupling"].sel(k=10).mean("prompt").values
    null = 1 - cl.null_of(measured(), "normalized_miscoupling")["value"].sel(k=10).values
    assert focused == f"Jacobian of block 5, vectors of block 6: {pairs[4, 5]:.3f}"
    assert shown(tab) == pytest.approx([pairs[4, 5], null[4], pairs[5, 4], null[5]], abs=6e-4)
    tab.keyboard.press("Control+Home")
    assert address(tab).endswith("l=1&m=1") and tab.locator(".cx-squares figure:visible").count() == 2
    opened(tab, f"model={NEOX}&state=step10000&l=5&m=6")
    tab.get_by_text("The entries of |A| as a table").click()
    tab.locator(".cx-pair .cx-scroll td").nth(1).wait_for()
    entries = [float(text) for text in tab.locator(".cx-pair .cx-scroll td").all_text_contents() if text]
    A = np.abs(measured()["matrix"].values[4, 5])
    np.testing.assert_allclose(np.reshape(entries, A.shape), A, atol=A.max() / packing.LEVELS / 2 + 6e-3)
    values = tab.locator(".cx-squares figure").evaluate_all("f => f.map(x => +x.dataset.share)")
    assert values[0] == pytest.approx(100 * (np.diag(A) ** 2).sum() / (A**2).sum(), abs=3)
    assert values[0] > values[1] and tab.wrong == []


def test_linked_view_is_restored_from_its_address(tab):
    view = f"model={NEOX}&state=step316&prompt=gsm8k-style-13&reading=released&l=7&m=4"
    opened(tab, view)
    first = shown(tab)
    assert tab.locator(".cx output").first.text_content() == "step 316"
    assert tab.get_by_label("Reading").input_value() == "released"
    assert tab.get_by_label("Prompt", exact=True).input_value() == "gsm8k-style-13"
    assert len(first) == 4 and tab.locator(".cx-squares canvas:visible").count() == 4
    tab.get_by_label("Training: ").fill("7")
    tab.wait_for_url("**state=step10000**")  # matrices are read when they are shown
    assert shown(tab) != first
    tab.get_by_label("Reading").select_option("paper")
    assert "reading=paper" in address(tab)
    tab.evaluate("view => { location.hash = view }", view)
    tab.wait_for_function("document.querySelector('.cx output').textContent === 'step 316'")
    assert shown(tab) == first and tab.wrong == []


def test_chosen_token_shows_library_numbers(tab):
    opened(tab, f"model={NEOX}&state=step10000&l=3&m=4")
    unfolded(tab)
    assert tab.get_by_label("Token: ").is_disabled()
    tab.get_by_role("button", name="Go from token to token").click()
    slider = tab.get_by_label("Token: ")
    assert slider.get_attribute("aria-valuetext") == "“?”, position 32 of 32"
    slider.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        tab.keyboard.press(key)
    tab.wait_for_url(f"**#model={NEOX}&state=step10000&prompt=arc-style-13&token=9&l=3&m=4")
    assert tab.locator(".cx-prompt mark").text_content() == "car"
    assert tab.locator(".cx-prompt").text_content() == f"“{cl.load_prompts(n=1)[0].text}”"
    ds = cl.measure_depth(cl.load_model(NEOX), cl.load_prompts(n=1), ks=(10,), token=9)
    pairs = 1 - ds["normalized_miscoupling"].values[0, 0]
    null = 1 - cl.null_of(ds, "normalized_miscoupling")["value"].values[0]
    assert shown(tab) == pytest.approx([pairs[2, 3], null[2], pairs[3, 2], null[3]], abs=6e-4)
    tab.get_by_label("Prompt", exact=True).select_option("truthfulqa-style-02")
    assert tab.get_by_label("Token: ").is_disabled() and "token" not in address(tab)
    assert tab.locator(".cx-prompt mark").text_content() == "?" and tab.wrong == []


@pytest.mark.parametrize("chapter", first_of(CHAPTERS))
def test_chapter_loads_the_explorer_on_demand(tab, chapter):
    page = HTML / "book" / f"{chapter}.html"
    tab.set_viewport_size(DESKTOP)
    with requested(tab) as addresses:
        tab.goto(page.as_uri(), wait_until="load")
        # A scrolled page has asked for all that it loads by itself.
        tab.locator(".cx-views").scroll_into_view_if_needed()
        tab.wait_for_load_state("networkidle")
    loaded = {url.rpartition("/")[2] for url in addresses}
    assert "start.js" in loaded and not {"explorer.js", "settings.js", "nano-neox.js", "smollm2-135m.js"} & loaded
    link = tab.locator(".cx-views a").nth(1)
    view = dict(part.split("=") for part in link.get_attribute("data-view").split("&"))
    link.click()
    tab.locator("#coupling-explorer[data-ready]").wait_for()
    assert set(view.items()) <= {tuple(part.split("=")) for part in address(tab).partition("#")[2].split("&")}
    assert [tab.locator(".cx-views a").nth(n).get_attribute("aria-current") for n in (0, 1)] == [None, "true"]
    assert tab.locator("caption").filter(has_text=f"Blocks {view['l']} and {view['m']}").is_visible()
    assert view["model"] == CHAPTERS[chapter] and len(shown(tab)) == 4
    numbers, view = shown(tab), address(tab).partition("#")[2]
    opened(tab, view, page=page)
    assert shown(tab) == numbers and tab.locator(".cx-views a[aria-current]").count() == 1
    assert tab.wrong == []


@pytest.mark.parametrize("name", ["explorer", *CHAPTERS])
def test_on_paper_the_figure_stands_for_the_explorer(tab, name):
    tab.emulate_media(color_scheme="dark")
    opened(tab, f"model={NEOX}", page=HTML / "book" / f"{name}.html")
    figures = "[...document.querySelectorAll('figure.tbc-figure')].filter(f => f.checkVisibility()).length"
    on_screen = tab.evaluate(figures)
    tab.emulate_media(media="print")
    assert tab.locator(".cx").is_hidden() and tab.locator(".cx-views:visible").count() == 0
    assert tab.evaluate(figures) == (1 if name == "explorer" else on_screen) > 0
    assert name != "explorer" or on_screen == 0


def test_pair_is_chosen_by_pointer_and_buttons(tab):
    opened(tab, f"model={NEOX}")
    grid = tab.locator("[role=grid]")
    size = grid.bounding_box()["width"]
    grid.click(position={"x": size * 8.5 / 12, "y": size * 2.5 / 12})
    assert address(tab).endswith("l=3&m=9")
    tab.get_by_label("Block l: next").click()
    tab.get_by_label("swap the two blocks").click()
    assert address(tab).endswith("l=9&m=4")
    assert status_text(tab) == ""
    other = tab.get_by_label("Block l′", exact=True)
    other.fill("99")
    other.press("Enter")
    assert address(tab).endswith("l=9&m=4") and other.input_value() == "4"
    assert status_text(tab) == "nano-neox has no block 99 (it has 12). Shown instead: blocks 9 and 4."
    tab.get_by_label("Block l: next").click()
    assert status_text(tab) == "" and address(tab).endswith("l=10&m=4") and tab.wrong == []
    opened(tab, f"model={NEOX}&l=4&m=9", page=HTML / "book" / "depth.html")
    tab.evaluate("location.hash = 'somewhere-else'")
    tab.get_by_label("swap the two blocks").click()
    assert address(tab).endswith("l=9&m=4") and tab.wrong == []


@pytest.mark.parametrize("model", HERE)
def test_phone_layout_fits_with_usable_controls(tab, model):
    opened(tab, f"model={model}&l=5&m=6", NARROW)
    assert phone.uncomfortable(tab) == []


def test_data_and_opened_page_stay_within_size_limits(tab):
    sizes = {path.stem: path.stat().st_size for path in (HTML / "_static" / "explorer-data").glob("*.js")}
    wanted = {"settings"}
    for file, model in ((f"{model}{part}", model) for model in HERE for part in ("", "-shared")):
        states = [f"{file}-{state.name}" for state in explorer.states_of(model)]
        wanted |= {file, *states, *(f"{state}-earlier" for state in states if explorer.embedded(model))}
    assert set(sizes) == wanted and sum(sizes.values()) < 7_000_000
    for asked in ("", f"model={NEOX}"):
        with requested(tab) as addresses:
            opened(tab, asked)
            tab.wait_for_load_state("networkidle")
        files = {unquote(urlparse(one).path) for one in addresses if one.startswith("file:")}
        assert sum(Path(file).stat().st_size for file in files) < 3_500_000


def test_shared_part_loads_and_absent_matrices_are_named(tab):
    opened(tab, "model=smollm2-135m")
    unfolded(tab)
    note, notes = tab.locator(".cx-map .cx-note"), []
    for part, words in (("whole", "whole Jacobians"), ("shared", "the traceless part alone")):
        tab.get_by_label("Part").select_option(part)
        note.filter(has_text=words).wait_for()
        notes.append(note.inner_text())
    assert "part=shared" in address(tab)
    means = [float(re.search(r"all pairs (\d\.\d+)", text)[1]) for text in notes]
    # Without what blocks do to every direction alike there is less coupling.
    assert 0.02 < means[0] - means[1] < 0.08
    opened(tab, "model=smollm2-135m&prompt=gsm8k-style-13&l=3&m=4")
    assert tab.locator(".cx-squares").is_hidden() and len(shown(tab)) == 4
    assert tab.get_by_text("The matrices of this model are kept for the first prompt only.").is_visible()
