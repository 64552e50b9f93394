"""The explorer: its data are the library's numbers, and the page shows them, by keys, by pointer and by its address."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from types import SimpleNamespace

import explorer
import numpy as np
import pytest
import test_browser
import torch
import yaml
from test_book import HTML, ROOT

import coupling_lib as cl
from coupling_lib.figures import style

chromium, tab = test_browser.chromium, test_browser.tab

SCRIPTS = ROOT / "book" / "_static" / "explorer"
PAGE = HTML / "book" / "explorer.html"
NEOX = "nano-neox"


def array(text: str, dtype: str, *shape: int) -> np.ndarray:
    """Read an array as the page does."""
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def decoded(data: dict) -> SimpleNamespace:
    """Give a model's data as arrays, and what they may be off by."""
    states, prompts, n, k = len(data["states"]), len(data["prompts"]), data["blocks"], data["k"]
    kept = data["matrixPrompts"]
    maps, off = {}, {}
    for name, reading in data["readings"].items():
        pairs = reading["pairs"]
        maps[name] = pairs["low"] + pairs["step"] * array(pairs["numbers"], "<u2", states, prompts, n, n)
        off[name] = pairs["step"] / 2
    scale = array(data["matrices"]["scale"], "<f4", states, kept, n, n)[..., None, None]
    null_scale = array(data["nulls"]["scale"], "<f4", states, kept, n)[..., None, None]
    return SimpleNamespace(
        maps=maps,
        off=off,
        values=array(data["singularValues"], "<f4", states, prompts, n, k),
        matrices=scale * array(data["matrices"]["entries"], "i1", states, kept, n, n, k, k),
        matrices_off=scale / 2,
        nulls=null_scale * array(data["nulls"]["entries"], "i1", states, kept, n, k, k),
        nulls_off=null_scale / 2,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two steps of the small model, two prompts, and the data that are written of them."""
    texts, states = cl.load_prompts(n=2), [explorer.states_of(NEOX)[at] for at in (0, -1)]
    store = tmp_path_factory.mktemp("matrices")
    found = {state: explorer.measured(NEOX, state, texts, store) for state in states}
    written = explorer.script("data", NEOX, explorer.data_of(NEOX, found, texts))
    return SimpleNamespace(texts=texts, states=states, found=list(found.values()), data=explorer.read(written))


def test_a_model_with_steps_has_them_all_and_another_is_untrained_or_trained():
    assert [state.loading["revision"] for state in explorer.states_of(NEOX)] == [
        "step0", "step10", "step32", "step100", "step316", "step1000", "step3162", "step10000",
    ]  # fmt: skip
    assert [state.label for state in explorer.states_of(NEOX)][-2:] == ["step 3,162", "step 10,000 (trained)"]
    assert [state.loading for state in explorer.states_of("smollm2-135m")] == [{"untrained": True}, {}]


def test_the_data_are_the_library_s_numbers_to_the_step_of_their_rounding(small):
    got = decoded(small.data)
    for state, ds in enumerate(small.found):
        for reading in explorer.READINGS:
            values = ds[reading].sel(k=explorer.K).values
            np.testing.assert_allclose(got.maps[reading][state], values, rtol=0, atol=got.off[reading] * 1.001 + 1e-7)
            null = cl.null_of(ds, reading)["value"].sel(k=explorer.K).values
            np.testing.assert_allclose(small.data["readings"][reading]["chance"][state], null, rtol=0, atol=6e-7)
        np.testing.assert_array_equal(got.values[state], ds["singular_values"].values)
        assert (abs(got.matrices[state] - ds["matrix"].values) <= got.matrices_off[state] * 1.001).all()
        assert (abs(got.nulls[state] - explorer.null_matrices(ds)) <= got.nulls_off[state] * 1.001).all()


def test_every_prompt_has_its_own_matrices_as_its_own_trace_gives_them(small):
    model = cl.load_model(NEOX)
    for number, text in enumerate(small.texts):
        trace = cl.trace(model, text.text)
        A = cl.coupling_matrix(trace.jacobian(block=2), trace.jacobian(block=5).svd(k=explorer.K), explorer.K)
        found = decoded(small.data)
        near = np.abs(np.abs(found.matrices[-1, number, 2, 5]) - A.abs().numpy())
        assert near.max() <= float(found.matrices_off[-1, number, 2, 5].max()) + 1e-4


def test_the_rounded_matrices_give_the_values_of_the_map(small):
    got = decoded(small.data)
    values = cl.miscoupling(torch.tensor(got.matrices), normalized=True).numpy()
    np.testing.assert_allclose(values, got.maps["normalized_miscoupling"], rtol=0, atol=0.01)


def test_random_matrices_have_the_singular_values_of_their_block_and_no_coupling(small):
    ds = small.found[-1]
    drawn = torch.tensor(explorer.null_matrices(ds))
    value = cl.miscoupling(drawn, normalized=True).mean()
    assert float(value) == pytest.approx(float(cl.null_of(ds, "normalized_miscoupling")["value"].mean()), abs=0.01)
    twice = ds.assign(singular_values=2 * ds["singular_values"], frobenius_norm=2 * ds["frobenius_norm"])
    np.testing.assert_allclose(explorer.null_matrices(twice), 2 * drawn.numpy(), rtol=1e-6, atol=1e-9)
    # A uniformly random pair of frames has entries of mean square ||J||^2 / d^2.
    square = (drawn**2).mean(dim=(-2, -1)).mean(dim=0).numpy() * ds.attrs["width"] ** 2
    np.testing.assert_allclose(square, (ds["frobenius_norm"] ** 2).mean("prompt").values, rtol=0.5)


def test_a_matrix_of_zeros_and_equal_values_stay_what_they_are():
    assert not array(explorer.in_eight_bits(np.zeros((2, 3, 3)))["entries"], "i1", 2, 3, 3).any()
    same = explorer.in_sixteen_bits(np.full((2, 2), 0.25))
    assert same["low"] == 0.25 and not array(same["numbers"], "<u2", 4).any()


def test_a_script_can_be_read_and_cannot_end_the_element_it_may_stand_in():
    content = {"prompts": ["</script> “a = b”;", "c"]}
    text = explorer.script("data", "m", content)
    assert explorer.read(text) == content and "</" not in text


def test_the_colours_are_the_book_s():
    look = explorer.look()
    for theme in ("light", "dark"):
        with style.theme(theme):
            assert look[theme][style.TRAINED] == style.colour(style.TRAINED)
            last = "#" + "".join(f"{round(255 * part):02x}" for part in style.ink()(1.0)[:3])
        assert len(look[theme]["ink"]) == explorer.STOPS and look[theme]["ink"][-1] == last
    assert look["light"]["ink"][0] == "#ffffff"


def test_what_stands_without_script_holds_the_mean_over_prompts(small):
    part = explorer.element(small.found[-1], {NEOX: "Nano & co"})
    assert json.loads(html.unescape(re.findall(r'data-models="(.*?)"', part)[0])) == [[NEOX, "Nano & co"]]
    assert part.startswith('```{raw} html\n<div id="coupling-explorer"') and part.count("<tr>") == 13
    row = re.findall(r'<tr><th scope="row">3</th>(.*?)</tr>', part)[0]
    means = small.found[-1]["normalized_miscoupling"].sel(k=10).mean("prompt").values[2]
    assert re.findall(r"<td>(.*?)</td>", row) == [f"{value:.3f}" for value in means]


def test_all_files_are_written(tmp_path, monkeypatch, small):
    monkeypatch.setattr(explorer, "states_of", lambda name: small.states)
    monkeypatch.setattr(explorer, "MATRICES", tmp_path / "matrices")
    explorer.write(tmp_path / "explorer", {NEOX: "nano-neox"}, n_prompts=1)
    folder = tmp_path / "explorer" / "explorer-data"
    assert sorted(path.name for path in folder.iterdir()) == ["look.js", "nano-neox.js"]
    assert explorer.read((folder / "look.js").read_text(encoding="utf-8")) == explorer.look()
    assert [p["name"] for p in explorer.read((folder / "nano-neox.js").read_text(encoding="utf-8"))["prompts"]]
    assert "<table>" in (tmp_path / "explorer.md").read_text(encoding="utf-8")


def test_the_scripts_are_light():
    assert sum(len(gzip.compress(path.read_bytes())) for path in SCRIPTS.glob("*.js")) < 40_000


def test_the_page_follows_the_claims():
    chapters = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"][0]["chapters"]
    files = [chapter["file"] for chapter in chapters]
    assert files.index("book/explorer") == files.index("book/claims") + 1


# -- the built page


def opened(tab, view: str = "", size: dict[str, int] = test_browser.DESKTOP) -> None:
    """Open the page with a view in its address."""
    tab.set_viewport_size(size)
    tab.goto("about:blank")
    tab.goto(f"{PAGE.as_uri()}#{view}", wait_until="load")
    tab.locator("#coupling-explorer[data-ready]").wait_for()


def shown(tab) -> list[float]:
    """Give the numbers beside the map: the pair's value and that of random directions, in both directions."""
    return [float(text) for text in tab.locator(".cx-told td").all_text_contents() if text]


@pytest.fixture(scope="module")
def measured():
    """Measure the trained small model as Depth does."""
    return cl.sweep(cl.measure_depth, cl.load_model(NEOX), cl.load_prompts(n=12), ks=(10,))


@pytest.mark.browser
def test_a_pair_is_chosen_by_keys_and_its_numbers_are_the_library_s(tab, measured):
    opened(tab, f"model={NEOX}&l=3&m=4")
    tab.locator('[role=gridcell][tabindex="0"]').focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
    assert tab.url.endswith(f"#model={NEOX}&prompt=mean&l=5&m=5")
    tab.keyboard.press("ArrowRight")
    assert tab.url.endswith("l=5&m=6")
    focused = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    pairs = measured["normalized_miscoupling"].sel(k=10).mean("prompt").values
    null = cl.null_of(measured, "normalized_miscoupling")["value"].sel(k=10).values
    assert focused == f"Jacobian of block 5, vectors of block 6: {pairs[4, 5]:.3f}"
    assert shown(tab) == pytest.approx([pairs[4, 5], null[4], pairs[5, 4], null[5]], abs=6e-4)
    tab.keyboard.press("Control+Home")
    assert tab.url.endswith("l=1&m=1") and tab.locator(".cx-squares figure:visible").count() == 2
    assert tab.wrong == []


@pytest.mark.browser
def test_the_table_of_a_matrix_holds_the_library_s_entries(tab, measured):
    opened(tab, f"model={NEOX}&l=5&m=6")
    tab.get_by_text("The entries of |A| as a table").click()
    tab.locator(".cx-pair .cx-scroll td").nth(1).wait_for()
    entries = [float(text) for text in tab.locator(".cx-pair .cx-scroll td").all_text_contents() if text]
    A = np.abs(measured["matrix"].values[4, 5])
    np.testing.assert_allclose(np.reshape(entries, A.shape), A, atol=A.max() / 127 / 2 + 6e-4)
    values = [
        float(text) for text in tab.locator(".cx-squares figure").evaluate_all("f => f.map(x => x.dataset.share)")
    ]
    assert values[0] == pytest.approx(100 * (np.diag(A) ** 2).sum() / (A**2).sum(), abs=1.5)
    assert values[0] > values[1]


@pytest.mark.browser
def test_a_linked_view_is_restored_and_a_changed_address_is_followed(tab):
    view = f"model={NEOX}&state=step316&prompt=gsm8k-style-13&reading=released_norm&l=7&m=4"
    opened(tab, view)
    first = shown(tab)
    assert tab.locator(".cx output").text_content() == "step 316"
    assert tab.get_by_label("Reading").input_value() == "released_norm"
    assert tab.get_by_label("Prompt").input_value() == "gsm8k-style-13"
    assert len(first) == 4 and tab.locator(".cx-squares canvas:visible").count() == 4
    tab.get_by_label("Training: ").fill("7")
    assert "state=step10000" in tab.url and shown(tab) != first
    tab.get_by_label("Reading").select_option("normalized_miscoupling")
    assert "reading=normalized_miscoupling" in tab.url
    tab.evaluate("view => { location.hash = view }", view)
    tab.wait_for_function("document.querySelector('.cx output').textContent === 'step 316'")
    assert shown(tab) == first and tab.wrong == []


@pytest.mark.browser
def test_a_pointer_chooses_a_pair_and_buttons_go_on_from_it(tab):
    opened(tab, f"model={NEOX}")
    grid = tab.locator("[role=grid]")
    size = grid.bounding_box()["width"]
    grid.click(position={"x": size * 8.5 / 12, "y": size * 2.5 / 12})
    assert tab.url.endswith("l=3&m=9")
    tab.get_by_label("Block l: next").click()
    tab.get_by_label("swap the two blocks").click()
    assert tab.url.endswith("l=9&m=4")
    tab.get_by_label("Block l′", exact=True).fill("99")
    tab.keyboard.press("Enter")
    assert tab.url.endswith("l=9&m=12") and tab.wrong == []


@pytest.mark.browser
@pytest.mark.parametrize("view", ["", "model=nothing&l=-3&m=x&prompt=y&state=z&reading=w", "l=99&m=1e9"])
def test_an_address_without_sense_shows_a_pair_all_the_same(tab, view):
    opened(tab, view)
    assert tab.get_by_label("Model").locator("option").all_text_contents() == list(explorer.MODELS.values())
    assert tab.locator("#coupling-explorer").get_attribute("data-ready") == "smollm2-135m 30"
    assert tab.locator('[aria-selected="true"]').count() == 1 and tab.wrong == []


@pytest.mark.browser
def test_matrices_that_were_not_kept_are_not_shown(tab):
    opened(tab, "model=smollm2-135m&prompt=gsm8k-style-13&l=3&m=4")
    assert tab.locator(".cx-squares").is_hidden() and len(shown(tab)) == 4
    assert tab.get_by_text("The matrices of this model are kept for the first prompt only.").is_visible()


@pytest.mark.browser
def test_colours_follow_the_theme(tab):
    tab.emulate_media(color_scheme="light")
    opened(tab, f"model={NEOX}&l=5&m=6")
    colour = "getComputedStyle(document.querySelector('.cx-cell')).backgroundColor"
    assert tab.evaluate(colour) == "rgb(196, 196, 196)"
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    tab.wait_for_function(f"{colour} === 'rgb(90, 90, 90)'")


@pytest.mark.browser
@pytest.mark.parametrize("model", explorer.MODELS)
def test_on_a_phone_all_fits_and_every_control_has_a_name_and_room_for_a_finger(tab, model):
    opened(tab, f"model={model}&l=5&m=6", {"width": 360, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    nameless = """controls => controls.filter(c => c.checkVisibility()
      && !(c.getAttribute("aria-label") || c.labels?.[0]?.textContent || c.textContent).trim()).length"""
    assert tab.locator(".cx button, .cx input, .cx select").evaluate_all(nameless) == 0
    low = "controls => controls.filter(c => c.checkVisibility() && c.getBoundingClientRect().height < 36).length"
    assert tab.locator(".cx button, .cx input, .cx select").evaluate_all(low) == 0
    repeated = "[...document.querySelectorAll('[id]')].map(e => e.id).filter((id, at, all) => all.indexOf(id) < at)"
    assert [name for name in tab.evaluate(repeated) if name.startswith("cx-")] == []


@pytest.mark.browser
def test_without_script_the_map_is_a_table(chromium):
    page = chromium.new_page(java_script_enabled=False)
    page.goto(PAGE.as_uri(), wait_until="load")
    assert (
        page.locator("#coupling-explorer tbody tr").count() == 30 and page.get_by_text("needs JavaScript").is_visible()
    )
    page.close()


@pytest.mark.browser
def test_the_data_of_a_model_keep_within_three_megabytes():
    sizes = {path.stem: path.stat().st_size for path in (HTML / "_static" / "explorer-data").glob("*.js")}
    assert set(sizes) == {"look", *explorer.MODELS} and max(sizes.values()) < 3_000_000
