"""Tables of models: digitised values, leaderboard, the suite, and what has been measured here."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tiny import save_llama

import coupling_lib as cl
from companion.tables import generalization
from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.measures.nulls import measure_decisive
from coupling_lib.models.registry import TASKS, entries


def test_the_digitised_figure_agrees_with_the_registry():
    points = generalization.figure_1a().set_index("model")
    registered = {e.alias: e for e in entries() if e.coupling_fig1a_digitised is not None}
    assert set(points.index) == set(registered)
    for alias, entry in registered.items():
        assert points.coupling[alias] == entry.coupling_fig1a_digitised
        assert points.score[alias] == entry.score_fig1a_digitised
        assert points.width[alias] == entry.width
    hidden = [e.alias for e in registered.values() if "hidden by a label" in e.note]
    assert sorted(points.index[points.how == "hidden"]) == sorted(hidden)


def test_every_paper_value_says_how_it_was_obtained():
    table = generalization.paper_figures()
    assert set(table.how) == {"digitised", "hidden", "stated"}
    assert table.y.notna().all()
    text = (paths.DATA / "paper_figures.csv").read_text()
    assert "+-0.0003" in text and "+-0.1" in text


def test_leaderboard_holds_exactly_the_scored_models():
    table = generalization.leaderboard()
    scored = [e.alias for e in entries() if any(getattr(e, task) is not None for task in TASKS)]
    assert table.model.tolist() == scored


@pytest.fixture
def small_suite(tmp_path):
    """Two models with two checkpoints each, one on another text."""
    rows = [
        {
            "model": model, "text": text, "step": step, "tokens": 1000 * step + 1, "validation_loss": loss,
            "accuracy": 0.1, "parameters": 10_000, "expodistance": 10.0, "line_shape_score": 2.0,
            "mismatch_k10": 0.8, "mismatch_k10_null": 1.0, "released_norm_k_ktenth": 0.5,
            "released_norm_k_ktenth_null": 2.0, "versions": "none",
        }
        for model, text, step, loss in (
            ("a", "given", 0, 7.0), ("a", "given", 10, 6.0), ("a", "given", 20, 5.0), ("b", "given", 10, 5.5),
            ("tiny", "grammar", 10, 3.0),
        )
    ]  # fmt: skip
    file = tmp_path / "suite.csv"
    file.write_text("# a comment\n" + pd.DataFrame(rows).to_csv(index=False))
    return file


def test_suite_has_coupling_relative_to_its_null(small_suite):
    table = generalization.suite(small_suite)
    assert table.model.tolist() == ["a", "a", "b"]
    assert table.final.tolist() == [False, True, True]
    assert table.negative_loss.tolist() == [-6.0, -5.0, -5.5]
    assert table.log_expodistance.tolist() == [1.0] * 3
    assert generalization.coupling_columns(table) == ["mismatch_k10", "released_norm_k_ktenth"]
    np.testing.assert_allclose(table["mismatch_k10_relative"], 0.2)
    np.testing.assert_allclose(table["released_norm_k_ktenth_relative"], 0.75)


def test_missing_suite_names_the_command_for_it(tmp_path):
    with pytest.raises(ParameterError, match="make suite"):
        generalization.suite(tmp_path / "suite.csv")


def test_shipped_suite_has_enough_models_and_variants():
    table = generalization.suite()
    assert table.model.nunique() >= 24
    # 17 readings at three K; and the two parts of the main one, relative to their nulls.
    assert len(generalization.coupling_columns(table)) == 51
    assert table["shared_normalized_miscoupling_k10_relative"].between(-0.05, 1).all()
    assert table["permuted_normalized_miscoupling_k10_relative"].abs().max() < 0.1
    assert {"width", "blocks", "seed", "weight_decay", "dropout", "stochastic_depth", "learning_rate"} <= set(table)
    assert table.architecture.nunique() == 2 and table.width.nunique() >= 4 and table.blocks.nunique() >= 3


def test_unmeasured_models_are_listed_with_a_command(tmp_path):
    table = generalization.measured_models(tmp_path).set_index("model")
    assert table[["trace", "normalized"]].isna().all(axis=None)
    assert table.command["gpt2"] == "python workflow/decisive.py gpt2"
    assert {e.alias for e in entries() if e.in_paper} <= set(table.index)


def test_measured_coupling_is_filled_in_from_the_store(tmp_path):
    save_llama(tmp_path / "nano-neox")
    # A folder of that name stands for the embedded model; only the name and the numbers matter here.
    model = cl.wrap_model(cl.load_model(tmp_path / "nano-neox").hf, name="nano-neox")
    ids = [cl.load_model(tmp_path / "nano-neox").tokenizer("It was the best of times", return_tensors="pt").input_ids]
    measured = cl.sweep(measure_decisive, model, ids, store=tmp_path / "results")
    depth = cl.sweep(cl.measure_depth, model, ids, store=tmp_path / "results", ks=(10,))
    row = generalization.measured_models(tmp_path / "results").set_index("model").loc["nano-neox"]
    value = measured["value"].sel(variant="released_trace", rule="0.1 d", pairs="different").item()
    assert row.trace == pytest.approx(1 - value) and row.command == ""
    for k in measured.rule.values[:-1]:
        value = measured["value"].sel(variant="released_trace", rule=k, pairs="different").item()
        assert row[f"trace_{k}"] == pytest.approx(1 - value)
    pairs = depth["normalized_miscoupling"].values[0, 0][~np.eye(3, dtype=bool)]
    assert row.normalized == pytest.approx(1 - pairs.mean(), rel=1e-6)


@pytest.mark.thorough
def test_measured_coupling_ignores_other_settings_in_store(tmp_path):
    chapter = [prompt.text for prompt in load_prompts(n=12)][:2]
    wanted = cl.sweep(cl.measure_depth, cl.load_model("nano-neox"), chapter, store=tmp_path, ks=(10,))
    others = [
        (cl.load_model("nano-neox", revision="step100"), chapter, {}),
        (cl.load_model("nano-neox", precision="nf4"), chapter, {}),
        (cl.load_model("nano-neox"), ["It was the best of times"], {}),
        (cl.load_model("nano-neox"), chapter, {"boundary": "hidden_states"}),
        (cl.load_model("nano-neox"), chapter, {"token": 0}),
        (cl.load_model("nano-neox", untrained=True), chapter, {}),
        (cl.load_model("nano-neox"), chapter, {"ks": (1,)}),
    ]
    for model, texts, more in others:
        cl.sweep(cl.measure_depth, model, texts, store=tmp_path, **({"ks": (10,)} | more))
    row = generalization.measured_models(tmp_path).set_index("model").loc["nano-neox"]
    pairs = wanted["normalized_miscoupling"].values[:, 0][:, ~np.eye(12, dtype=bool)]
    assert row.normalized == pytest.approx(1 - pairs.mean(), rel=1e-6) and row.prompts == 2
