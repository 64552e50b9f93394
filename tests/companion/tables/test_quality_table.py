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
    factors = {name: rng.permutation(np.arange(n) % 3) for name in quality.FACTORS}
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
            row |= {name: levels[number] for name, levels in factors.items()}
            rows.append(row | {"seed": number % 3, READING: 1 - coupling})
    return pd.DataFrame(rows).assign(score=lambda t: -t["validation_loss"])


def test_known_signs_of_correlation_are_recovered():
    found = quality.estimates(made_up(0.9, -0.9), [READING]).set_index(["question", "step"])
    assert found.loc[("early", 29), "low"].item() > 0 > found.loc[("end", 300), "high"].item()
    assert found.loc[("within seeds", 300), "high"].item() < 0
    each = found.loc["equal steps", "value"]
    assert list(each.index) == [16, 29, 100, 300] and (each.iloc[:2] > 0.6).all() and (each.iloc[2:] < -0.6).all()
    assert (found["n"] == 26).all()
    table = made_up(0.9, -0.9)
    found = quality.estimates(table, [READING]).set_index("question")
    partial = found.loc["partial on training loss"]
    assert abs(partial["value"]) < 0.5 < abs(found.loc["end", "value"]) and partial["low"] < 0 < partial["high"]


def test_models_are_compared_at_equal_training_loss():
    table = made_up(0.0, 0.0).assign(seen_loss=lambda t: t["validation_loss"] - 0.1)
    table["coupling"] = table["seen_loss"] * 2
    equal = quality.at_equal_loss(table)
    level = table.groupby("model")["seen_loss"].min().max()
    assert len(equal) == 26 and np.allclose(equal["coupling"], 2 * level)  # what is linear in the loss is met exactly
    assert np.allclose(equal["score"], -(level + 0.1))
    table = pd.DataFrame(
        {"model": ["a", "a", "b", "b"], "step": [0, 1, 0, 1], "seen_loss": [3.0, 2.0, 5.0, 4.0]}
    ).assign(coupling=[0.1, 0.2, 0.3, 0.4], score=[1.0, 2.0, 3.0, 4.0])
    equal = quality.at_equal_loss(table).set_index("model")
    assert equal.loc["a", "coupling"] == 0.1 and equal.loc["b", "coupling"] == 0.4


def test_duplicate_row_is_refused(tmp_path):
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


def test_quoted_numbers_match_the_estimates():
    table = made_up(0.9, -0.9).assign(tokens=lambda t: t["step"] * 4096, basis_uu_k10=0.5, basis_uu_k10_null=0.9)
    table["basis_uu_k10"] -= 0.1 * table["score"]  # one more reading, which always goes with the score
    table = table.assign(basis_vv_k10=lambda t: t["basis_uu_k10"], released_diag_k10=lambda t: t["basis_uu_k10"])
    table = table.assign(
        validation_low=table["validation_loss"] - 0.03, validation_high=table["validation_loss"] + 0.05
    )
    for mark, reading in quality.READINGS.items():
        table[reading] = table[READING] if mark != "shared-" else 1 - table[READING]
    found = quality.numbers_of(table)
    end = quality.estimates(table, [READING]).set_index("question").loc["end"]
    assert found["quality-step-300"] == found["quality-end"] and found["quality-shared-step-29"] < 0
    assert "quality-uu-end-held-corrupted" not in found and 0 < found["quality-end-held-corrupted-explains-score"] < 1
    same = (found["quality-neighbours-end"], -found["quality-shared-end"])
    assert found["quality-end"] == end["value"] and same == pytest.approx((end["value"],) * 2)
    assert found["quality-models"] == 26 and found["quality-early-low"] > 0 > found["quality-within-seeds-high"]
    assert (found["quality-readings"], found["quality-readings-below"], found["quality-readings-above"]) == (1, 0, 1)
    at_end = table.loc[table["step"] == 300, READING].mean()
    assert found["quality-on-diagonal-end"] == pytest.approx(1 - at_end**2)
    assert found["quality-readings-above-bases"] == 1 and found["quality-tokens"] == 300 * 4096
    assert found["quality-end-held-nothing"] == pytest.approx(found["quality-end"])
    assert found["quality-uu-end-held-all-three"] == pytest.approx(1) and found["quality-half-width"] == pytest.approx(
        0.04
    )
    assert quality.numbers_of(table[table["model"] != "m7"]) == {}
    assert quality.numbers_of(quality.quality())["quality-end-held-all-three-seen"] == pytest.approx(0.81, abs=0.005)


