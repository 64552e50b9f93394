"""Pairs of runs with and without the regulariser: same start, same batches, resumable, another end."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

from companion.training import regularised
from companion.training.regularised import HEADER, RegularisedRecipe, ramp, recipes, train_one
from companion.training.suite import build, run_all
from coupling_lib.paths import DATA

TINY = RegularisedRecipe(
    "neox", width=16, blocks=2, heads=2, kv_heads=2, mlp_width=32, vocabulary=300, context=32, windows=4,
    steps=12, checkpoints=(12,), warmup=2, corpus="grammar", precision="float32", pieces=4, probes=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Both sides of one seed."""
    folder = tmp_path_factory.mktemp("pairs")
    chosen = {"without": TINY, "with": replace(TINY, strength=1.0)}
    run_all(chosen, train_one, None, folder / "run", folder / "table.csv", list(chosen), "", HEADER)
    return folder, chosen, pd.read_csv(folder / "table.csv", comment="#").set_index(["model", "step"])


def test_the_ramp_waits_rises_and_stays():
    assert [ramp(step, 8) for step in range(8)] == [0, 0, 0, 0.5, 1, 1, 1, 1]


def test_both_sides_of_a_seed_differ_in_the_strength_alone():
    runs = recipes()
    assert len(runs) == 15 and {recipe.seed for recipe in runs.values()} == set(range(5))
    for recipe in runs.values():
        assert replace(recipe, strength=0.0) == runs[f"strength0-seed{recipe.seed}"]


def test_the_regularised_side_ends_elsewhere_and_more_coupled(finished):
    _, _, table = finished
    assert list(table.index) == [("without", 0), ("without", 12), ("with", 12)]
    without, with_it = table.loc["without", 12], table.loc["with", 12]
    assert with_it.coupling_loss < without.coupling_loss
    assert with_it.validation_loss != without.validation_loss < table.loc["without", 0].validation_loss


def test_a_finished_run_is_not_repeated(finished, monkeypatch):
    folder, chosen, table = finished
    monkeypatch.setattr(regularised, "fit", lambda *_, **__: pytest.fail("trained again"))
    run_all({"with": chosen["with"]}, train_one, None, folder / "run", folder / "again.csv", ["with"], "", HEADER)
    again = pd.read_csv(folder / "again.csv", comment="#").set_index(["model", "step"])
    assert again.loc["with", 12].validation_loss == pytest.approx(table.loc["with", 12].validation_loss, rel=1e-5)


def test_strength_zero_minimises_the_cross_entropy_alone(monkeypatch):
    model, ids = build(TINY), torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(0))
    plain = regularised.loss(model, ids)
    assert torch.equal(regularised.objective(model, ids, 11, TINY), plain)
    assert torch.equal(regularised.objective(model, ids, 0, replace(TINY, strength=1.0)), plain)
    assert regularised.objective(model, ids, 11, replace(TINY, strength=1.0)) > plain


def test_the_differences_of_the_shipped_runs_are_told_one_to_a_line():
    lines = regularised.differences(DATA / "regulariser.csv")
    assert {line.split(":")[0] for line in lines} == {"strength 0.3", "strength 0.03"}
    assert all(re.search(r"changes by [+-]\d\.\d{4} \(95 % interval .* 5 pairs\)$", line) for line in lines)
