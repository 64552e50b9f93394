"""The grid: every model trained and measured once, whatever interrupts it."""

import pickle
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

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
PHOTOGRAPHS = vit.RECIPES["cifar10-small"]
RECIPES = vit_grid.grid((0.01, 0.1), (0.0, 0.5), TINY)


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    vit_grid.run_grid(RECIPES, data, folder, folder / "grid.csv", n_images=2)
    return folder


@pytest.mark.thorough
def test_cifar_grid_is_trained_read_and_drawn(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 10, 3 * 32 * 32), dtype=np.uint8)
    for name, ten in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], pixels, strict=True):
        (tmp_path / name).write_bytes(pickle.dumps({b"data": ten, b"labels": list(range(10))}))
    monkeypatch.setitem(vit.RECIPES, "cifar10", replace(TINY, patch=16, batch=25, warmup_epochs=0, learning_rate=2.0))
    small = partial(vit_grid.grid, (0.01, 0.04, 0.1), (0.0, 0.3))
    monkeypatch.setitem(vit_grid.GRIDS, ("grid", "cifar10"), (small, "vit_grid.csv"))
    table = str(tmp_path / "cifar10.csv")
    where = ["--data", str(tmp_path), "--run", str(tmp_path / "run"), "--table", table]
    main(["vit", "grid", "cifar10", *where, "--images", "2"])
    grid = table_of.read_grid(table)
    assert table_of.grid_provenance(grid, file="cifar10.csv").startswith("cifar10.csv: 6 ViTs on cifar10, 2 blocks")
    reading = table_of.nearest_reading(grid, 0, 10, "normalized_miscoupling")
    accuracy = figures.take_accuracy(grid, reading)
    assert len(figures.draw_accuracy(accuracy).axes[0].collections) == 2
    assert len(figures.draw_accuracy_rates(accuracy).axes) == 2
    assert len(figures.draw_rates(figures.take_rates(grid, reading)).axes) == 2
    assert len(figures.draw_decays(figures.take_decays(grid, reading)).axes) == 3


def test_grid_table_has_one_line_per_model(made):
    table = pd.read_csv(made / "grid.csv")
    assert table["model"].tolist() == [recipe.name for recipe in RECIPES]
    endings = ("", "_low", "_high", "_all", "_null", "_untrained")
    columns = [f"{token}.k5.{name}{end}" for token in ("class", "patch") for name in VARIANTS for end in endings]
    assert np.isfinite(table[columns]).all(axis=None)
    assert table["test_accuracy"].between(0, 1).all() and table["versions"].notna().all()
    coupling = "class.k5.normalized_miscoupling"
    assert table[f"{coupling}_untrained"].nunique() == 1  # models of one seed start alike
    assert table[coupling].is_unique


def test_grid_of_other_settings_is_refused(made, data):
    message, other = "holds models with epochs = 2, not 3", [replace(RECIPES[0], epochs=3)]
    refused(ParameterError, message, vit_grid.run_grid, other, data, made, made / "grid.csv")


def test_table_line_equals_library_measurement(made, data):
    line = pd.read_csv(made / "grid.csv").loc[1]
    model = cl.load_model(made / RECIPES[1].name / "model")
    pixels = images.pixels_for(data.test[:2] / 255, model.hf.config).split(1)
    values = cl.measure_depth(model, pixels, ks=(5,), token=0).normalized_miscoupling.sel(k=5).values
    wanted = {
        "class.k5.normalized_miscoupling": values[:, ~np.eye(2, dtype=bool)].mean(),
        "class.k5.normalized_miscoupling_all": values.mean(),
        "test_accuracy": vit.evaluate(model.hf, data.test, data.test_labels)[0],
        "patch.line_shape_score": float(cl.measure_trajectories(model, pixels, token=-1).line_shape_score.mean()),
    }
    assert line[[*wanted]].to_dict() == pytest.approx(wanted, rel=1e-3)


