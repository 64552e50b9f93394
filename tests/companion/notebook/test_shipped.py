"""What ships of a measurement: read as it was measured, and nothing in place of what does not ship."""

import numpy as np
import pytest

import coupling_lib as cl
from companion.figures import depth
from companion.notebook.shipped import shipped, shipped_networks
from coupling_lib import paths

TEXTS = ["It was the best of times", "it was the worst"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SHIPPED", tmp_path)
    return tmp_path


def test_only_what_ships_is_read_as_measured(folder):
    model, measure = cl.load_model("nano-neox"), cl.measure_trajectories
    cl.sweep(measure, model, TEXTS, store=folder / "own")
    assert shipped(measure, model, TEXTS) is None
    kept = cl.sweep(measure, model, TEXTS, store=folder)
    found = shipped(measure, model, TEXTS)
    assert found.prompt.values.tolist() == TEXTS
    np.testing.assert_array_equal(found.norm, kept.norm)
    assert shipped(measure, model, [*TEXTS, "another"]) is shipped(measure, model, TEXTS, token=0) is None
    hook = model.hf.register_forward_hook(lambda *_: None)
    assert shipped(measure, model, TEXTS) is None
    hook.remove()
    assert shipped(measure, model, TEXTS).equals(found)


def test_networks_are_read_only_if_all_prompts_ship(folder, monkeypatch):
    for untrained in (True, False):
        model = cl.load_model("nano-neox", untrained=untrained)
        kept = cl.sweep(cl.measure_depth, model, TEXTS[: 1 + (not untrained)], ks=(4,), store=folder)
    found = shipped_networks(cl.measure_depth, "nano-neox", TEXTS[:1], ks=(4,))
    assert list(found) == ["untrained", "trained"]
    np.testing.assert_array_equal(found["trained"].mismatch, kept.mismatch[:1])
    assert not np.array_equal(found["untrained"].mismatch, found["trained"].mismatch)
    for missing in ({"prompts": TEXTS}, {"seed": 1}, {"precision": "nf4"}, {"ks": (5,)}, {"name": "gemma3-270m"}):
        asked = {"name": "nano-neox", "prompts": TEXTS[:1], "ks": (4,)} | missing
        assert shipped_networks(cl.measure_depth, **asked) == {}, missing
    (folder / "here" / "nano-neox").mkdir(parents=True)  # of that name, as `load_model` would take it
    monkeypatch.chdir(folder / "here")
    assert shipped_networks(cl.measure_depth, "nano-neox", TEXTS[:1], ks=(4,)) == {}


def test_shipped_smollm2_is_read_without_weights():
    prompts = cl.load_prompts(n=12)
    by_name = shipped_networks(cl.measure_depth, "smollm2-135m", prompts, ks=(10,))
    assert list(by_name) == ["untrained", "trained"]
    ds = cl.sweep(cl.measure_depth, cl.load_model("smollm2-135m"), prompts, ks=(10,), variables=depth.DRAWN)
    np.testing.assert_array_equal(by_name["trained"].normalized_miscoupling, ds.normalized_miscoupling)
