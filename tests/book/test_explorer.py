"""What the explorer is given: its data are the library's numbers, and chapters offer views of them."""

import base64
import gzip
import re
from types import SimpleNamespace

import explorer
import numpy as np
import packing
import pytest
import tiny
import torch
import views

import coupling_lib as cl
from companion.figures import style
from coupling_lib.metrics import nulls
from coupling_lib.paths import ROOT

NEOX = "nano-neox"


def array(text: str, dtype: str, *shape: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype).reshape(shape)


def numbers(packed: dict, *shape: int) -> np.ndarray:
    return packed["low"] + packed["step"] * array(packed["numbers"], "<u2", *shape)


def decoded(part: tuple[dict, list[dict]]) -> SimpleNamespace:
    """Return a model's data as arrays, and what matrices may be off by."""
    data, matrices = part
    states, n, k = len(data["states"]), data["blocks"], data["k"]
    places, kept = sum(len(prompt["tokens"]) for prompt in data["prompts"]), len(data["kept"])
    maps, chance = {}, {}
    for name, reading in data["readings"].items():
        maps[name] = numbers(reading["pairs"], states, places, n, n)
        chance[name] = array(reading["chance"], "<f4", states, places + 1, n)
    read = SimpleNamespace(maps=maps, chance=chance, values=numbers(data["singularValues"], states, places, n, k))
    last = len(data["prompts"])
    for kind, shape in (("matrices", (n, n)), ("nulls", (n,))):
        scale, entries, finest = [], [], 0.0
        # The earlier tokens of the first prompt come first, as places do.
        for earlier, at_last in matrices:
            one = [(earlier[kind], kept - last), (at_last[kind], last)]
            scale.append(np.concatenate([numbers(found["scale"], count, *shape) for found, count in one]))
            entries.append(np.concatenate([array(found["entries"], "u1", count, *shape, k, k) for found, count in one]))
            finest = max(finest, *(found["scale"]["step"] for found, _ in one))
        each = np.stack(scale)[..., None, None]
        assert np.max(entries) == packing.LEVELS
        setattr(read, kind, each * np.stack(entries))
        # The scale is rounded as well, and an entry is up to as many of it as there are levels.
        setattr(read, f"{kind}_off", each / 2 + packing.LEVELS / 2 * finest)
    return read


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two steps of the small model, two prompts, and the data that are written of them."""
    texts, states = cl.load_prompts(n=2), [explorer.states_of(NEOX)[at] for at in (0, -1)]
    store = tmp_path_factory.mktemp("matrices")
    found = {state: explorer.measured(NEOX, state, texts, store) for state in states}

    def written(content):
        return packing.read(packing.script("data", NEOX, content))

    def matrices(part):
        networks = [one.parts[part] for one in found.values()]
        return [[written(explorer.matrices_of(one, earlier)) for earlier in (True, False)] for one in networks]

    parts = {part: (written(explorer.data_of(NEOX, found, texts, part)), matrices(part)) for part in explorer.PARTS}
    return SimpleNamespace(texts=texts, states=states, found=list(found.values()), **parts)


def test_states_are_steps_and_places_spread_tokens():
    revisions = [f"step{n}" for n in (0, 10, 32, 100, 316, 1000, 3162, 10000)]
    assert [state.loading["revision"] for state in explorer.states_of(NEOX)] == revisions
    assert [state.label for state in explorer.states_of(NEOX)][-2:] == ["step 3,162", "step 10,000 (trained)"]
    assert [state.loading for state in explorer.states_of("smollm2-135m")] == [{"untrained": True}, {}]
    step0, drawn = cl.load_model(NEOX, revision="step0"), cl.load_model(NEOX, untrained=True)
    assert tiny.same_weights(step0.hf, drawn.hf)
    assert not tiny.same_weights(step0.hf, cl.load_model(NEOX).hf)
    assert explorer.positions(NEOX, 0, 15) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert explorer.positions(NEOX, 0, 3) == [0, 1, 2]
    assert explorer.positions(NEOX, 4, 15) == explorer.positions("smollm2-135m", 0, 15) == [14]


@pytest.mark.parametrize("part", explorer.PARTS)
def test_data_match_the_library_within_rounding(small, part):
    got = decoded(vars(small)[part])
    for state, network in enumerate(one.parts[part] for one in small.found):
        for number, ds in enumerate([network.whole, *network.places]):
            for name, reading in explorer.READINGS.items():
                null = cl.null_of(ds, reading.variant)["value"].sel(k=explorer.K).values
                # Two means of draws, each known to 2e-5.
                np.testing.assert_allclose(got.chance[name][state, number], 1 - null, rtol=0, atol=6e-5)
        for place, ds in enumerate(network.places):
            for name, reading in explorer.READINGS.items():
                values, most = 1 - ds[reading.variant].sel(k=explorer.K).values[0], explorer.STEP / 2 + 1e-7
                np.testing.assert_allclose(got.maps[name][state, place], values, rtol=0, atol=most)
            np.testing.assert_allclose(got.values[state, place], ds["singular_values"].values[0], rtol=0, atol=1e-3)
            near = abs(got.matrices[state, place] - abs(ds["matrix"].values))
            assert (near <= got.matrices_off[state, place] * 1.001).all()
        drawn = abs(explorer.null_matrices(network.places))
        assert (abs(got.nulls[state] - drawn) <= got.nulls_off[state] * 1.001).all()


def test_last_token_equals_depth_and_strongest_step_opens(small):
    got, last = decoded(small.whole).maps["paper"], [7, 8]
    for state, network in enumerate(small.found):
        whole = 1 - network.whole["normalized_miscoupling"].sel(k=explorer.K).values
        np.testing.assert_allclose(got[state, last], whole, rtol=0, atol=explorer.STEP)
    assert abs(got[-1, 0] - got[-1, 7]).max() > 0.1
    # The rounded matrices give these values again.
    values = 1 - cl.miscoupling(torch.tensor(decoded(small.whole).matrices), normalized=True).numpy()
    np.testing.assert_allclose(values, got, rtol=0, atol=0.03)
    coupling = [1 - one.whole["normalized_miscoupling"].sel(k=10).mean("prompt").values for one in small.found]
    means = [values[~np.eye(12, dtype=bool)].mean() for values in coupling]
    assert small.whole[0]["opens"] == small.shared[0]["opens"] == int(np.argmax(means)) == 1


def test_matrices_of_both_parts_match_the_traces(small):
    model, found, place = cl.load_model(NEOX), decoded(small.whole), 0
    for text, written in zip(small.texts, small.whole[0]["prompts"], strict=True):
        trace = cl.trace(model, text.text)
        assert written["pieces"] == trace.tokens and written["tokens"][-1] == len(trace.tokens) - 1
        for token in written["tokens"]:
            J, other = (trace.jacobian(block, token) for block in (2, 5))
            A = cl.coupling_matrix(J, other.svd(k=explorer.K), explorer.K)
            near = np.abs(found.matrices[-1, place, 2, 5] - A.abs().numpy())
            assert near.max() <= float(found.matrices_off[-1, place, 2, 5].max()) + 1e-4
            place += 1
    assert place == len(small.whole[0]["kept"]) == 9
    trace, found = cl.trace(model, small.texts[0].text), decoded(small.shared)
    matrices = [trace.jacobian(block, -1).dense() for block in (2, 5)]
    mine, other = (J - J.trace() / len(J) * torch.eye(len(J)) for J in matrices)
    U, _, Vh = torch.linalg.svd(other.double())
    A = (U[:, : explorer.K].T @ mine.double() @ Vh[: explorer.K].T).abs().numpy()
    near = np.abs(found.matrices[-1, 7, 2, 5] - A)
    assert near.max() <= float(found.matrices_off[-1, 7, 2, 5].max()) + 1e-4
    assert abs(found.maps["paper"] - decoded(small.whole).maps["paper"]).max() > 0.005


def test_decoder_without_weights_offers_its_shipped_measurements():
    texts = cl.load_prompts(n=2)
    found = explorer.networks("gemma3-270m", texts)
    assert [state.name for state in found] == ["untrained", "trained"]
    assert explorer.networks("gemma3-270m", ["Of this text nothing ships."]) == {}
    whole, trained = list(found.values())[1].whole, list(found)[1]
    data = packing.read(packing.script("data", "m", explorer.data_of("gemma3-270m", found, texts)))
    values = numbers(data["readings"]["paper"]["pairs"], 2, 2, 18, 18)
    wanted = 1 - whole["normalized_miscoupling"].sel(k=10).transpose("prompt", "block_1", "block_2").values
    np.testing.assert_allclose(values[1], wanted, rtol=0, atol=explorer.STEP / 2 + 1e-7)
    assert data["opens"] == 1 and "pieces" not in data["prompts"][0] and data["kept"] == [0]
    # Of the matrices, those of the middle blocks alone ship.
    levels = array(explorer.matrices_of(found[trained])["matrices"]["entries"], "u1", 18, 18, 100)
    kept = (levels != packing.ABSENT).all(axis=-1)
    assert kept.sum() == 64 and kept[5:13, 5:13].all() and (levels[kept].max(axis=-1) == packing.LEVELS).all()


def test_null_matrices_keep_singular_values_but_not_coupling(small):
    ds = small.found[-1].whole
    each = [ds.isel(prompt=[number]) for number in range(ds.sizes["prompt"])]
    drawn = torch.tensor(explorer.null_matrices(each))
    value = cl.miscoupling(drawn, normalized=True).mean()
    assert float(value) == pytest.approx(float(cl.null_of(ds, "normalized_miscoupling")["value"].mean()), abs=0.01)
    scaled = ["singular_values", "frobenius_norm"]
    twice = [one.assign({name: 2 * one[name] for name in scaled}) for one in each]
    np.testing.assert_allclose(explorer.null_matrices(twice), 2 * drawn.numpy(), rtol=1e-6, atol=1e-9)
    # A uniformly random pair of frames has entries of mean square ||J||^2 / d^2.
    square = (drawn**2).mean(dim=(-2, -1)).mean(dim=0).numpy() * ds.attrs["width"] ** 2
    np.testing.assert_allclose(square, (ds["frobenius_norm"] ** 2).mean("prompt").values, rtol=0.5)


def test_packed_data_are_read_back_unchanged():
    assert not array(packing.in_levels(np.zeros((2, 3, 3)))["entries"], "u1", 2, 3, 3).any()
    same = packing.in_sixteen_bits(np.full((2, 2), 0.25))
    assert same["low"] == 0.25 and not array(same["numbers"], "<u2", 4).any()
    content = {"prompts": ["</script> “a = b”;", "c"]}
    text = packing.script("data", "m", content)
    assert packing.read(text) == content and "</" not in text


def test_the_colours_are_the_book_s():
    settings = explorer.settings({NEOX: "Nano & co", "other": "Other"}, {NEOX: explorer.states_of(NEOX), "other": []})
    assert settings["models"] == [(NEOX, "Nano & co"), ("other", "Other")] and settings["states"]["other"] == []
    project = {"variant": "mismatch", "label": "1 − mismatch", "source": "the project page"}
    assert settings["readings"]["project"] == project
    assert [name for name, _ in settings["states"][NEOX]] == [state.name for state in explorer.states_of(NEOX)]
    assert settings["chance"][9] == pytest.approx(1 - nulls.gaussian_miscoupling(10), abs=1e-5)
    assert len(settings["chance"]) == 100
    for theme in ("light", "dark"):
        with style.theme(theme):
            assert settings[theme][style.TRAINED] == style.colour(style.TRAINED)
            last = "#" + "".join(f"{round(255 * part):02x}" for part in style.ink()(1.0)[:3])
        assert len(settings[theme]["ink"]) == explorer.STOPS and settings[theme]["ink"][-1] == last
    assert settings["light"]["ink"][0] == "#ffffff"


def test_static_table_holds_the_mean_over_prompts(small):
    part = explorer.element(small.found[-1].whole, "Nano & co")
    null = 1 - float(cl.null_of(small.found[-1].whole, "normalized_miscoupling")["value"].mean())
    assert f"Coupling of Nano &amp; co, mean over 2 prompts, K = 10; by chance {null:.3f}." in part
    assert part.startswith('```{raw} html\n<div id="coupling-explorer" data-open>') and part.count("<tr>") == 13
    row = re.findall(r'<tr><th scope="row">3</th>(.*?)</tr>', part)[0]
    means = 1 - small.found[-1].whole["normalized_miscoupling"].sel(k=10).mean("prompt").values[2]
    wanted = ["–" if block == 2 else f"{value:.3f}" for block, value in enumerate(means)]
    assert re.findall(r"<td>(.*?)</td>", row) == wanted


def test_all_files_are_written(tmp_path, monkeypatch, small):
    monkeypatch.setattr(explorer, "states_of", lambda name: small.states)
    monkeypatch.setattr(explorer, "MATRICES", tmp_path / "matrices")
    explorer.write(tmp_path / "explorer", {NEOX: "nano-neox"}, n_prompts=1)
    folder = tmp_path / "explorer" / "explorer-data"
    ends = ["", *(f"-{state.name}{end}" for state in small.states for end in ("", "-earlier"))]
    wanted = {f"{NEOX}{part}{end}.js" for part in ("", "-shared") for end in ends}
    assert {path.name for path in folder.iterdir()} == {"settings.js", *wanted}
    settings = packing.read((folder / "settings.js").read_text(encoding="utf-8"))
    assert settings["models"] == [[NEOX, "nano-neox"]] and settings["light"] == explorer.settings({}, {})["light"]
    assert [p["name"] for p in packing.read((folder / "nano-neox.js").read_text(encoding="utf-8"))["prompts"]]
    assert "<table>" in (tmp_path / "explorer.md").read_text(encoding="utf-8")


def test_chapter_views_link_to_the_explorer_or_are_refused():
    part = views.offered(["One & two | model=nano-neox&l=1&m=2", "", "Three | l=3"], "../")
    shown = [("model=nano-neox&amp;l=1&amp;m=2", "One &amp; two"), ("l=3", "Three")]
    assert re.findall(r'<a href="../book/explorer.html" data-view="(.*?)">(.*?)</a>', part) == shown
    assert '<div id="coupling-explorer" data-view="model=nano-neox&amp;l=1&amp;m=2">' in part
    for lines in ([], [" "], ["no address"], ["a | b"], ["a | l=1 | c"]):
        with pytest.raises(ValueError, match="takes lines such as"):
            views.offered(lines, "")


def test_chapter_views_exist_in_the_data():
    prompts, seen = [text.id for text in cl.load_prompts(n=12)], 0
    for page in (ROOT / "book").glob("*.md"):
        for block in re.findall(r"`{3}\{explorer\}\n(.*?)`{3}", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.splitlines():
                view = dict(part.split("=") for part in line.partition("|")[2].strip().split("&"))
                states = [state.name for state in explorer.states_of(view["model"])]
                assert view["model"] in explorer.MODELS and view.get("state", states[0]) in states, line
                assert view.get("prompt", prompts[0]) in prompts and int(view["l"]) != int(view["m"]), line
                seen += 1
    assert seen >= 8
