"""The explorer's tab on one's own prompt: what it computes, against the library, how it is used, its old address."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote, unquote, urlencode, urlparse

import numpy as np
import own_prompt
import phone
import pytest
import torch
from browser import DESKTOP, HTML, NARROW, address, first_of, new_tab, requested
from playwright.sync_api import Browser, Page
from test_own_prompt import small, unpacked

import coupling_lib as cl
from coupling_lib.metrics import nulls

pytestmark = pytest.mark.browser

PAGE = HTML / "book" / "explorer.html"
DATA = HTML / "_static" / "own-prompt-data"
QUOTED = 'Say "no"\nand \\ é 🙂'
LONG = " ".join(["She looked at the old house by the sea, and did not speak."] * 8)
ODD = "Zürich – naïve café’s 1234 \n\n  don't   we'll 日本 🙂 <|endoftext|> end\t\u00a0x\ufeff\u0085y  "
PLACES = {
    "short": (own_prompt.START, -1), "one token": ("A", -1), "long": (LONG, -1), "odd": (ODD, -1),
    "first token": (own_prompt.START, 0), "inner token": (LONG, 40),
}  # fmt: skip
CONFIG = "Object.values(ownPrompt.models)[0]"
RUN = Path(__file__).with_name("own_prompt.js").read_text(encoding="utf-8")


def opened(tab: Page, size: dict[str, int] = DESKTOP, **view: str) -> None:
    """Open the tab with a view in the address, and wait for its first result."""
    tab.set_viewport_size(size)
    tab.goto("about:blank")
    tab.goto(f"{PAGE.as_uri()}#{urlencode({'own-prompt': '', **view}, quote_via=quote)}", wait_until="load")
    tab.locator("#own-prompt-here[data-ready]").wait_for()


def ready(tab: Page, value: str, of: str = "ready") -> None:
    tab.locator(f'#own-prompt-here[data-{of}="{value}"]:not([aria-busy])').wait_for()


def tokens(text: str) -> int:
    return len(small().tokenizer(text)["input_ids"])


def steps() -> list[str]:
    return sorted((path.stem for path in DATA.glob("step*.js")), key=lambda name: int(name.removeprefix("step")))


def shown_map(tab: Page) -> np.ndarray:
    """The couplings that the cells of the map are labelled with."""
    labels = tab.locator("[role=gridcell]").evaluate_all("cells => cells.map(c => c.getAttribute('aria-label'))")
    return np.array([float(label.rpartition(" ")[2]) for label in labels])


@pytest.fixture(scope="module")
def models() -> dict[str, cl.Model]:
    """The library's models with the weights of the page, in float64."""
    return {name: own_prompt.as_in_the_page(cl.load_model(own_prompt.MODEL, revision=name)) for name in steps()}


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    """One tab for all comparisons: they only ask it for numbers."""
    page = new_tab(chromium)
    page.goto(f"{PAGE.as_uri()}#own-prompt", wait_until="load")
    page.locator("#own-prompt-here[data-ready]").wait_for()
    yield page
    page.close()


