"""What ships of a measurement: read as it was measured, and nothing in place of what does not ship."""

from __future__ import annotations

import numpy as np
import pytest

import coupling_lib as cl
from companion.notebook.shipped import shipped
from coupling_lib import paths

TEXTS = ["It was the best of times", "it was the worst"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "SHIPPED", tmp_path)
    return tmp_path


def test_what_ships_is_what_was_measured_and_one_prompt_less_is_nothing(folder):
    model = cl.load_model("nano-neox")
    assert shipped(cl.measure_trajectories, model, TEXTS) is None
    kept = cl.sweep(cl.measure_trajectories, model, TEXTS, store=folder)
    found = shipped(cl.measure_trajectories, model, TEXTS)
    assert found.prompt.values.tolist() == TEXTS
    np.testing.assert_array_equal(found.norm, kept.norm)
    assert shipped(cl.measure_trajectories, model, [*TEXTS, "another"]) is None
    assert shipped(cl.measure_trajectories, model, TEXTS, token=0) is None


def test_results_of_one_s_own_and_a_model_without_a_key_give_nothing(folder):
    model = cl.load_model("nano-neox")
    cl.sweep(cl.measure_trajectories, model, TEXTS, store=folder / "own")
    assert shipped(cl.measure_trajectories, model, TEXTS) is None
    cl.sweep(cl.measure_trajectories, model, TEXTS, store=folder)
    hook = model.hf.register_forward_hook(lambda *_: None)
    assert shipped(cl.measure_trajectories, model, TEXTS) is None
    hook.remove()
    assert shipped(cl.measure_trajectories, model, TEXTS) is not None
