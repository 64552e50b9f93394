"""The experiment on quality: its estimands find what made-up tables were made with."""

from __future__ import annotations

import tomllib

import numpy as np
import pandas as pd
import pytest

from companion.tables import quality
from coupling_lib import paths
from coupling_lib.errors import ParameterError

STEPS = (0, 16, 29, 100, 300)
READING = "normalized_miscoupling_k10"


def made_up(early: float, late: float, n: int = 26, seed: int = 0) -> pd.DataFrame:
    """Models whose coupling goes with their score by `early` before step 100 and by `late` from there on."""
    rng = np.random.default_rng(seed)
    good = rng.normal(size=n)
    rows = []
    for number in range(n):
        for step in STEPS:
            way = np.searchsorted(STEPS, step) / len(STEPS)
            loss = 7 - 3 * way - 0.3 * good[number] * way
            sign = early if step < 100 else late
            noise = rng.normal()
            coupling = 0.3 + 0.05 * (sign * good[number] + (1 - sign**2) ** 0.5 * noise)
            name = f"centre-seed{number}" if number < 3 else f"m{number}"
            row = {"model": name, "step": step, "validation_loss": loss, "seen_loss": loss - 0.1 + rng.normal(0, 0.01)}
            rows.append(row | {"seed": number % 3, READING: 1 - coupling})
    return pd.DataFrame(rows).assign(score=lambda t: -t["validation_loss"])


def test_signs_before_and_after_the_turn_are_found():
    found = quality.estimates(made_up(0.9, -0.9), [READING]).set_index(["question", "step"])
    assert found.loc[("early", 29), "low"].item() > 0 > found.loc[("end", 300), "high"].item()
    assert found.loc[("within seeds", 300), "high"].item() < 0
    each = found.loc["equal steps", "value"]
    assert list(each.index) == [16, 29, 100, 300] and (each.iloc[:2] > 0.6).all() and (each.iloc[2:] < -0.6).all()
    assert (found["n"] == 26).all()


def test_what_goes_with_training_loss_alone_is_gone_once_that_is_held_fixed():
    table = made_up(0.9, -0.9)
    found = quality.estimates(table, [READING]).set_index("question")
    partial = found.loc["partial on training loss"]
    assert abs(partial["value"]) < 0.5 < abs(found.loc["end", "value"]) and partial["low"] < 0 < partial["high"]


def test_models_are_taken_where_their_training_loss_is_the_same():
    table = made_up(0.0, 0.0).assign(seen_loss=lambda t: t["validation_loss"] - 0.1)
    table["coupling"] = table["seen_loss"] * 2
    equal = quality.at_equal_loss(table)
    level = table.groupby("model")["seen_loss"].min().max()
    assert len(equal) == 26 and np.allclose(equal["coupling"], 2 * level)  # what is linear in the loss is met exactly
    assert np.allclose(equal["score"], -(level + 0.1))


def test_a_model_that_reaches_the_level_at_once_is_taken_there():
    table = pd.DataFrame(
        {"model": ["a", "a", "b", "b"], "step": [0, 1, 0, 1], "seen_loss": [3.0, 2.0, 5.0, 4.0]}
    ).assign(coupling=[0.1, 0.2, 0.3, 0.4], score=[1.0, 2.0, 3.0, 4.0])
    equal = quality.at_equal_loss(table).set_index("model")
    assert equal.loc["a", "coupling"] == 0.1 and equal.loc["b", "coupling"] == 0.4


def test_a_line_that_stands_twice_is_refused(tmp_path):
    table = pd.read_csv(paths.DATA / "quality.csv", comment="#")
    again = table[(table["model"] == "centre-seed1") & (table["step"] == 29)]
    pd.concat([table, again]).to_csv(tmp_path / "quality.csv", index=False)
    with pytest.raises(ParameterError, match="two rows of model centre-seed1, step 29"):
        quality.quality(tmp_path / "quality.csv")


def test_the_shipped_table_and_the_predictions_fit_together():
    predicted = tomllib.loads((paths.DATA / "predictions.toml").read_text(encoding="utf-8"))["experiment"]["quality"]
    table = quality.finished(quality.quality())
    found = quality.estimates(table, predicted["readings"])
    assert set(found["question"]) == {question["name"] for question in predicted["question"]}
    assert quality.EARLY in set(table["step"]) and set(found["reading"]) == set(predicted["readings"])
    assert (quality.MODELS, [*quality.READINGS.values()]) == (predicted["n"], predicted["readings"])


def test_seeds_scatter_is_told_from_that_of_settings():
    table = made_up(0.0, 0.0)
    of_seeds, of_settings = quality.scatter_of_seeds(table, READING)
    end = table[table["step"] == 300].set_index("model")[READING]
    assert of_seeds == pytest.approx(end[["centre-seed0", "centre-seed1", "centre-seed2"]].std())
    assert of_settings == pytest.approx(end.drop(["centre-seed0", "centre-seed1", "centre-seed2"]).std())


def test_numbers_are_those_of_the_questions_and_none_before_all_models_are_there():
    table = made_up(0.9, -0.9).assign(tokens=lambda t: t["step"] * 4096, basis_uu_k10=0.5, basis_uu_k10_null=0.9)
    table["basis_uu_k10"] -= 0.1 * table["score"]  # one more reading, which always goes with the score
    for mark, reading in quality.READINGS.items():
        table[reading] = table[READING] if mark != "shared-" else 1 - table[READING]
    found = quality.numbers_of(table)
    end = quality.estimates(table, [READING]).set_index("question").loc["end"]
    assert found["quality-end"] == end["value"] == found["quality-neighbours-end"] == -found["quality-shared-end"]
    assert found["quality-models"] == 26 and found["quality-early-low"] > 0 > found["quality-within-seeds-high"]
    assert (found["quality-readings"], found["quality-readings-below"], found["quality-readings-above"]) == (1, 0, 1)
    assert found["quality-readings-above-bases"] == 1 and found["quality-tokens"] == 300 * 4096
    assert quality.numbers_of(table[table["model"] != "m7"]) == {}


def test_a_level_is_left_out_with_all_models_that_have_it():
    table = pd.DataFrame({"model": ["centre-seed0", "c10-seed1", "c10-lr0.006-seed2", "lr0.006-seed0"]})
    left = [set(part["model"]) for part in quality.without_a_level(table)]
    assert left == [
        {"centre-seed0", "lr0.006-seed0"},
        set(table["model"]) - {"centre-seed0"},
        {"centre-seed0", "c10-seed1"},
    ]
