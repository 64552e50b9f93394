"""Tables of models: digitised values, leaderboard, the suite, and what has been measured here."""

import numpy as np
import pandas as pd
import pytest
from refusals import refused
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
    assert points[["coupling", "score", "width"]].T.to_dict("list") == {
        alias: [e.coupling_fig1a_digitised, e.score_fig1a_digitised, e.width] for alias, e in registered.items()
    }
    hidden = [e.alias for e in registered.values() if "hidden by a label" in e.note]
    assert sorted(points.index[points.how == "hidden"]) == sorted(hidden)


def test_every_paper_value_says_how_it_was_obtained():
    table, text = generalization.paper_figures(), (paths.DATA / "paper_figures.csv").read_text()
    assert set(table.how) == {"digitised", "hidden", "stated"} and table.y.notna().all()
    assert "+-0.0003" in text and "+-0.1" in text


def test_leaderboard_holds_exactly_the_scored_models():
    scored = [e.alias for e in entries() if any(getattr(e, task) is not None for task in TASKS)]
    assert generalization.leaderboard().model.tolist() == scored


def test_suite_has_coupling_relative_to_its_null(tmp_path):
    """Two models with several checkpoints, and one on another text."""
    rows = [("a", "given", 0, 7.0), ("a", "given", 10, 6.0), ("a", "given", 20, 5.0), ("b", "given", 10, 5.5)]
    table = pd.DataFrame([*rows, ("tiny", "grammar", 10, 3.0)], columns=["model", "text", "step", "validation_loss"])
    table = table.assign(
        tokens=1000 * table.step + 1, accuracy=0.1, parameters=10_000, expodistance=10.0, line_shape_score=2.0,
        mismatch_k10=0.8, mismatch_k10_null=1.0, released_norm_k_ktenth=0.5, released_norm_k_ktenth_null=2.0,
        versions="none",
    )  # fmt: skip
    refused(ParameterError, "make suite", generalization.suite, tmp_path / "suite.csv")
    (tmp_path / "suite.csv").write_text("# a comment\n" + table.to_csv(index=False))
    found = generalization.suite(tmp_path / "suite.csv")
    assert found[["model", "final", "negative_loss", "log_expodistance"]].values.tolist() == [
        ["a", False, -6.0, 1.0], ["a", True, -5.0, 1.0], ["b", True, -5.5, 1.0],
    ]  # fmt: skip
    assert generalization.coupling_columns(found) == ["mismatch_k10", "released_norm_k_ktenth"]
    np.testing.assert_allclose(found[["mismatch_k10_relative", "released_norm_k_ktenth_relative"]], [[0.2, 0.75]] * 3)


def test_shipped_suite_has_every_reading_and_both_parts():
    table = generalization.suite()
    # 17 readings at three K; and the two parts of the main one, relative to their nulls.
    assert len(generalization.coupling_columns(table)) == 51
    assert table["shared_normalized_miscoupling_k10_relative"].between(-0.05, 1).all()
    assert table["permuted_normalized_miscoupling_k10_relative"].abs().max() < 0.1


def test_unmeasured_models_are_listed_with_a_command(tmp_path):
    table = generalization.measured_models(tmp_path).set_index("model")
    assert table[["trace", "normalized"]].isna().all(axis=None)
    assert table.command["gpt2"] == "python workflow/decisive.py gpt2"
    assert {e.alias for e in entries() if e.in_paper} <= set(table.index)


def test_measured_coupling_is_filled_in_from_the_store(tmp_path):
    save_llama(tmp_path / "llama")
    tiny = cl.load_model(tmp_path / "llama")
    # It stands for the embedded model; only the name and the numbers matter here.
    model = cl.wrap_model(tiny.hf, name="nano-neox")
    ids, store = [tiny.tokenizer("It was the best of times", return_tensors="pt").input_ids], tmp_path / "results"
    measured = cl.sweep(measure_decisive, model, ids, store=store)
    depth = cl.sweep(cl.measure_depth, model, ids, store=store, ks=(10,))
    row = generalization.measured_models(store).set_index("model").loc["nano-neox"]
    values = measured["value"].sel(variant="released_trace", pairs="different")
    expected = {f"trace_{k}": 1 - values.sel(rule=k).item() for k in measured.rule.values[:-1]}
    expected["trace"] = 1 - values.sel(rule="0.1 d").item()
    assert {name: row[name] for name in expected} == pytest.approx(expected) and row.command == ""
    pairs = depth["normalized_miscoupling"].values[0, 0][~np.eye(3, dtype=bool)]
    assert row.normalized == pytest.approx(1 - pairs.mean(), rel=1e-6)


@pytest.mark.thorough
def test_measured_coupling_ignores_other_settings_in_store(tmp_path):
    chapter = [prompt.text for prompt in load_prompts(n=12)][:2]
    wanted = cl.sweep(cl.measure_depth, cl.load_model("nano-neox"), chapter, store=tmp_path, ks=(10,))
    others = [
        ({"revision": "step100"}, chapter, {}),
        ({"precision": "nf4"}, chapter, {}),
        ({}, ["It was the best of times"], {}),
        ({}, chapter, {"boundary": "hidden_states"}),
        ({}, chapter, {"token": 0}),
        ({"untrained": True}, chapter, {}),
        ({}, chapter, {"ks": (1,)}),
    ]
    for loaded, texts, more in others:
        model = cl.load_model("nano-neox", **loaded)
        cl.sweep(cl.measure_depth, model, texts, store=tmp_path, **({"ks": (10,)} | more))
    row = generalization.measured_models(tmp_path).set_index("model").loc["nano-neox"]
    pairs = wanted["normalized_miscoupling"].values[:, 0][:, ~np.eye(12, dtype=bool)]
    assert row.normalized == pytest.approx(1 - pairs.mean(), rel=1e-6) and row.prompts == 2
