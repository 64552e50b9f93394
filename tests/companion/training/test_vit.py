"""Training vision transformers: it learns, resumes without a trace, repeats by seed, and ships what loads."""

import json
from dataclasses import replace

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

import coupling_lib as cl
from companion.training import run_files, vit
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
    torch.testing.assert_close(weights(tmp_path), weights(run), rtol=0, atol=0)


def test_another_seed_gives_other_weights(run, data, tmp_path):
    other = weights(vit.train(replace(TINY, seed=1), data, tmp_path))
    assert any(not torch.equal(tensor, other[name]) for name, tensor in weights(run).items())
    message = "holds a run of another recipe"
    refused(ParameterError, message, vit.train, replace(TINY, weight_decay=0.1), data, tmp_path)


def test_models_of_one_seed_see_same_images(data):
    first, second = (replace(TINY, drop_path=rate, weight_decay=rate) for rate in (0.0, 0.5))
    one, two = (digest(vit.initialise(vit.configuration(recipe, data), 0)) for recipe in (first, second))
    assert one == two
    torch.testing.assert_close(vit.batch(first, data, 5), vit.batch(second, data, 5), rtol=0, atol=0)
    plain = replace(TINY, layers=0, erasing=0.0, mixing=0.0)
    n = vit.steps_per_epoch(plain, data)
    epoch = [vit.batch(plain, data, step)[0] for step in range(n + 1)]
    seen = (torch.cat(epoch[:n]) * 255).round().to(torch.uint8)
    assert {*map(bytes, seen.flatten(1).numpy())} <= {*map(bytes, data.train.flatten(1).numpy())}
    assert not torch.equal(epoch[0], epoch[n])


def test_learning_rate_warms_up_and_decays():
    recipe = replace(TINY, warmup_epochs=1)
    peak = recipe.learning_rate * recipe.batch / 512
    rates = [vit.learning_rate(recipe, step, 10) for step in range(21)]
    expected = [recipe.warmup_rate, peak, (peak + recipe.final_rate) / 2, recipe.final_rate]
    assert [rates[step] for step in (0, 10, 15, 20)] == pytest.approx(expected) and max(rates) == rates[10]


def test_weight_decay_spares_vectors_and_embeddings(data):
    model = vit.initialise(vit.configuration(TINY, data), 0)
    decayed, spared = run_files.adamw(model, TINY.learning_rate, TINY.weight_decay).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(p.ndim >= 2 for p in decayed["params"]) and decayed["weight_decay"] == TINY.weight_decay
    spared_matrices = {names[id(p)] for p in spared["params"] if p.ndim >= 2}
    assert spared_matrices == {"vit.embeddings.cls_token", "vit.embeddings.position_embeddings"}


def test_shipped_model_loads_trained_and_untrained(run, data, tmp_path):
    (folder := tmp_path / "tiny").mkdir()
    for _ in range(2):  # what was shipped before makes room for itself
        ship_vision("tiny", run, folder, data)
    record = json.loads((folder / "training.json").read_text())
    trained = cl.load_model(folder)
    assert (trained.d_model, trained.revision, trained.tokenizer) == (TINY.width, f"step{record['steps']}", None)
    assert vit.evaluate(trained.hf, data.test, data.test_labels)[0] == pytest.approx(record["test_accuracy"], abs=1e-4)
    for way in ({"revision": "step0"}, {"untrained": True, "seed": record["seed"]}):
        assert digest(cl.load_model(folder, **way).hf) == record["digest_step0"]
    card = (folder / "README.md").read_text()
    assert card.startswith("# tiny\n") and record["command"] in card and "rate 0.2 at the last block" in card


def test_folder_of_anything_else_is_not_removed(run, data, tmp_path):
    (tmp_path / "another-model").mkdir()
    message = "is not empty and holds no training.json, .*; name another folder with"
    refused(ParameterError, message, ship_vision, "tiny", run, tmp_path, data)
    assert (tmp_path / "another-model").exists()


@pytest.mark.parametrize("alias", ["nano-vit", "nano-vit-sd"])
def test_the_shipped_models_are_what_their_records_say(alias, data):
    record = json.loads((paths.CHECKPOINTS / alias / "training.json").read_text())
    model = cl.load_model(alias)
    accuracy, loss = vit.evaluate(model.hf, data.test, data.test_labels)
    assert (accuracy, loss) == pytest.approx((record["test_accuracy"], record["test_loss"]), abs=2e-3)
    assert accuracy > 0.9 and record["parameters"] == sum(p.numel() for p in model.hf.parameters())
    assert digest(cl.load_model(alias, revision="step0").hf) == record["digest_step0"]
    assert (record["recipe"]["drop_path"] > 0) == alias.endswith("-sd")


def test_images_are_averaged_to_a_smaller_side(data):
    small = vit.first(vit.shrunk(data, 4), 100)
    assert small.name == "digits-4px-100" and small.train.shape == (100, 1, 4, 4) and len(small.test) == len(data.test)
    wanted = data.train[7, 0].double().reshape(4, 2, 4, 2).mean(dim=(1, 3))
    assert (small.train[7, 0] - wanted).abs().max() <= 0.5 and small.train.dtype == torch.uint8
    assert torch.equal(small.train_labels, data.train_labels[:100])
    side = "side is 3; images of 8 pixels are averaged to a side that divides 8"
    refused(ParameterError, side, vit.shrunk, data, 3)
    refused(ParameterError, "pictures is 9999; digits has 1078 to train on", vit.first, data, 9999)
