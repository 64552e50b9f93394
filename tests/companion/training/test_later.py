"""The long runs: their recipes, and that coupling by prompt and by pair is what is measured of all."""

import numpy as np
import pytest

import coupling_lib as cl
from companion.training import later, phases
from companion.training.experiment import build
from coupling_lib.models.storages import wrap_model


def test_steps_are_evenly_spaced_on_logarithmic_scale():
    ratios = np.diff(np.log(later.STEPS))
    assert len(later.STEPS) == 12 and np.ptp(ratios) < 0.04
    for recipe in later.GRID.values():
        assert recipe.steps * recipe.windows * recipe.context == pytest.approx(2e8, rel=1e-4)
        assert (recipe.width, recipe.blocks, recipe.checkpoints[-1]) == (48, 6, recipe.steps)
    assert [recipe.architecture for recipe in later.GRID.values()] == ["neox", "llama"]


def test_prompt_means_average_to_the_whole_coupling(monkeypatch):
    monkeypatch.setattr(phases, "PROMPTS", 3)
    tokenizer = cl.load_model("nano-neox").tokenizer
    model = wrap_model(build(later.GRID["long-neox"]), tokenizer, name="long-neox")
    found, depth = later.of_prompts(model), cl.measure_depth(model, cl.load_prompts(n=3), ks=(10,))
    whole = 1 - depth["normalized_miscoupling"].sel(k=10).mean("prompt").values
    apart = whole[~np.eye(model.n_blocks, dtype=bool)]
    assert np.mean([found[f"coupling_p{i}"] for i in range(3)]) == pytest.approx(apart.mean())
    assert found["pair_2_4"] == pytest.approx(whole[2, 4]) != pytest.approx(whole[4, 2])
    assert sum(name.startswith("pair_") for name in found) == 6 * 5
    # What is seen on one prompt is not another's; an untrained block shrinks next to nothing.
    assert found["coupling_p0"] != found["coupling_p1"] and abs(found["shared_p0"] - found["coupling_p0"]) < 0.02
