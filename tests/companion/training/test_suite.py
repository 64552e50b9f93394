"""The suite: its table can be recomputed, its runs resume, its regularisations act in training alone."""

import itertools
import json
from contextlib import nullcontext
from dataclasses import replace

import pandas as pd
import pytest
import torch
from refusals import refused

import coupling_lib as cl
from companion.tables import files
from companion.tables.files import read_table
from companion.training import columns, experiment, text
from companion.training.__main__ import main
from companion.training.experiment import EMBEDDED, build
from companion.training.suite import BASE, EXPERIMENT, SUITE, TINY
from companion.training.text import grammar_text
from coupling_lib.datasets.parts import VARIANTS_OF_PARTS
from coupling_lib.errors import ParameterError
from coupling_lib.paths import CHECKPOINTS, DATA

TABLE = read_table(DATA / "suite.csv").set_index(["model", "step"])
TRAINED = [name for name in SUITE if name.startswith("tiny-")]
SCORES = ["line_shape_score", "equidistance"]
COUPLING = [f"{variant}_k{k}{part}" for variant in cl.VARIANTS for k in columns.KS for part in ("", "_all")]
PARTS = [f"shared_{variant}_k{k}" for variant in VARIANTS_OF_PARTS for k in columns.KS]
NULLS = [f"{column}_null" for column in COUPLING if not column.endswith("_all")]
NOVELS = TABLE[TABLE.text == "given"]


def assert_close(found: dict, row: pd.Series, columns: list[str], rel: float) -> None:
    wrong = [name for name in columns if found[name] != pytest.approx(row[name], rel=rel, abs=rel)]
    assert not wrong, {name: (found[name], row[name]) for name in wrong}


def assert_nulls_close(found: dict, row: pd.Series, rel: float = 1e-3) -> None:
    """Nulls are exact but for their draws."""
    for name in NULLS:
        # 3,000 draws of this ratio have a standard error of half a per cent at K = 3.
        allowed = 0.02 if name.startswith("old_off_over_diagonal") else rel
        assert found[name] == pytest.approx(row[name], rel=allowed), name


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """The suite's command, run from scratch for the models that need no corpus."""
    folder = tmp_path_factory.mktemp("suite")
    where = ["--run", str(folder / "run"), "--table", str(folder / "table.csv"), "--threads", "1"]
    threads = torch.get_num_threads()
    main(["suite", *where, "--only", *TRAINED])
    torch.set_num_threads(threads)
    return read_table(folder / "table.csv").set_index(["model", "step"])


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_reproduce_their_rows(repeated, name):
    # Training carries a difference of one unit in the last place on. Initial weights changed by 1e-6 of themselves
    # (ten times that unit) end in columns that differ by less than 1e-3 of themselves; no two machines differ more.
    row, again = TABLE.loc[name, 60], repeated.loc[name, 60]
    assert_close(again, row, ["validation_loss", "bits_per_byte", "accuracy", *SCORES, *COUPLING], rel=5e-3)
    assert_nulls_close(again, row, rel=5e-3)
    assert again["validation_loss"] < 0.7 * repeated.loc[name, 0]["validation_loss"]


