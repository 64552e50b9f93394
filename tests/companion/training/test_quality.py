"""Quality at fixed size: what is varied is exact, scores are known where the model is, nothing is measured twice."""

import hashlib
import itertools
import subprocess
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused
from torch.nn import functional

from companion.tables import files
from companion.tables.files import read_table
from companion.training import quality, scores, text
from companion.training.__main__ import EXPERIMENTS, main
from companion.training.quality import GRID, SEEDS, STEPS, QualityRecipe, corrupt, limited
from companion.training.text import grammar_text
from coupling_lib.errors import ParameterError
from coupling_lib.paths import DATA, ROOT

FILE = DATA / "quality.csv"
TABLE = read_table(FILE)
PREDICTED = tomllib.loads(files.PREDICTIONS.read_text(encoding="utf-8"))["experiment"]


def test_grid_crosses_every_pair_of_factors():
    levels = pd.DataFrame([vars(recipe) for recipe in GRID.values()])
    varied = {"corrupted": 4, "unique_tokens": 3, "learning_rate": 3}
    assert len(GRID) == 26 == PREDICTED["quality"]["n"] and levels[[*varied]].nunique().to_dict() == varied
    assert levels["seed"].nunique() == 3 and len(levels.drop(columns="seed").astype(str).drop_duplicates()) == 24
    assert {recipe.seed for name, recipe in GRID.items() if name.startswith("centre")} == set(SEEDS)
    for one, other in itertools.combinations(varied, 2):
        assert len(levels[[one, other]].drop_duplicates()) == varied[one] * varied[other]
    shape = levels.drop(columns=[*varied, "seed"]).astype(str).drop_duplicates()
    assert (shape.width.item(), shape.blocks.item()) == ("64", "8") and STEPS[-1] * 32 * 128 == 12_001_280


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1.0])
def test_exact_share_of_tokens_is_corrupted(share):
    ids = torch.randint(0, 300, (8, 64), generator=torch.Generator().manual_seed(0))
    found = corrupt(ids, share, 1, 7, 300)
    assert int((found != ids).sum()) == round(share * 512) and 0 <= int(found.min()) <= int(found.max()) < 300
    torch.manual_seed(5)
    assert torch.equal(found, corrupt(ids, share, 1, 7, 300))
    for seed, step in ((1, 8), (2, 7)):
        assert torch.equal(found, corrupt(ids, share, seed, step, 300)) == (share == 0)


def test_invalid_corrupted_share_is_refused():
    for share in (1.1, -0.1, float("nan")):
        message = f"corrupted is {share}; expected a share of the tokens, from 0 to 1"
        refused(ParameterError, message, replace, quality.CENTRE, corrupted=share)


def test_limited_text_spans_the_whole_text():
    stream = np.arange(100_000)
    found = limited(stream, 10_000)
    assert len(found) == len(set(found)) == 10_000
    assert (found[0], found[-1]) == (0, 99_999) and np.ptp(found[4096:8192]) == 4095
    assert len(limited(stream, 100_000)) == 100_000 == len(set(limited(stream, 99_999))) + 1
    assert limited(stream, 0) is stream
    message = "the text has 100,000 tokens to train on; 100,001 are asked for"
    refused(ParameterError, message, limited, stream, 100_001)


@pytest.fixture
def library(tmp_path):
    """A folder of four books by three authors."""
    folder = tmp_path / "books"
    folder.mkdir()
    for number, name in enumerate(("Early_One_1900", "Early_Two_1901", "Late_One_1950", "Held_One_1910")):
        (folder / f"{name}.txt").write_text(grammar_text(60)[number * 50 :])
    return folder


def test_whole_authors_are_held_out(library):
    train, held = text.read_texts(library, ("Held", "Early"), seed=0)
    assert list(train) == ["Late_One_1950.txt"]
    assert list(held) == ["Early_One_1900.txt", "Early_Two_1901.txt", "Held_One_1910.txt"]
    for authors, message in (
        (("Held", "Nobody"), "has no file of the held-out author 'Nobody'; expected a folder of files"),
        (("Held", "Early", "Late"), "are by held-out authors; there is nothing to train on"),
    ):
        refused(ParameterError, message, text.read_texts, library, authors, seed=0)


def uniform(ids):
    return torch.zeros(*ids.shape, 500)