def test_an_interrupted_grid_goes_on_where_it_was(made, data, tmp_path, killed_at):
    table = tmp_path / "grid.csv"
    trained = killed_at(3, vit, "train", lambda recipe, *_: recipe.name)
    with pytest.raises(KeyboardInterrupt):
        vit_grid.run_grid(RECIPES, data, tmp_path, table, n_images=2)
    vit_grid.run_grid(RECIPES, data, tmp_path, table, n_images=2)
    assert trained == [recipe.name for recipe in [*RECIPES[:3], *RECIPES[2:]]]
    found, wanted = (pd.read_csv(each).filter(regex="^(?!.*seconds)") for each in (table, made / "grid.csv"))
    pd.testing.assert_frame_equal(found, wanted, check_exact=True)


def shipped(name: str) -> pd.DataFrame:
    """A table of the project, small enough for its repository."""
    path = paths.DATA / f"{name}.csv"
    assert path.stat().st_size < 1_000_000
    return pd.read_csv(path)


def test_paper_grid_has_64_models_and_more_seeds():
    recipes, table = vit_grid.paper_grid(vit.RECIPES["digits"]), shipped("vit_grid")
    names = {r.name for r in recipes}
    assert len(recipes) == 64 + 16 == len(names) and set(table["model"]) == names
    crossed = set(product(vit_grid.WEIGHT_DECAYS, vit_grid.DROP_PATHS))
    assert {(r.weight_decay, r.drop_path) for r in recipes if r.seed == 0} == crossed
    assert {r.weight_decay for r in recipes if r.seed > 0} == {0.04}
    (versions,) = table["versions"].unique()
    assert (table["test_accuracy"] > 0.8).all() and torch.__version__.split("+")[0] in versions


def test_every_photograph_model_has_its_own_seed():
    recipes = vit_grid.independent_grid(PHOTOGRAPHS)
    seeds = [r.seed for r in recipes]
    assert sorted(seeds) == list(range(80)) != seeds
    cells = Counter((r.weight_decay, r.drop_path) for r in recipes)
    diagonal = set(zip(vit_grid.WEIGHT_DECAYS, vit_grid.DROP_PATHS, strict=True))
    assert len(cells) == 64 and {cell for cell, count in cells.items() if count == 3} == diagonal
    table = shipped("cifar_grid")
    assert set(table["model"]) <= {r.name for r in recipes} and table["seed"].is_unique
    assert len(table.drop_duplicates(["weight_decay", "drop_path"])) == 64
    assert (table["test_pictures"] == 10_000).all() and table["test_accuracy"].between(0.35, 0.5).all()


def test_pairs_differ_only_in_the_drop_rate():
    recipes = vit_grid.switched_pairs(PHOTOGRAPHS)
    assert len(recipes) == 80
    assert not {r.seed for r in recipes} & {r.seed for r in vit_grid.independent_grid(PHOTOGRAPHS)}
    for without, most in zip(recipes[::2], recipes[1::2], strict=True):
        assert (without.drop_path, most.drop_path) == (0.0, 0.5) and replace(without, drop_path=0.5) == most
    assert set(Counter(r.weight_decay for r in recipes).values()) == {10}
    table = shipped("cifar_pairs")
    assert sorted(table["model"]) == sorted(r.name for r in recipes)
    assert (table["test_pictures"] == 10_000).all() and table["test_accuracy"].between(0.35, 0.5).all()


def test_interval_over_images_is_close_to_bootstrap():
    values = np.random.default_rng(1).exponential(size=30)
    draws = np.random.default_rng(0).integers(0, 30, size=(500, 30))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    found = vit_grid._with_interval("c", values)
    assert found == pytest.approx({"c": values.mean(), "c_low": low, "c_high": high}, abs=0.05)
    assert found == vit_grid._with_interval("c", values)
    assert set(vit_grid._with_interval("c", np.full(6, 0.25)).values()) == {0.25}
    refused(ParameterError, "c is known of 1 image; .* at least two", vit_grid._with_interval, "c", np.ones(1))
    values = np.array([1.0, np.nan])
    refused(UntrustworthyResultError, "1 NaN or infinite of 2", vit_grid._with_interval, "c", values)
