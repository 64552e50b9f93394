"""The training recipe: it learns, resumes without a trace, and refuses what is not its own."""

import json
import math
from dataclasses import replace

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from companion.training import language
from companion.training.cards import digest, ship_language
from companion.training.language import RECIPES, Recipe, configuration, initialise, learning_rate
from companion.training.run_files import read_log
from coupling_lib.errors import ParameterError

TINY = Recipe(
    "neox", width=32, blocks=2, heads=2, mlp_width=64, vocabulary=300, context=32, windows=8,
    steps=12, checkpoints=(4, 12), warmup=2, held_out=0.2, learning_rate=5e-3,
)  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for i in range(5):
        (folder / f"{i}.txt").write_text(f"Number {i} said that the sea was calm and the night was long. " * 80)
    return folder


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    return language.train(TINY, source, tmp_path_factory.mktemp("run"))


def rows(run):
    return read_log(run / "log.csv", until=10**9)


def test_validation_loss_falls_from_uniform_guess(run, source):
    log = rows(run)
    assert [row["step"] for row in log] == [0, 4, 12] and log[-1]["tokens"] == 12 * 8 * 32
    assert log[0]["validation_loss"] == pytest.approx(math.log(300), rel=0.05)
    assert log[-1]["validation_loss"] < 0.8 * log[0]["validation_loss"]
    refused(ParameterError, "holds a run of another recipe", language.train, replace(TINY, seed=1), source, run)


def test_resumed_run_ends_in_the_same_weights(run, source, tmp_path, killed_at):
    steps_taken = killed_at(7, language.text, "batch", lambda stream, step, *_: step)
    with pytest.raises(KeyboardInterrupt):
        language.train(TINY, source, tmp_path, every_seconds=0.0)
    language.train(TINY, source, tmp_path, every_seconds=0.0)
    assert steps_taken == [*range(7), *range(6, 12)]
    for step in (4, 12):
        ours, theirs = (load_file(each / f"step{step}/model.safetensors") for each in (tmp_path, run))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert {tensor.dtype for tensor in theirs.values()} == {torch.float16}
    assert [row["validation_loss"] for row in rows(tmp_path)] == [row["validation_loss"] for row in rows(run)]


def test_learning_rate_warms_up_and_decays():
    recipe = Recipe("neox", steps=1000, warmup=100, learning_rate=1.0)
    found = [learning_rate(recipe, step) for step in (0, 99, 550, 1000)]
    assert found == pytest.approx([0.01, 1.0, 0.55, 0.1])


def test_llama_recipe_shares_keys_and_values():
    refused(ParameterError, "architecture is 'mamba'", configuration, Recipe("mamba"))
    config = configuration(RECIPES["nano-llama"])
    assert (config.model_type, config.num_attention_heads, config.num_key_value_heads) == ("llama", 6, 2)


def test_shipped_folder_can_regenerate_step_0(run, tmp_path):
    target = tmp_path / "tiny"
    ship_language("tiny", run, target, "five made-up texts")
    record = json.loads((target / "training.json").read_text())
    assert digest(initialise(configuration(TINY), record["seed"])) == record["digest_step0"]
    assert [row["step"] for row in record["checkpoints"]] == [0, 4, 12]
    assert record["checkpoints"][-1]["validation_loss"] == pytest.approx(rows(run)[-1]["validation_loss"], abs=1e-4)
    assert {path.name for path in target.iterdir()} >= {"model.safetensors", "tokenizer.json", "config.json", "step4"}
    card = (target / "README.md").read_text()
    assert "five made-up texts" in card and record["sample"].splitlines()[0] in card and "| step12 | 3,072 |" in card


@pytest.mark.parametrize(("own", "asked"), [(TINY.seed, "tiny TEXT"), (7, f"tiny TEXT --seed {TINY.seed}")])
def test_recorded_command_includes_a_differing_seed(own, asked, run, tmp_path, monkeypatch):
    monkeypatch.setitem(language.RECIPES, "tiny", replace(TINY, seed=own))
    ship_language("tiny", run, tmp_path / "tiny", "texts")
    assert f"language {asked} --data texts" in json.loads((tmp_path / "tiny" / "training.json").read_text())["command"]


def test_unfinished_runs_and_foreign_folders_are_refused(run, tmp_path):
    (tmp_path / "recipe.json").write_text((run / "recipe.json").read_text())
    refused(ParameterError, "has not reached step 12", ship_language, "tiny", tmp_path, tmp_path / "target", "")
    foreign = "is not empty and holds no training.json"
    refused(ParameterError, foreign, ship_language, "tiny", run, tmp_path, "texts")
    assert (tmp_path / "recipe.json").exists()