def test_induction_is_perfect_for_a_copying_model():
    def copying(ids):
        half = ids.shape[1] // 2
        copied = 20.0 * functional.one_hot(ids.roll(half - 1, dims=1), 500).float()
        copied[:, : half - 1] = 0  # there is nothing to copy from yet
        return copied

    right, gain = scores.induction(copying, 500, 64)
    assert len(right) == len(gain) == scores.SEQUENCES
    assert right.mean() == 1 and gain.mean() == pytest.approx(np.log(500), abs=1e-3)
    right, gain = scores.induction(uniform, 500, 64)
    assert right.mean() < 0.01 and np.allclose(gain, 0, atol=1e-6)


def test_uniform_model_loses_log_of_vocabulary_size():
    losses = scores.nats(uniform, torch.randint(0, 500, (40, 32)))
    assert losses.shape == (40, 31) and losses.mean().item() == pytest.approx(np.log(500), abs=1e-5)
    found = scores.with_interval(cloze=np.array([0.2, 0.4, 0.3, 0.5]))
    assert list(found) == ["cloze", "cloze_low", "cloze_high"] and found["cloze"] == pytest.approx(0.35)
    assert found["cloze_low"] < 0.3 and found["cloze_high"] > 0.4


def test_cloze_is_one_for_a_perfect_model():
    def knowing(ids):
        return functional.one_hot(ids.roll(-1, dims=1), 500).float()

    tokenizer = text.train_tokenizer([grammar_text(200)], 500)
    ids = torch.tensor(tokenizer(grammar_text(60))["input_ids"])
    windows = ids[: len(ids) // 64 * 64].view(-1, 64)
    for model, score in ((knowing, 1), (uniform, 0.2), (lambda ids: -knowing(ids), 0)):
        assert scores.cloze(model, windows, tokenizer) == pytest.approx(score)
    # A blank is a whole word.
    vocabulary = tokenizer.get_vocab()
    whole, after = scores.words(vocabulary)
    assert [bool(whole[vocabulary[token]]) for token in ("Ġthe", "Ġ", "s")] == [True, False, False]
    assert [bool(after[vocabulary[token]]) for token in (".", "Ġthe", "Ċ", "s")] == [True, True, True, False]
    message = "the held-out text has blanks of 0 words; cloze needs 5, give more text"
    refused(ParameterError, message, scores.cloze, uniform, torch.zeros(2, 64, dtype=torch.long), tokenizer)


@pytest.fixture
def small(monkeypatch, library, tmp_path):
    """Two tiny models, one of them corrupted and short of text, and the arguments of their command."""
    recipe = QualityRecipe(
        "neox", width=16, blocks=2, heads=2, kv_heads=2, mlp_width=32, vocabulary=320, context=64, windows=2, steps=4,
        checkpoints=(2, 4), warmup=1, precision="float32", held_out=("Held",),
    )  # fmt: skip
    models = {"one": recipe, "two": replace(recipe, corrupted=0.25, unique_tokens=2_000, seed=1)}
    monkeypatch.setitem(EXPERIMENTS, "quality", replace(quality.EXPERIMENT, recipes=models))
    return models, [str(library), "--table", str(tmp_path / "table.csv"), "--run"], tmp_path


@pytest.mark.thorough
def test_killed_run_ends_as_the_uninterrupted_one(small, killed_at, capsys):
    _, arguments, folder = small
    table = folder / "table.csv"

    def lasting():
        """What does not depend on the clock, with the digits that a table keeps."""
        return read_table(table).drop(columns=["measure_seconds", "train_seconds"])

    main(["quality", *arguments, str(folder / "whole")])
    whole = lasting()
    assert whole[["model", "step"]].values.tolist() == [[m, s] for m in ("one", "two") for s in (0, 2, 4)]
    assert (whole.predictions_sha256 == files.predictions_sha256()).all() and set(whole.text_name) == {"books"}
    assert whole.unique_tokens.tolist()[3:] == [2_000] * 3 and whole.corrupted.tolist() == [0] * 3 + [0.25] * 3
    assert whole.notna().all(axis=None)
    assert (whole.objective_loss != whole.seen_loss).tolist() == [False] * 3 + [True] * 3
    shared = [name for name in whole if name.startswith("shared_") and name.endswith("_neighbours")]
    plain = [name.removeprefix("shared_") for name in shared]
    assert len(shared) == 9 and (whole[shared] != whole[plain].values).all(axis=None)

    table.rename(folder / "kept.csv")
    capsys.readouterr()
    steps = killed_at(8, text, "batch", lambda stream, step, *_: step)
    with pytest.raises(SystemExit) as ended:
        main(["quality", *arguments, str(folder / "run")])
    assert ended.value.code == 130 and set(read_table(table).model) == {"one"}
    main(["quality", *arguments, str(folder / "run")])
    assert steps == [0, 1, 2, 3, 0, 1, 2, 3, 2, 3]  # killed in the second model's last step, resumed at its checkpoint
    pd.testing.assert_frame_equal(lasting(), whole)
    output = capsys.readouterr()
    assert "interrupted; the same command goes on from the last checkpoint" in output.err.splitlines()
    lines = [line.partition(":")[0] for line in output.out.splitlines() if line.startswith("[")]
    assert lines == ["[1/2] one", "[1/1] two"] and "1 of 2 models were in" in output.out
    main(["quality", *arguments, str(folder / "third")])
    assert len(steps) == 10 and not (folder / "third").exists()
    assert "2 of 2 models were in" in capsys.readouterr().out


def test_foreign_runs_and_doubled_rows_are_refused(small, monkeypatch, capsys):
    _, arguments, folder = small

    def line(run: str) -> str:
        with pytest.raises(SystemExit):
            main(["quality", *arguments, str(folder / run)])
        return capsys.readouterr().err.strip().splitlines()[-1]

    (folder / "run" / "one").mkdir(parents=True)
    (folder / "run" / "one" / "recipe.json").write_text("{}")
    assert "holds a run of another recipe" in line("run")
    (folder / "table.csv").write_text("model,step\none,2\none,2\n")
    assert line("new").endswith("the table holds two rows of model one, step 2; remove the one that was not measured")
    monkeypatch.setattr(files, "PREDICTIONS", folder / "none.toml")
    assert "there are no predictions at" in (found := line("new"))
    assert "write them down before the first measurement" in found


def digests_of_beginnings(path):
    """Digests of a file up to the end of each line: where it is only appended to, those of all its versions."""
    beginnings = itertools.accumulate(path.read_bytes().splitlines(keepends=True))
    return {hashlib.sha256(beginning).hexdigest() for beginning in beginnings}


def history(path):
    """Times of the commits that brought a file, the oldest first; none where there is no history at hand."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=words[0] == "log")

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        return []
    return sorted(map(int, git("log", "--diff-filter=A", "--format=%ct", "--", str(path)).stdout.split()))


def test_rows_were_measured_under_predictions_that_stand():
    assert not TABLE.duplicated(["model", "step"]).any() and set(TABLE["model"]) == set(GRID)
    predictions, versions = files.PREDICTIONS.read_text(encoding="utf-8"), digests_of_beginnings(files.PREDICTIONS)
    for name, predicted in PREDICTED.items():
        if name == "replication":  # for whoever has the weights; nothing is measured
            continue
        digests = set(read_table(ROOT / predicted["table"])["predictions_sha256"])
        # The file itself says which of its versions had lines that were withdrawn.
        withdrawn = {digest for digest in digests if f"digest begins with {digest[:12]}" in predictions}
        assert not withdrawn or name in ("cause", "phases")
        assert digests and digests - withdrawn <= versions, name
    # Where the history is at hand, it says the same: the first prediction is no younger than the first row.
    predicted, measured = history(files.PREDICTIONS), history(FILE)
    assert not measured or (predicted and predicted[0] <= measured[0])
    assert FILE.stat().st_size < 1_500_000


def test_only_a_rewritten_prediction_is_detected(tmp_path):
    path = tmp_path / "predictions.toml"
    path.write_text("a = 1\n")
    before = files.predictions_sha256(path)
    for content, appended in (("a = 1\nb = 2\n", True), ("a = 3\nb = 2\n", False)):
        path.write_text(content)
        assert (before in digests_of_beginnings(path)) == appended


def test_every_model_has_all_steps_and_its_recipe():
    kept = ["corrupted", "learning_rate", "seed", "windows", "context"]
    for name, rows in TABLE.groupby("model"):
        recipe, last = GRID[name], rows.iloc[-1]
        assert rows.step.tolist() == [0, *STEPS]
        assert last[kept].to_dict() == {key: getattr(recipe, key) for key in kept}
        assert last.unique_tokens == recipe.unique_tokens or (not recipe.unique_tokens and last.unique_tokens > 12e6)
        assert (rows.validation_low < rows.validation_loss).all()
        assert (rows.validation_loss < rows.validation_high).all()
        assert last.validation_loss < 0.8 * rows.iloc[0].validation_loss
