"""Runs with the regulariser and their twins without: same start, same batches, resumable, another end."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from companion.training import experiment, regularised
from companion.training.experiment import build, cross_entropy
from companion.training.regularised import EXPERIMENT, RegularisedRecipe, ramp, recipes

TINY = RegularisedRecipe(
    "neox", width=16, blocks=2, heads=2, kv_heads=2, mlp_width=32, vocabulary=300, context=32, windows=4,
    steps=12, checkpoints=(12,), warmup=2, begin=3, rise=2, corpus="grammar", precision="float32", pieces=4, probes=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Both sides of one seed."""
    folder = tmp_path_factory.mktemp("pairs")
    chosen = {"without": TINY, "with": replace(TINY, strength=1.0)}
    experiment.run(replace(EXPERIMENT, recipes=chosen), None, folder / "run", folder / "table.csv")
    return folder, chosen, pd.read_csv(folder / "table.csv", comment="#").set_index(["model", "step"])


def test_strength_is_zero_then_ramps_up():
    assert [ramp(step, replace(TINY, begin=2, rise=2)) for step in range(6)] == [0, 0, 0, 0.5, 1, 1]


def test_runs_of_a_seed_differ_only_in_regulariser():
    runs = recipes()
    assert len(runs) == 66 and {recipe.seed for recipe in runs.values()} == set(range(6))
    for name, recipe in runs.items():
        twin = runs[f"without-seed{recipe.seed}"]
        bare = replace(recipe, strength=0.0, begin=0, shared=False, sham=False, checkpoints=twin.checkpoints)
        assert bare == twin, name
        assert 600 in recipe.checkpoints and (recipe.begin == 0 or 300 not in recipe.checkpoints)


@pytest.mark.thorough
def test_the_regularised_side_ends_elsewhere_and_more_coupled(finished):
    _, _, table = finished
    assert list(table.index) == [("without", 0), ("without", 12), ("with", 12)]
    without, with_it = table.loc["without", 12], table.loc["with", 12]
    assert with_it.coupling_loss < without.coupling_loss
    assert with_it.validation_loss != without.validation_loss < table.loc["without", 0].validation_loss


def test_a_finished_run_is_not_repeated(finished, monkeypatch):
    folder, chosen, table = finished
    monkeypatch.setattr(experiment, "fit", lambda *_, **__: pytest.fail("trained again"))
    experiment.run(replace(EXPERIMENT, recipes=chosen), None, folder / "run", folder / "again.csv", names=["with"])
    again = pd.read_csv(folder / "again.csv", comment="#").set_index(["model", "step"])
    assert again.loc["with", 12].validation_loss == pytest.approx(table.loc["with", 12].validation_loss, rel=1e-5)


def test_objective_adds_the_regulariser_with_its_sign(monkeypatch):
    model, ids = build(TINY), torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(0))
    plain = cross_entropy(model, ids, 0, TINY)
    assert torch.equal(regularised.objective(model, ids, 11, TINY), plain)
    assert torch.equal(regularised.objective(model, ids, 0, replace(TINY, strength=1.0)), plain)
    assert regularised.objective(model, ids, 11, replace(TINY, strength=1.0)) > plain
    assert regularised.objective(model, ids, 11, replace(TINY, strength=-1.0)) < plain


def test_sham_gradient_has_equal_norm_and_other_direction():
    ids, found = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(0)), {}
    for name, recipe in {"plain": TINY, "real": replace(TINY, strength=0.5)}.items():
        found[name] = gradients(recipe, ids)
    found["sham"] = gradients(replace(TINY, strength=0.5, sham=True), ids)
    value, plain = (regularised.objective(build(r), ids, 11, r) for r in (replace(TINY, strength=0.5, sham=True), TINY))
    assert value.item() == pytest.approx(plain.item(), rel=1e-5)
    for weight, plain in found["plain"].items():
        real, sham = found["real"][weight] - plain, found["sham"][weight] - plain
        if real.norm() > 1e-5:
            assert float(sham.norm()) == pytest.approx(float(real.norm()), rel=2e-2), weight
        if real.numel() > 200 and real.norm() > 1e-5:
            assert abs(float((sham * real).sum() / sham.norm() / real.norm())) < 0.5, weight


def gradients(recipe, ids):
    model = build(recipe)
    torch.manual_seed(3)
    regularised.objective(model, ids, 11, recipe).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}
