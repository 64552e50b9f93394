"""The grid: every model trained and measured once, whatever interrupts it."""

from __future__ import annotations

import csv
import pickle
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import coupling_lib as cl
from companion.figures import vision as figures
from companion.tables import vit_grid as table_of
from companion.training import vit, vit_grid
from companion.training.__main__ import main
from coupling_lib import paths
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.inputs import images
from coupling_lib.metrics.variants import VARIANTS

TINY = replace(vit.RECIPES["digits"], width=12, blocks=2, heads=2, patch=4, epochs=2, batch=256)
RECIPES = vit_grid.grid((0.01, 0.1), (0.0, 0.5), TINY)


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    vit_grid.run_grid(RECIPES, data, folder, folder / "grid.csv", n_images=2)
    return folder


@pytest.mark.thorough
def test_cifar_grid_is_trained_read_and_drawn(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 3 * 32 * 32), dtype=np.uint8)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        batch = {b"data": pixels[10 * i : 10 * i + 10], b"labels": list(range(10))}
        (tmp_path / name).write_bytes(pickle.dumps(batch))
    monkeypatch.setitem(vit.RECIPES, "cifar10", replace(TINY, patch=16, batch=25, warmup_epochs=0, learning_rate=2.0))
    small = partial(vit_grid.grid, (0.01, 0.04, 0.1), (0.0, 0.3))
    monkeypatch.setitem(vit_grid.GRIDS, ("grid", "cifar10"), (small, "vit_grid.csv"))
    table = tmp_path / "cifar10.csv"
    where = ["--data", str(tmp_path), "--run", str(tmp_path / "run"), "--table", str(table)]
    main(["vit", "grid", "cifar10", *where, "--images", "2"])
    grid = table_of.read_grid(str(table))
    assert table_of.grid_provenance(grid, file="cifar10.csv").startswith("cifar10.csv: 6 ViTs on cifar10, 2 blocks")
    reading = table_of.nearest_reading(grid, 0, 10, "normalized_miscoupling")
    assert len(figures.draw_accuracy(figures.take_accuracy(grid, reading)).axes[0].collections) == 2
    assert len(figures.draw_accuracy_rates(figures.take_accuracy(grid, reading)).axes) == 2
    assert len(figures.draw_rates(figures.take_rates(grid, reading)).axes) == 2
    assert len(figures.draw_decays(figures.take_decays(grid, reading)).axes) == 3


def lines(table):
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_paper_grid_has_64_models_and_more_seeds():
    recipes = vit_grid.paper_grid(vit.RECIPES["digits"])
    assert len({recipe.name for recipe in recipes}) == len(recipes) == 64 + 16
    first = [recipe for recipe in recipes if recipe.seed == 0]
    assert {(r.weight_decay, r.drop_path) for r in first} == {
        (decay, rate) for decay in vit_grid.WEIGHT_DECAYS for rate in vit_grid.DROP_PATHS
    }
    assert {r.weight_decay for r in recipes if r.seed > 0} == {0.04}


def test_grid_table_has_one_line_per_model(made):
    table = lines(made / "grid.csv")
    assert [line["model"] for line in table] == [recipe.name for recipe in RECIPES]
    for token in ("class", "patch"):
        for name in VARIANTS:
            for ending in ("", "_low", "_high", "_all", "_null", "_untrained"):
                assert all(np.isfinite(float(line[f"{token}.k5.{name}{ending}"])) for line in table)
    assert all(0 <= float(line["test_accuracy"]) <= 1 and line["versions"] for line in table)


def test_table_line_equals_library_measurement(made, data):
    line = lines(made / "grid.csv")[1]
    model = cl.load_model(made / RECIPES[1].name / "model")
    pixels = images.pixels_for(data.test[:2] / 255, model.hf.config).split(1)
    ds = cl.measure_depth(model, pixels, ks=(5,), token=0)
    values = ds.normalized_miscoupling.sel(k=5).values
    assert float(line["class.k5.normalized_miscoupling"]) == pytest.approx(
        values[:, ~np.eye(2, dtype=bool)].mean(), rel=1e-3
    )
    assert float(line["class.k5.normalized_miscoupling_all"]) == pytest.approx(values.mean(), rel=1e-3)
    assert float(line["test_accuracy"]) == pytest.approx(
        vit.evaluate(model.hf, data.test, data.test_labels)[0], rel=1e-3
    )
    score = cl.measure_trajectories(model, pixels, token=-1).line_shape_score.mean()
    assert float(line["patch.line_shape_score"]) == pytest.approx(float(score), rel=1e-3)


