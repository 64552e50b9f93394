"""Which training steps a model has, and the figures of how good it was."""

import csv
import json
import re

from refusals import refused
from tiny import save_llama

from coupling_lib import paths
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.models import checkpoints


def test_models_and_folders_have_known_training_steps(tmp_path):
    assert checkpoints.known_steps("nano-neox") == (0, 10, 32, 100, 316, 1000, 3162, 10000)
    assert checkpoints.known_steps("nano-llama") == (0, 10000)
    steps = checkpoints.known_steps("pythia-12b")
    assert checkpoints.known_steps("EleutherAI/pythia-12b") == steps and set(checkpoints.PYTHIA_SPACED) <= set(steps)
    assert len(steps) == len(set(steps)) == 154 and steps[:5] == (0, 1, 2, 4, 8) and steps[-1] == 143_000
    save_llama(tmp_path)
    for name in (tmp_path, "gpt2", "some/model"):
        assert (checkpoints.known_steps(name), checkpoints.progress(name)) == ((), checkpoints.Progress("", {}))
    record = {"steps": 500, "seed": 0, "checkpoints": [{"step": 0, "validation_loss": 5.5}]}
    (tmp_path / "training.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "step50").mkdir()
    (tmp_path / "step50" / "config.json").write_text("{}", encoding="utf-8")
    assert checkpoints.known_steps(str(tmp_path)) == (0, 50, 500)
    assert checkpoints.progress(tmp_path).values == {0: 5.5}


def test_unknown_training_steps_are_refused():
    assert checkpoints.choose_steps("nano-llama") == (0, 10000)
    assert checkpoints.choose_steps("pythia-70m") == checkpoints.PYTHIA_SPACED
    assert checkpoints.choose_steps("nano-neox", "1000, 0,32") == (0, 32, 1000)
    assert checkpoints.choose_steps("some/model", "0,7") == (0, 7)  # of an unknown repository they are tried
    no_step = r"'pythia-70m' has no step 1500; choose from 0, 1, 2, .*, \.\.\., 143000"
    refused(ParameterError, no_step, checkpoints.choose_steps, "pythia-70m", "0,1500")
    one = r"'gpt2' has one revision.* nano-neox, nano-llama,.* pythia-70m"
    refused(ModelUnavailableError, one, checkpoints.choose_steps, "gpt2")
    misspelt = "no model is called 'nano-nox'; did you mean 'nano-neox'"
    refused(ModelUnavailableError, misspelt, checkpoints.choose_steps, "nano-nox")
    for steps in ["5", 5, "0,,5", "0,0", "0,-1", "0,1e3", "a,b", " ", True, None]:
        refused(ParameterError, "it must be two or more training steps", checkpoints.parse_steps, steps)


def test_pythia_accuracies_rise_and_have_a_source():
    for alias in [name for name in checkpoints.models_with_steps() if name.startswith("pythia")]:
        progress = checkpoints.progress(alias)
        assert progress.label == "zero-shot accuracy (%, mean of 6 tasks)"
        assert set(checkpoints.PYTHIA_SPACED) <= set(progress.values) <= set(checkpoints.PYTHIA)
        assert 25 < progress.values[0] < 31 < progress.values[143_000] < 70
    lines = (paths.DATA / "pythia_evals_mean.csv").read_text(encoding="utf-8").splitlines()
    head = "\n".join(line for line in lines if line.startswith("#"))
    assert re.search(r"EleutherAI/pythia.*commit", head) and "Apache-2.0" in head
    rows = [(row["model"], row["step"]) for row in csv.DictReader(line for line in lines if not line.startswith("#"))]
    assert len(rows) == len(set(rows)) == 8 * 26 and "1" not in {step for _, step in rows}
