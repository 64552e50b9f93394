"""The tabs of the explorer's page: what each loads and keeps, and the old address of the second."""

from urllib.parse import urlparse

import pytest
from browser import DESKTOP, HTML, address, requested
from test_own_prompt_page import PAGE, ready, tokens

pytestmark = pytest.mark.browser


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
    tabs.nth(1).focus()
    tab.keyboard.press("ArrowLeft")
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
