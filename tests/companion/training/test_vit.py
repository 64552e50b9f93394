"""Training vision transformers: it learns, resumes without a trace, repeats by seed, and ships what loads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import coupling_lib as cl
from companion.training import vit
from companion.training.cards import digest, ship_vision
from coupling_lib import paths
from coupling_lib.errors import ParameterError

TINY = replace(vit.RECIPES["digits"], width=12, blocks=2, heads=2, patch=4, epochs=2, batch=128, drop_path=0.2)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return vit.train(TINY, data, tmp_path_factory.mktemp("run"))


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def test_recipe_defaults_are_those_of_deit():
    recipe = vit.RECIPES["cifar10"]
    assert (recipe.width, recipe.blocks, recipe.heads) == (192, 12, 3)
    assert (recipe.learning_rate, recipe.weight_decay, recipe.warmup_epochs, recipe.epochs) == (5e-4, 0.05, 5, 300)
    assert (recipe.mixup, recipe.cutmix, recipe.erasing, recipe.label_smoothing) == (0.8, 1.0, 0.25, 0.1)


def test_training_lowers_the_loss_of_held_out_images(run, data):
    trained = cl.load_model(run / "model").hf
    untrained = vit.initialise(vit.configuration(TINY, data), TINY.seed)
    before, after = (vit.evaluate(model, data.test, data.test_labels) for model in (untrained, trained))
    assert after[1] < before[1] - 0.01 and after[0] > 0.15


def test_resumed_run_ends_in_the_same_weights(run, data, tmp_path, killed_at):
    steps = killed_at(6, vit, "batch", lambda recipe, data, step: step)
    with pytest.raises(KeyboardInterrupt):
        vit.train(TINY, data, tmp_path, every_seconds=0.0)
    assert not (tmp_path / "model").exists()
    vit.train(TINY, data, tmp_path)
    assert steps[6] == 5 and steps[-1] == 2 * vit.steps_per_epoch(TINY, data) - 1
    ours, theirs = weights(tmp_path), weights(run)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and ours.keys() == theirs.keys()


def test_another_seed_gives_other_weights(run, data, tmp_path):
    other = weights(vit.train(replace(TINY, seed=1), data, tmp_path))
    assert any(not torch.equal(tensor, other[name]) for name, tensor in weights(run).items())
    with pytest.raises(ParameterError, match="holds a run of another recipe"):
        vit.train(replace(TINY, weight_decay=0.1), data, tmp_path)


def test_models_of_one_seed_see_same_images(data):
    first, second = (replace(TINY, drop_path=rate, weight_decay=rate) for rate in (0.0, 0.5))
    config = vit.configuration(first, data)
    assert digest(vit.initialise(config, 0)) == digest(vit.initialise(vit.configuration(second, data), 0))
    for a, b in zip(vit.batch(first, data, 5), vit.batch(second, data, 5), strict=True):
        assert torch.equal(a, b)
    plain = replace(TINY, layers=0, erasing=0.0, mixing=0.0)
    seen = torch.cat([vit.batch(plain, data, step)[0] for step in range(vit.steps_per_epoch(plain, data))])
    of_data = {tuple(image.flatten().tolist()) for image in data.train}
    assert {tuple((image * 255).round().to(torch.uint8).flatten().tolist()) for image in seen} <= of_data
    assert not torch.equal(vit.batch(plain, data, 0)[0], vit.batch(plain, data, vit.steps_per_epoch(plain, data))[0])


def test_learning_rate_warms_up_and_decays():
    recipe = replace(TINY, warmup_epochs=1)
    peak = recipe.learning_rate * recipe.batch / 512
    rates = [vit.learning_rate(recipe, step, 10) for step in range(21)]
    assert rates[0] == recipe.warmup_rate and rates[10] == pytest.approx(peak) and max(rates) == rates[10]
    assert rates[15] == pytest.approx((peak + recipe.final_rate) / 2) and rates[20] == pytest.approx(recipe.final_rate)


def test_weight_decay_spares_vectors_and_embeddings(data):
    model = vit.initialise(vit.configuration(TINY, data), 0)
    decayed, spared = vit._optimiser(model, TINY).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(p.ndim >= 2 for p in decayed["params"]) and decayed["weight_decay"] == TINY.weight_decay
    spared_matrices = {names[id(p)] for p in spared["params"] if p.ndim >= 2}
    assert spared_matrices == {"vit.embeddings.cls_token", "vit.embeddings.position_embeddings"}


def test_shipped_model_loads_trained_and_untrained(run, data, tmp_path):
    ship_vision("tiny", run, tmp_path / "tiny", data)
    record = json.loads((tmp_path / "tiny" / "training.json").read_text())
    trained = cl.load_model(tmp_path / "tiny")
    assert trained.revision == f"step{record['steps']}" and trained.tokenizer is None
    assert vit.evaluate(trained.hf, data.test, data.test_labels)[0] == pytest.approx(record["test_accuracy"], abs=1e-4)
    step0 = cl.load_model(tmp_path / "tiny", revision="step0")
    assert digest(step0.hf) == record["digest_step0"]
    assert digest(cl.load_model(tmp_path / "tiny", untrained=True, seed=record["seed"]).hf) == record["digest_step0"]
    card = (tmp_path / "tiny" / "README.md").read_text()
    assert card.startswith("# tiny\n") and record["command"] in card and "rate 0.2 at the last block" in card


def test_folder_of_anything_else_is_not_removed(run, data, tmp_path):
    (tmp_path / "another-model").mkdir()
    with pytest.raises(ParameterError, match="is not empty and holds no training.json, .*; name another folder with"):
        ship_vision("tiny", run, tmp_path, data)
    assert (tmp_path / "another-model").exists()
    (tmp_path / "empty").mkdir()
    for _ in range(2):  # what was shipped before makes room for itself
        ship_vision("tiny", run, tmp_path / "empty", data)
    assert cl.load_model(tmp_path / "empty").d_model == TINY.width


@pytest.mark.parametrize("alias", ["nano-vit", "nano-vit-sd"])
def test_the_shipped_models_are_what_their_records_say(alias, data):
    record = json.loads((paths.CHECKPOINTS / alias / "training.json").read_text())
    model = cl.load_model(alias)
    accuracy, loss = vit.evaluate(model.hf, data.test, data.test_labels)
    assert accuracy == pytest.approx(record["test_accuracy"], abs=2e-3) and loss == pytest.approx(
        record["test_loss"], abs=2e-3
    )
    assert accuracy > 0.9 and record["parameters"] == sum(p.numel() for p in model.hf.parameters())
    assert digest(cl.load_model(alias, revision="step0").hf) == record["digest_step0"]
    assert (record["recipe"]["drop_path"] > 0) == alias.endswith("-sd")


def test_images_are_averaged_to_a_smaller_side(data):
    small = vit.first(vit.shrunk(data, 4), 100)
    assert small.name == "digits-4px-100" and small.train.shape == (100, 1, 4, 4) and len(small.test) == len(data.test)
    wanted = data.train[7, 0].double().reshape(4, 2, 4, 2).mean(dim=(1, 3))
    assert (small.train[7, 0] - wanted).abs().max() <= 0.5 and small.train.dtype == torch.uint8
    assert torch.equal(small.train_labels, data.train_labels[:100])
    with pytest.raises(ParameterError, match="side is 3; images of 8 pixels are averaged to a side that divides 8"):
        vit.shrunk(data, 3)
    with pytest.raises(ParameterError, match="pictures is 9999; digits has 1078 to train on"):
        vit.first(data, 9999)
