"""Runs with the regulariser and their twins without: same start, same batches, resumable, another end."""

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


CHOSEN = replace(EXPERIMENT, recipes={"without": TINY, "with": replace(TINY, strength=1.0)})


def rows(folder, name="table", **only):
    experiment.run(CHOSEN, None, folder / "run", folder / f"{name}.csv", **only)
    return pd.read_csv(folder / f"{name}.csv", comment="#").set_index(["model", "step"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Both sides of one seed."""
    folder = tmp_path_factory.mktemp("pairs")
    return folder, rows(folder)


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
    _, table = finished
    assert list(table.index) == [("without", 0), ("without", 12), ("with", 12)]
    without, with_it = table.loc["without", 12], table.loc["with", 12]
    assert with_it.coupling_loss < without.coupling_loss
    assert with_it.validation_loss != without.validation_loss < table.loc["without", 0].validation_loss


def test_a_finished_run_is_not_repeated(finished, monkeypatch):
    folder, table = finished
    monkeypatch.setattr(experiment, "fit", lambda *_, **__: pytest.fail("trained again"))
    again = rows(folder, "again", names=["with"])
    assert again.loc["with", 12].validation_loss == pytest.approx(table.loc["with", 12].validation_loss, rel=1e-5)


IDS = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(0))


def test_objective_adds_the_regulariser_with_its_sign():
    model, strong = build(TINY), replace(TINY, strength=1.0)
    plain = cross_entropy(model, IDS, 0, TINY)
    for step, recipe in ((11, TINY), (0, strong)):
        assert torch.equal(regularised.objective(model, IDS, step, recipe), plain)
    assert regularised.objective(model, IDS, 11, strong) > plain
    assert regularised.objective(model, IDS, 11, replace(TINY, strength=-1.0)) < plain


def test_sham_gradient_has_equal_norm_and_other_direction():
    def gradients(recipe):
        model = build(recipe)
        torch.manual_seed(3)
        value = regularised.objective(model, IDS, 11, recipe)
        value.backward()
        return value.item(), {name: weight.grad for name, weight in model.named_parameters()}

    value, plain = gradients(TINY)
    _, real = gradients(replace(TINY, strength=0.5))
    same, sham = gradients(replace(TINY, strength=0.5, sham=True))
    assert same == pytest.approx(value, rel=1e-5)
    for name, weight in plain.items():
        ours, theirs = sham[name] - weight, real[name] - weight
        if theirs.norm() > 1e-5:
            assert float(ours.norm()) == pytest.approx(float(theirs.norm()), rel=2e-2), name
            assert weight.numel() <= 200 or abs(float((ours * theirs).sum() / ours.norm() / theirs.norm())) < 0.5, name