@pytest.mark.parametrize("name", ["neox-w32-d4", "llama-w64-d4", "neox-w96-d4"])
def test_untrained_models_reproduce_their_rows(name):
    tokenizer = cl.load_model("nano-neox").tokenizer  # trained on the same part of the same text
    found = columns.measure(cl.wrap_model(build(SUITE[name]), tokenizer))
    assert_close(found, TABLE.loc[name, 0], [*SCORES, *COUPLING], rel=1e-3)
    assert_nulls_close(found, TABLE.loc[name, 0])
    assert found["prompts_sha256"] == TABLE.loc[name, 0]["prompts_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "step"), [("nano-neox", 316), ("nano-llama", 10_000)])
def test_embedded_models_reproduce_their_rows(name, step):
    model = cl.load_model(name, revision=f"step{step}", device="cpu")
    found = columns.measure(model) | columns.permuted(model)
    shuffled = [f"permuted_normalized_miscoupling_k{k}" for k in columns.KS]
    assert_close(found, TABLE.loc[name, step], [*SCORES, *COUPLING, *PARTS], rel=1e-3)
    # One random order of the coordinates of each block: over 24 draws the standard deviation is .004, .002 at K = 10.
    assert_close(found, TABLE.loc[name, step], shuffled, rel=0.02)
    assert_nulls_close(found, TABLE.loc[name, step])


def test_the_table_holds_every_model_at_every_checkpoint():
    expected = {(name, step) for name, recipe in SUITE.items() for step in (0, *recipe.checkpoints)}
    for name in EMBEDDED:
        record = json.loads((CHECKPOINTS / name / "training.json").read_text())
        expected |= {(name, point["step"]) for point in record["checkpoints"]}
    assert set(TABLE.index) == expected
    assert TABLE.drop(columns=["train_loss", "train_seconds"]).notna().all(axis=None)
    assert (DATA / "suite.csv").stat().st_size < 1_500_000


def test_the_suite_varies_what_it_says():
    rows = NOVELS.reset_index()
    models = rows.drop_duplicates("model")
    assert len(models) >= 24 and set(models.architecture) == {"neox", "llama"}
    least = {"width": 4, "blocks": 3, "weight_decay": 4, "dropout": 3, "stochastic_depth": 4, "learning_rate": 4}
    assert (models[[*least]].nunique() >= pd.Series(least)).all()
    crossed = models.query("architecture == 'neox' and seed == 0")[["width", "blocks"]].itertuples(index=False)
    assert {*itertools.product((32, 48, 64, 96), (4, 8, 12))} <= {*map(tuple, crossed)}
    assert sum(replace(recipe, seed=0) == BASE for recipe in SUITE.values()) >= 3
    assert rows.groupby("model").tokens.nunique().drop("nano-llama").min() >= 5


def test_training_lowers_loss_and_couples_beyond_chance():
    models = NOVELS[["validation_loss", "accuracy", "normalized_miscoupling_k10", "normalized_miscoupling_k10_null"]]
    last = models.reset_index("step").groupby("model").last()
    first = models.xs(0, level="step").loc[last.index]
    assert (last.validation_loss < 0.8 * first.validation_loss).all()
    assert (last.accuracy > 10 * first.accuracy.median()).all()
    assert (last.normalized_miscoupling_k10 < last.normalized_miscoupling_k10_null).all()


def test_embedded_losses_match_their_cards():
    for name in EMBEDDED:
        for point in json.loads((CHECKPOINTS / name / "training.json").read_text())["checkpoints"]:
            row = TABLE.loc[name, point["step"]]
            # The cards' losses were computed in bfloat16, the table's in float32.
            assert row.validation_loss == pytest.approx(point["validation_loss"], abs=5e-3)
            assert row.bits_per_byte == pytest.approx(point["bits_per_byte"], abs=3e-3)


@pytest.mark.parametrize("own", [False, True])
def test_embedded_model_needs_text_of_its_tokens(own, tmp_path, monkeypatch):
    (tmp_path / "own.txt").write_text(grammar_text(60))
    row = dict.fromkeys(("step", "validation_loss", "normalized_miscoupling_k10", "normalized_miscoupling_k10_null"), 0)
    monkeypatch.setattr(experiment, "rows_of", lambda _, name, *more: [{"model": name} | row])
    if own:
        monkeypatch.setattr(text, "train_tokenizer", lambda *_: cl.load_model("nano-neox").tokenizer)
    suite = replace(EXPERIMENT, recipes={"nano-neox": replace(TINY, corpus="given")})
    left_out = "nano-neox is left out: the tokens of .*own.txt' are not those that it reads"
    with nullcontext() if own else pytest.warns(UserWarning, match=left_out):
        experiment.run(suite, tmp_path / "own.txt", tmp_path / "run", tmp_path / "table.csv")
    assert (tmp_path / "table.csv").exists() is own


def test_rows_take_the_place_of_earlier_ones(tmp_path):
    path = tmp_path / "table.csv"
    for rows in ([("b", 0, 1.0), ("b", 9, 2.0)], [("b", 9, 3.0), ("a", 0, 4.0)]):
        named = [dict(zip(("model", "step", "x"), row, strict=True)) for row in rows]
        files.merge(path, named, ["model", "step"], ["a", "b"], "What it holds.")
    assert read_table(path).values.tolist() == [["a", 0, 4.0], ["b", 0, 1.0], ["b", 9, 3.0]]
    assert path.read_text().startswith("# What it holds.\n")


def test_branches_are_dropped_only_in_training():
    recipe = replace(TINY, blocks=1)
    plain, dropping = build(recipe).gpt_neox, build(replace(recipe, stochastic_depth=0.25)).gpt_neox
    ids = torch.arange(4).repeat(4000, 1)
    with torch.no_grad():
        stream = plain.embed_in(ids)
        rotary = plain.rotary_emb(stream, torch.arange(4)[None])
        whole, part = (gpt.layers[0](stream, position_embeddings=rotary) - stream for gpt in (plain, dropping))
        kept = part.abs().amax(dim=(1, 2)) > 0
        assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)
        assert torch.allclose(part[kept], whole[kept] / 0.75, atol=1e-6)
        dropping.eval()
        assert torch.equal(dropping.layers[0](stream, position_embeddings=rotary) - stream, whole)


def test_dropout_is_set_where_supported_else_refused():
    without = "dropout is 0.1; the architecture 'llama' has none"
    refused(ParameterError, without, build, replace(SUITE["tiny-llama-w32-d3"], dropout=0.1))
    with pytest.raises(ParameterError, match="stochastic_depth is 1.0"):
        build(replace(TINY, stochastic_depth=1.0))
    drops = [module.p for module in build(replace(TINY, dropout=0.1)).modules() if isinstance(module, torch.nn.Dropout)]
    assert drops and set(drops) == {0.1}
    assert SUITE["neox-w64-d8-drop0.1"].dropout == 0.1


def test_text_of_the_grammar_agrees_in_number():
    sentences = grammar_text(50).replace("\n", " ").split(". ")
    subjects = [sentence.split() for sentence in sentences if "that" not in sentence and sentence.startswith("The ")]
    assert len(subjects) > 20
    assert all(words[2].endswith("s") != words[3].endswith("s") for words in subjects)
