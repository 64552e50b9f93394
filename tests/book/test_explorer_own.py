"""A measurement of one's own in the explorer: picked or dropped, and refused in one line where it is bad."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from browser import first_of, requested
from test_explorer_page import HERE, NEOX, choice, opened, shown, status_text, unfolded

import coupling_lib as cl
from coupling_lib.paths import ROOT

pytestmark = pytest.mark.browser

PROMPTS = ["It was the best of times", "Call me"]
OPENED = "#coupling-explorer[data-ready='own 12']"


@pytest.fixture(scope="module")
def mine():
    return cl.measure_depth(cl.load_model(NEOX), PROMPTS, ks=(5, 10, 20))


@pytest.fixture(scope="module")
def written(mine, tmp_path_factory) -> Path:
    page = (ROOT / "book" / "explorer.md").read_text(encoding="utf-8")
    line = re.search(r"^Path\(.*to_dict.*$", page, re.MULTILINE)[0]
    path = tmp_path_factory.mktemp("own") / "measured.json"
    exec(line.replace("measured.json", str(path)), {"Path": Path, "json": json, "measured": mine})
    return path


def given(tab, path: Path) -> None:
    tab.get_by_label("Open a measurement of your own").set_input_files(path)


def test_opened_file_shows_the_library_numbers_without_requests(tab, mine, written):
    opened(tab, f"model={NEOX}&l=3&m=6&prompt=arc-style-13")
    with requested(tab) as addresses:
        given(tab, written)
        tab.locator(OPENED).wait_for()
        unfolded(tab)
        for part, ds, note in (("whole", mine, "whole J"), ("shared", cl.shared_part(mine), "traceless")):
            tab.get_by_label("Part").select_option(part)
            pairs = 1 - ds["normalized_miscoupling"].sel(k=10).mean("prompt").values
            null = 1 - float(cl.null_of(ds, "normalized_miscoupling")["value"].sel(k=10).mean())
            tab.locator(".cx-map .cx-note").filter(has_text=note).wait_for()
            assert shown(tab) == pytest.approx([pairs[2, 5], null, pairs[5, 2], null], abs=9e-4)
    # The browser asks for the page's picture again when its address changes.
    assert {one.rpartition("/")[2] for one in addresses} <= {"favicon.svg"} and choice(tab)["model"] == "own"
    assert status_text(tab) == "" and tab.get_by_text("measured.json is shown. It stays on this machine.").is_visible()
    models = tab.get_by_label("Model", exact=True).locator("option")
    assert models.nth(len(HERE)).text_content() == "nano-neox (your file)"
    tab.get_by_label("Part").select_option("whole")
    tab.get_by_label("Prompt", exact=True).select_option(PROMPTS[1])
    tab.get_by_label("Reading").select_option("project")
    pairs = 1 - mine["mismatch"].sel(k=10).isel(prompt=1).values
    texts = tab.locator(".cx-numbers:visible td").all_text_contents()
    assert texts[1:] == [f"{pairs[2, 5]:.3f}", "not in the file", f"{pairs[5, 2]:.3f}", "not in the file"]
    assert tab.locator(".cx-squares").first.is_hidden() and tab.wrong == []


def test_opened_file_shows_matrices_of_its_first_prompt(tab, mine, written):
    opened(tab, f"model={NEOX}&l=3&m=6")
    given(tab, written)
    tab.locator(OPENED).wait_for()
    tab.get_by_text("The entries of |A| as a table").first.click()
    cells = tab.locator(".cx-pair .cx-scroll td")
    cells.nth(1).wait_for()
    entries = [float(text) for text in cells.all_text_contents() if text]
    A = np.abs(mine["matrix"].values[2, 5, :10, :10])
    np.testing.assert_allclose(np.reshape(entries, (10, 10)), A, atol=6e-3)
    assert tab.locator(".cx-squares figure:visible").count() == 2
    unfolded(tab)
    tab.get_by_label("Compare with").select_option(f"{NEOX}.step0")
    tab.locator(".cx-map:visible").nth(1).wait_for()
    assert choice(tab)["with"] == f"{NEOX}.step0"
    assert tab.wrong == []


def test_dropped_file_is_shown_but_kept_in_no_address(tab, written):
    opened(tab, "model=smollm2-135m&l=12&m=14")
    tab.locator("#coupling-explorer").evaluate(
        "(el, text) => { const data = new DataTransfer(); data.items.add(new File([text], 'mine.json'));"
        " for (const name of ['dragover', 'drop']) el.dispatchEvent("
        "new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true})); }",
        written.read_text(encoding="utf-8"),
    )
    tab.locator(OPENED).wait_for()
    line = r"nano-neox \(your file\) has no block 14 \(it has 12\)\. Shown instead: blocks \d+ and \d+\."
    assert re.fullmatch(line, status_text(tab))
    opened(tab, "model=own&l=3&m=4")
    line = "A file of your own is not kept in the address: open it again. Shown instead: nano-neox."
    assert status_text(tab).startswith(line)
    assert choice(tab)["model"] == NEOX and tab.wrong == []


NORM = "normalized_miscoupling"
BAD = {
    r"it is no JSON \(.*\); expected JSON without NaN": "model,prompt\n",
    "it holds a, b; expected data_vars and coords": '{"a": 1, "b": 2}',
    "it holds nothing; expected data_vars and coords": "null",
    f"its variables are states, lss; expected one of {NORM}, mismatch, released_norm":
    '{"coords": {}, "data_vars": {"states": {}, "lss": {}}}',
    # What of a measurement is put in the place of its own.
    rf"{NORM} has the dimensions \(token, block_1, block_2\); expected \(prompt, k, block_1, block_2\)":
    {NORM: {"dims": ["token", "block_1", "block_2"]}},
    "mismatch has 3 numbers in 4 dimensions; expected 4 in 4": {"mismatch": {"data": [[[[1, 2], [3]]]]}},
    "mismatch has the value null; expected numbers alone": {"mismatch": {"data": [[[[1, 2], [3, None]]]]}},
    "mismatch has 2 × 2 blocks; expected as many as 12 both ways, from 2 to 200":
    {"mismatch": {"data": [[[[1, 2], [3, 4]]]]}},
    "matrix is 1 × 1 for 1 blocks; expected at least 10 × 10 for 12": {"matrix": {"data": [[[[1.0]]]]}},
}  # fmt: skip


@pytest.mark.parametrize(("line", "bad"), first_of(BAD.items(), 3))
def test_bad_file_is_refused_in_one_line(tab, written, tmp_path, line, bad):
    path = tmp_path / "bad.json"
    content = json.loads(written.read_text(encoding="utf-8"))
    for name in bad if isinstance(bad, dict) else ():
        content["data_vars"][name] |= bad[name]
    path.write_text(bad if isinstance(bad, str) else json.dumps(content), encoding="utf-8")
    opened(tab, f"model={NEOX}&l=3&m=4")
    before = shown(tab)
    given(tab, path)
    refusal = tab.locator(".cx-own-file .cx-refused")
    refusal.wait_for()
    end = r"What to do: write json\.dumps\(measured\.to_dict\(\)\), where measured is what cl\.measure_depth gave\."
    assert re.fullmatch(rf"bad\.json was not opened: {line}\. {end}", refusal.text_content())
    assert shown(tab) == before and choice(tab)["model"] == NEOX and tab.wrong == []