def test_models_of_one_seed_start_alike(made, data):
    table = lines(made / "grid.csv")
    column = "class.k5.normalized_miscoupling_untrained"
    assert len({line[column] for line in table}) == 1
    assert len({line["class.k5.normalized_miscoupling"] for line in table}) == len(table)
    with pytest.raises(ParameterError, match="holds models with epochs = 2, not 3"):
        vit_grid.run_grid([replace(RECIPES[0], epochs=3)], data, made, made / "grid.csv")


def test_an_interrupted_grid_goes_on_where_it_was(made, data, tmp_path, killed_at):
    table = tmp_path / "grid.csv"
    trained = killed_at(3, vit, "train", lambda recipe, *_: recipe.name)
    with pytest.raises(KeyboardInterrupt):
        vit_grid.run_grid(RECIPES, data, tmp_path, table, n_images=2)
    vit_grid.run_grid(RECIPES, data, tmp_path, table, n_images=2)
    assert trained == [recipe.name for recipe in [*RECIPES[:3], *RECIPES[2:]]]
    found, wanted = (lines(each) for each in (table, made / "grid.csv"))
    for line in (*found, *wanted):
        del line["seconds"], line["measuring_seconds"]
    assert found == wanted


def test_the_projects_table_holds_the_papers_grid():
    table = lines(paths.DATA / "vit_grid.csv")
    wanted = {r.name for r in vit_grid.paper_grid(vit.RECIPES["digits"])}
    assert {line["model"] for line in table} == wanted
    assert (paths.DATA / "vit_grid.csv").stat().st_size < 1_000_000
    assert all(float(line["test_accuracy"]) > 0.8 for line in table)
    torch_versions = {line["versions"] for line in table}
    assert len(torch_versions) == 1 and torch.__version__.split("+")[0] in torch_versions.pop()


def test_every_photograph_model_has_its_own_seed():
    recipes = vit_grid.independent_grid(vit.RECIPES["cifar10-small"])
    assert sorted(r.seed for r in recipes) == list(range(80))
    cells = Counter((r.weight_decay, r.drop_path) for r in recipes)
    diagonal = set(zip(vit_grid.WEIGHT_DECAYS, vit_grid.DROP_PATHS, strict=True))
    assert len(cells) == 64 and {cell for cell, count in cells.items() if count == 3} == diagonal
    assert [r.seed for r in recipes] != list(range(80))
    table = pd.read_csv(paths.DATA / "cifar_grid.csv")
    assert set(table["model"]) <= {r.name for r in recipes} and table["seed"].is_unique
    assert (table["test_pictures"] == 10_000).all()
    assert len(table.drop_duplicates(["weight_decay", "drop_path"])) == 64
    assert table["test_accuracy"].between(0.35, 0.5).all()
    assert (paths.DATA / "cifar_grid.csv").stat().st_size < 1_000_000


def test_pairs_differ_only_in_the_drop_rate():
    base = vit.RECIPES["cifar10-small"]
    recipes = vit_grid.switched_pairs(base)
    assert len(recipes) == 80 and not {r.seed for r in recipes} & {r.seed for r in vit_grid.independent_grid(base)}
    for without, most in zip(recipes[::2], recipes[1::2], strict=True):
        assert (without.drop_path, most.drop_path) == (0.0, 0.5) and replace(without, drop_path=0.5) == most
    assert set(Counter(r.weight_decay for r in recipes).values()) == {10}
    table = pd.read_csv(paths.DATA / "cifar_pairs.csv")
    assert sorted(table["model"]) == sorted(r.name for r in recipes) and (table["test_pictures"] == 10_000).all()
    assert table["test_accuracy"].between(0.35, 0.5).all()
    assert (paths.DATA / "cifar_pairs.csv").stat().st_size < 1_000_000


def test_pairs_of_unsupported_recipe_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["vit", "pairs", "digits", "--data", "nowhere"])
    assert "there are no pairs of 'digits'; take cifar10-small" in capsys.readouterr().err


def test_interval_over_images_is_close_to_bootstrap():
    values = np.random.default_rng(1).exponential(size=30)
    draws = np.random.default_rng(0).integers(0, 30, size=(500, 30))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    found = vit_grid._with_interval("c", values)
    assert found == pytest.approx({"c": values.mean(), "c_low": low, "c_high": high}, abs=0.05)
    assert found == vit_grid._with_interval("c", values)
    assert set(vit_grid._with_interval("c", np.full(6, 0.25)).values()) == {0.25}
    with pytest.raises(ParameterError, match="c is known of 1 image; .* at least two"):
        vit_grid._with_interval("c", np.ones(1))
    with pytest.raises(UntrustworthyResultError, match="1 NaN or infinite of 2"):
        vit_grid._with_interval("c", np.array([1.0, np.nan]))