def relative(got: list, wanted: np.ndarray) -> float:
    wanted = np.asarray(wanted)
    return float(np.abs(np.reshape(got, wanted.shape) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("which", [0, 1], ids=["untrained", "most coupled"])
@pytest.mark.parametrize(("text", "token"), PLACES.values(), ids=PLACES)
def test_page_reproduces_the_library_numbers(page, models, which, text, token):
    name, model = list(models.items())[which]
    got = SimpleNamespace(**page.evaluate(RUN, [name, text, token]))
    trace = cl.trace(model, text)
    ds = cl.measure_depth(model, [text], ks=(own_prompt.K,), token=token)
    with torch.no_grad():
        logits = model.hf(**trace.inputs).logits[0, token]
    assert got.ids == trace.inputs["input_ids"][0].tolist()
    assert relative(got.logits, logits) < 1e-4
    assert relative(got.jacobian, trace.jacobian(3, token).dense()) < 1e-4
    np.testing.assert_allclose(got.singular, ds["singular_values"].values[0], rtol=1e-4)
    values = ds["normalized_miscoupling"].isel(prompt=0, k=0).values
    np.testing.assert_allclose(1 - np.array(got.coupling), values, rtol=1e-4, atol=1e-9)
    A = np.abs(cl.coupling_matrix(trace.jacobian(3, token).dense(), trace.jacobian(5, token).svd(k=10), 10))
    assert relative(np.abs(got.matrix), A) < 1e-4 and got.residual < 1e-9


def test_page_data_and_tokenizer_match_the_checkpoints(page):
    config, model = page.evaluate(CONFIG), small()
    texts = [prompt.text for prompt in cl.load_prompts()]
    encode = f"texts => texts.map(text => ownPrompt.tokenizer({CONFIG}.tokenizer).encode(text))"
    assert page.evaluate(encode, texts) == [model.tokenizer(text)["input_ids"] for text in texts]
    wanted = {"blocks": 12, "width": 96, "heads": 4, "longest": 512, "opens": steps()[1], "k": own_prompt.K}
    wanted |= {"tokenizer": own_prompt.tokenizer_of(model), "start": own_prompt.START}
    wanted |= {"chance": 1 - nulls.gaussian_miscoupling(own_prompt.K)}
    assert config == config | wanted


@pytest.mark.parametrize("entries", ["0", "NaN"])
def test_singular_vectors_not_found_raise_an_error(page, entries):
    found = page.evaluate(f"""() => {{
      try {{ return ownPrompt.topTriplets(new Float64Array(400).fill({entries}), 20, 10); }}
      catch (error) {{ return error.message; }}
    }}""")
    assert found == "the singular vectors of a Jacobian were not found"


def test_tab_opens_with_computed_values_of_every_step(tab, models):
    opened(tab)
    _, peak, last = steps()
    ready(tab, f"{peak} 10 11")
    ready(tab, "10 11", of="filled")  # every step has its bar
    buttons = tab.locator(".cx-toggle button")
    shown = tab.locator(".cx-bar-value").all_text_contents()
    measured = {name: cl.measure_depth(model, [own_prompt.START], ks=(own_prompt.K,)) for name, model in models.items()}
    wanted = [f"{float(own_prompt.coupling_of_blocks(ds).mean()):.3f}" for ds in measured.values()]
    chance = f"{1 - nulls.gaussian_miscoupling(own_prompt.K):.3f}"
    assert shown == [*wanted, chance]
    line = f"Coupling of all pairs of blocks {wanted[1]}, by chance {chance}."
    assert tab.locator(".cx-status").text_content() == line
    for at, name in enumerate((peak, last)):
        # A pair that nobody chose is the strongest.
        values = 1 - measured[name]["normalized_miscoupling"].isel(prompt=0, k=0).values
        first, second = np.unravel_index(np.where(np.eye(12), -1, values).argmax(), values.shape)
        buttons.nth(1 + at).click()
        ready(tab, f"{name} 10 11")
        line = f"Blocks {first + 1} and {second + 1}: coupling {values[first, second]:.3f}, by chance {chance}"
        assert tab.locator("#own-prompt-here .cx-here").text_content() == line
    np.testing.assert_allclose(shown_map(tab), values.ravel(), rtol=0, atol=6e-4)
    assert f"step={last}" in address(tab) and tab.wrong == []


def test_everything_can_be_done_by_keys(tab):
    opened(tab, step=steps()[2], l="5", m="6")
    _, peak, last = steps()
    tab.get_by_label("Prompt", exact=True).press("ControlOrMeta+A")
    tab.keyboard.type("The sea was calm.")
    count = tokens("The sea was calm.")
    ready(tab, f"{last} {count - 1} {count}")
    assert "prompt=The+sea+was+calm." in address(tab)
    tab.get_by_label("Token: ").press("Home")
    ready(tab, f"{last} 0 {count}")
    assert "token=0" in address(tab) and tab.locator(".cx-tokens mark").text_content() == "The"
    tab.locator(".cx-toggle button").nth(1).press("Enter")
    ready(tab, f"{peak} 0 {count}")
    tab.locator('[role=gridcell][tabindex="0"]').press("ArrowDown")
    tab.keyboard.press("ArrowRight")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert tab.evaluate(focused).startswith("Jacobian of block 6, vectors of block 7: ")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert address(tab).endswith("l=6&m=7") and tab.wrong == []


def test_view_is_restored_from_its_address_if_there(tab):
    first, *_, last = steps()
    opened(tab, prompt="Call me & <b>", step=last, token="1", l="2", m="9")
    count = tokens("Call me & <b>")
    ready(tab, f"{last} 1 {count}")
    assert tab.get_by_label("Prompt", exact=True).input_value() == "Call me & <b>"
    assert "".join(tab.locator(".cx-tokens > *").all_text_contents()) == "Call me & <b>"
    chosen = tab.locator('[role=gridcell][aria-selected="true"]').get_attribute("aria-label")
    assert chosen.startswith("Jacobian of block 2, vectors of")
    tab.evaluate("step => { location.hash = new URLSearchParams({'own-prompt': '', prompt: 'Once', step}) }", first)
    count = tokens("Once")
    ready(tab, f"{first} {count - 1} {count}")
    assert tab.get_by_label("Prompt", exact=True).input_value() == "Once" and tab.wrong == []
    opened(tab, step="step5", l="99", m="2")
    line = "nano-neox has no “step5”, no block 99 (it has 12). Shown instead: step 100, the strongest pair."
    assert tab.locator("#own-prompt-here .cx-notice").text_content() == line
    assert address(tab).endswith("step=step100") and tab.wrong == []


REFUSED = {
    "The prompt is empty. Type a word or more.": {"prompt": " \n "},
    r"The prompt has \d+ tokens, and nano-neox reads at most 512. Shorten it.": {"prompt": "a b " * 700},
    r"There is no token 40 in this prompt. Choose one from 0 to \d.": {"prompt": "Once", "token": "40"},
    r"There is no token x in this prompt. Choose one from 0 to \d.": {"prompt": "Once", "token": "x"},
}


@pytest.mark.parametrize(("line", "view"), first_of(REFUSED.items()))
def test_unmeasurable_prompt_is_refused_in_one_line(tab, line, view):
    opened(tab, **view)
    ready(tab, "refused")
    assert re.fullmatch(line, tab.locator(".cx-status").text_content())
    assert tab.locator(".cx-result").is_hidden()
    tab.get_by_label("Prompt", exact=True).fill("Call me")
    tab.locator("#own-prompt-here:not([data-ready=refused]):not([aria-busy])").wait_for()
    assert tab.locator(".cx-result").is_visible() and tab.wrong == []


def test_page_stays_below_eight_megabytes_without_network_requests(tab):
    with requested(tab) as addresses:
        opened(tab)
        ready(tab, "10 11", of="filled")  # every step has its bar
    asked = {urlparse(url) for url in addresses}
    files = {unquote(url.path) for url in asked if url.scheme == "file"}
    assert sum("/own-prompt-data/step" in file for file in files) == 3
    assert sum(Path(file).stat().st_size for file in files) <= 8_000_000
    assert {url.scheme for url in asked} <= {"file", "data", "blob", "about"} and tab.wrong == []


def test_newer_prompt_replaces_one_refused_or_being_computed(tab):
    opened(tab)
    tab.locator("#own-prompt-text").evaluate("e => { e.value = 'a\\ud800'; e.dispatchEvent(new Event('input')); }")
    ready(tab, "refused")
    line = "The prompt holds half a character (a lone surrogate). Delete it."
    assert tab.locator(".cx-status").text_content() == line
    field = tab.get_by_label("Prompt", exact=True)
    field.fill(LONG)
    tab.wait_for_function("document.querySelector('#own-prompt-here[aria-busy]')")
    field.fill("Once")
    count = tokens("Once")
    ready(tab, f"{steps()[1]} {count - 1} {count}")
    tab.wait_for_timeout(500)
    assert tab.locator("#own-prompt-here").get_attribute("data-ready").endswith(f" {count}") and tab.wrong == []


def test_gallery_shows_its_maps_and_code_follows_input(tab):
    opened(tab)
    config, code = tab.evaluate(CONFIG), tab.locator(".own-prompt-command pre")
    assert f'prompt = "{own_prompt.START}"' in code.inner_text() and 'revision="step100"' in code.inner_text()
    buttons = tab.locator(".cx-gallery button")
    texts = [one["text"] for one in config["gallery"]]
    assert buttons.all_text_contents() == texts and len(set(texts)) == own_prompt.GALLERY
    tab.get_by_text("Prompts whose maps differ the most").click()
    buttons.nth(3).click()
    count = tokens(texts[3])
    ready(tab, f"{steps()[2]} {count - 1} {count}")
    assert [one.get_attribute("aria-pressed") for one in buttons.all()].index("true") == 3
    # The small map is that of the last step, which is then shown, but for the rounding of weights and colours.
    shares = unpacked(config["gallery"][3]["map"], "u1") / 255
    apart = ~np.eye(12, dtype=bool).ravel()
    np.testing.assert_allclose((shares * config["highest"])[apart], shown_map(tab)[apart], atol=0.02)
    tab.get_by_label("Prompt", exact=True).fill(QUOTED)
    tab.locator(".cx-toggle button").nth(0).click()
    count = tokens(QUOTED)
    ready(tab, f"{steps()[0]} {count - 1} {count}")
    tab.get_by_label("Token: ").press("Home")
    ready(tab, f"{steps()[0]} 0 {count}")
    lines = ast.unparse(ast.parse(code.inner_text())).splitlines()
    assert f"prompt = {QUOTED!r}" in lines
    assert "revision='step0'" in "".join(lines) and "token=0)" in "".join(lines) and tab.wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_layout_fits_with_usable_controls(tab, scheme):
    tab.emulate_media(color_scheme=scheme)
    opened(tab, NARROW)
    assert phone.uncomfortable(tab) == []


def test_tabs_load_when_opened_and_keep_their_state(tab):
    tab.set_viewport_size(DESKTOP)
    tab.goto("about:blank")
    with requested(tab) as addresses:
        tab.goto(f"{PAGE.as_uri()}#model=nano-neox&l=3&m=9", wait_until="load")
        tab.locator("#coupling-explorer[data-ready]").wait_for()
        tab.wait_for_load_state("networkidle")
    loaded = {urlparse(url).path.rpartition("_static/")[2] for url in addresses}
    assert {name for name in loaded if "own-prompt" in name} == {"own-prompt/start.js", "own-prompt/own-prompt.css"}
    tabs = tab.get_by_role("tab")
    assert tabs.all_text_contents() == ["Measured models", "Your own prompt"]
    tabs.nth(1).click()
    tab.locator("#own-prompt-here[data-ready]").wait_for()
    assert tab.locator("#coupling-explorer").is_hidden() and address(tab).endswith("#own-prompt=")
    assert [one.get_attribute("aria-selected") for one in tabs.all()] == ["false", "true"]
    # The address of a heading leaves the tab as it is; the tabs' own listener comes before this one.
    tab.evaluate("new Promise(done => { addEventListener('hashchange', done); location.hash = 'what-is-shown'; })")
    assert tab.locator("#own-prompt-here").is_visible()
    tabs.nth(1).press("ArrowLeft")
    tab.locator("#own-prompt-here").wait_for(state="hidden")
    assert address(tab).partition("#")[2].startswith("model=nano-neox")
    assert tab.locator("#coupling-explorer .cx-here").text_content().startswith("Blocks 3 and 9: coupling ")
    assert tab.wrong == []


def test_old_address_opens_its_tab_and_prompt(tab):
    old = HTML / "book" / "own-prompt.html"
    tab.goto(f"{old.as_uri()}#prompt=Once&step=step0", wait_until="load")
    tab.wait_for_url("**/explorer.html#own-prompt&prompt=Once&step=step0")
    count = tokens("Once")
    ready(tab, f"step0 {count - 1} {count}")
    assert tab.get_by_label("Prompt", exact=True).input_value() == "Once" and tab.wrong == []