def test_held_factor_is_removed_by_level_means():
    table = made_up(0.9, -0.5)
    found = quality.held_table(table, READING).set_index(["moment", "held"])
    for moment, step in (("early", 29), ("end", 300)):
        now = table[table["step"] == step].assign(coupling=lambda t: 1 - t[READING])
        for factor in quality.FACTORS:
            left = now[["coupling", "score"]] - now.groupby(factor)[["coupling", "score"]].transform("mean")
            row = found.loc[moment, factor]
            assert row["value"] == pytest.approx(left["coupling"].corr(left["score"])) and row["low"] < row["value"]
            assert row["sd_score"] == pytest.approx(left["score"].std())
            assert row["explains_score"] == pytest.approx(1 - left["score"].var() / now["score"].var())
    design = np.column_stack([np.ones(26), *(now[f] == level for f in quality.FACTORS for level in (0, 1))]).astype(
        float
    )
    a, b = (now[name] - design @ np.linalg.pinv(design) @ now[name] for name in ("coupling", "score"))
    assert found.loc[("end", quality.ALL_HELD), "value"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert (found.loc[:, "explains_score"].groupby("moment").idxmax().str[1] == quality.ALL_HELD).all()


def test_shipped_table_gives_the_quoted_correlations():
    table = quality.finished(quality.quality())
    held = quality.held_table(table, READING).set_index(["moment", "held"])
    expected = {
        ("early", "learning_rate"): (0.78, 0.39, 0.93), ("early", quality.ALL_HELD): (0.25, -0.84, 0.94),
        ("end", "nothing"): (-0.67, -0.91, -0.08), ("end", "corrupted"): (-0.35, -0.69, 0.12),
        ("end", quality.ALL_HELD): (0.36, -0.12, 0.70), ("equal training loss", "nothing"): (0.21, -0.22, 0.57),
        ("equal training loss", "unique_tokens"): (0.67, 0.35, 0.85),
        ("equal training loss", quality.ALL_HELD): (0.10, -0.64, 0.74),
    }  # fmt: skip
    for where, ends in expected.items():
        assert held.loc[where, ["value", "low", "high"]].to_numpy(float) == pytest.approx(ends, abs=0.006), where
    shares = held["explains_score"]
    assert shares["early", "learning_rate"] > 0.93 and round(shares["end", "corrupted"], 2) == 0.88
    assert round(held.loc[("equal training loss", "nothing"), "sd_score"], 3) == 0.020
    clean = quality.on_clean_text(table, READING)
    assert (clean.n, *np.round(clean[:3], 2)) == (11, -0.32, -0.88, 0.61)
    later, held = quality.of_final_score(table, READING).values()
    assert [round(part, 2) for part in (*later[:3], *held[:3])] == [0.59, 0.24, 0.81, 0.16, -0.69, 0.82]
    # By the bases alone, which is what "the same directions" says, the sign does not turn.
    for reading, ends in {"basis_uu_k10": (0.72, 0.45, 0.87), "basis_vv_k10": (0.83, 0.66, 0.92)}.items():
        found = quality.held_table(table, reading).set_index(["moment", "held"])
        assert found.loc[("end", "nothing"), ["value", "low", "high"]].to_numpy(float) == pytest.approx(ends, abs=0.006)
        assert found.loc[("early", "nothing"), "value"] > 0.4 > 0 > found.loc[("end", quality.ALL_HELD), "low"]


def test_each_level_is_left_out_with_its_models():
    table = pd.DataFrame({"model": ["centre", "c10", "c10-lr6", "lr6"], "corrupted": [0, 0.1, 0.1, 0]})
    table = table.assign(learning_rate=[2e-3, 2e-3, 6e-3, 6e-3], unique_tokens=[5, 5, 5, 5])
    left = [set(part["model"]) for part in quality.without_a_level(table)]
    assert left == [{"c10", "c10-lr6"}, {"centre", "lr6"}, set(), {"c10-lr6", "lr6"}, {"centre", "c10"}]
