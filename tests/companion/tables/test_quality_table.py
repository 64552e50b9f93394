"""The experiment on quality: its estimands find what made-up tables were made with."""

import numpy as np
import pandas as pd
import pytest
from claims import experiments
from refusals import refused

from companion.tables import quality
from coupling_lib import paths
from coupling_lib.errors import ParameterError

STEPS = (0, 16, 29, 100, 300)
READING = "normalized_miscoupling_k10"
ENDS = ["value", "low", "high"]


def made_up(early: float, late: float, n: int = 26, seed: int = 0) -> pd.DataFrame:
    """Models whose coupling goes with their score by `early` before step 100 and by `late` from there on."""
    rng = np.random.default_rng(seed)
    factors = {name: rng.permutation(np.arange(n) % 3) for name in quality.FACTORS}
    good, rows = rng.normal(size=n), []
    for number in range(n):
        for way, step in enumerate(STEPS):
            sign, noise = early if step < 100 else late, rng.normal()
            loss = 7 - (3 + 0.3 * good[number]) * way / len(STEPS)
            coupling = 0.3 + 0.05 * (sign * good[number] + (1 - sign**2) ** 0.5 * noise)
            name = f"centre-seed{number}" if number < 3 else f"m{number}"
            row = {"model": name, "step": step, "validation_loss": loss, "seen_loss": loss - 0.1 + rng.normal(0, 0.01)}
            row |= {name: levels[number] for name, levels in factors.items()}
            rows.append(row | {"seed": number % 3, READING: 1 - coupling})
    return pd.DataFrame(rows).assign(score=lambda t: -t["validation_loss"])


def held(table: pd.DataFrame, reading: str = READING) -> pd.DataFrame:
    return quality.held_table(table, reading).set_index(["moment", "held"])


@pytest.fixture(scope="module")
def shipped() -> pd.DataFrame:
    return quality.finished(quality.quality())


def test_known_signs_of_correlation_are_recovered():
    found = quality.estimates(made_up(0.9, -0.9), [READING])
    assert (found["n"] == 26).all()
    each = found[found["question"] == "equal steps"].set_index("step")["value"]
    assert list(each.index) == [16, 29, 100, 300] and (each.iloc[:2] > 0.6).all() and (each.iloc[2:] < -0.6).all()
    found = found.set_index("question")
    assert found.loc[["early", "end", "within seeds"], "step"].tolist() == [29, 300, 300]
    assert found.low["early"] > 0 > found.high["end"] and found.high["within seeds"] < 0
    partial = found.loc["partial on training loss"]
    assert abs(partial["value"]) < 0.5 < abs(found.value["end"]) and partial["low"] < 0 < partial["high"]


def test_models_are_compared_at_equal_training_loss():
    table = made_up(0.0, 0.0).assign(seen_loss=lambda t: t["validation_loss"] - 0.1)
    equal = quality.at_equal_loss(table.assign(coupling=2 * table["seen_loss"]))
    level = table.groupby("model")["seen_loss"].min().max()
    np.testing.assert_allclose(equal[["coupling", "score"]], [[2 * level, -(level + 0.1)]] * 26)
    rows = [("a", 0, 3.0, 0.1, 1.0), ("a", 1, 2.0, 0.2, 2.0), ("b", 0, 5.0, 0.3, 3.0), ("b", 1, 4.0, 0.4, 4.0)]
    table = pd.DataFrame(rows, columns=["model", "step", "seen_loss", "coupling", "score"])
    assert quality.at_equal_loss(table).set_index("model")["coupling"].to_dict() == {"a": 0.1, "b": 0.4}


def test_duplicate_row_is_refused(tmp_path):
    table = pd.read_csv(paths.DATA / "quality.csv", comment="#")
    again = table[(table["model"] == "centre-seed1") & (table["step"] == 29)]
    pd.concat([table, again]).to_csv(tmp_path / "quality.csv", index=False)
    refused(ParameterError, "two rows of model centre-seed1, step 29", quality.quality, tmp_path / "quality.csv")


def test_the_shipped_table_and_the_predictions_fit_together(shipped):
    predicted = experiments()["quality"]
    found = quality.estimates(shipped, predicted["readings"])
    assert set(found["question"]) == {question["name"] for question in predicted["question"]}
    assert quality.EARLY in set(shipped["step"]) and set(found["reading"]) == set(predicted["readings"])
    assert (quality.MODELS, [*quality.READINGS.values()]) == (predicted["n"], predicted["readings"])


def test_seeds_scatter_is_told_from_that_of_settings():
    table, seeds = made_up(0.0, 0.0), [f"centre-seed{seed}" for seed in range(3)]
    end = table[table["step"] == 300].set_index("model")[READING]
    assert quality.scatter_of_seeds(table, READING) == pytest.approx((end[seeds].std(), end.drop(seeds).std()))


def test_quoted_numbers_match_the_estimates():
    table = made_up(0.9, -0.9)
    # One more reading, which always goes with the score.
    table = table.assign(tokens=table["step"] * 4096, basis_uu_k10=0.5 - 0.1 * table["score"], basis_uu_k10_null=0.9)
    table = table.assign(basis_vv_k10=table["basis_uu_k10"], released_diag_k10=table["basis_uu_k10"])
    loss = table["validation_loss"]
    table = table.assign(validation_low=loss - 0.03, validation_high=loss + 0.05)
    for mark, reading in quality.READINGS.items():
        table[reading] = table[READING] if mark != "shared-" else 1 - table[READING]
    found = quality.numbers_of(table)
    end = quality.estimates(table, [READING]).set_index("question").loc["end", "value"]
    at_end = table.loc[table["step"] == 300, READING].mean()
    expected = {
        "end": end, "step-300": end, "neighbours-end": end, "shared-end": -end, "end-held-nothing": end, "models": 26,
        "readings": 1, "readings-below": 0, "readings-above": 1, "readings-above-bases": 1, "tokens": 300 * 4096,
        "on-diagonal-end": 1 - at_end**2, "uu-end-held-all-three": 1, "half-width": 0.04,
    }  # fmt: skip
    assert {name: found[f"quality-{name}"] for name in expected} == pytest.approx(expected)
    assert found["quality-early-low"] > 0 > found["quality-within-seeds-high"] and found["quality-shared-step-29"] < 0
    assert "quality-uu-end-held-corrupted" not in found and 0 < found["quality-end-held-corrupted-explains-score"] < 1
    assert quality.numbers_of(table[table["model"] != "m7"]) == {}
    assert quality.numbers_of(quality.quality())["quality-end-held-all-three-seen"] == pytest.approx(0.81, abs=0.005)


def test_held_factor_is_removed_by_level_means():
    table = made_up(0.9, -0.5)
    found = held(table)
    for moment, step in (("early", 29), ("end", 300)):
        now = table[table["step"] == step].assign(coupling=lambda t: 1 - t[READING])
        for factor in quality.FACTORS:
            left = now[["coupling", "score"]] - now.groupby(factor)[["coupling", "score"]].transform("mean")
            row, share = found.loc[moment, factor], 1 - left["score"].var() / now["score"].var()
            expected = (left["coupling"].corr(left["score"]), left["score"].std(), share)
            assert (row["value"], row["sd_score"], row["explains_score"]) == pytest.approx(expected)
            assert row["low"] < row["value"]
    levels = [now[factor] == level for factor in quality.FACTORS for level in (0, 1)]
    design = np.column_stack([np.ones(26), *levels]).astype(float)
    a, b = (now[name] - design @ np.linalg.pinv(design) @ now[name] for name in ("coupling", "score"))
    assert found.loc[("end", quality.ALL_HELD), "value"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert (found["explains_score"].groupby("moment").idxmax().str[1] == quality.ALL_HELD).all()


def test_shipped_table_gives_the_quoted_correlations(shipped):
    found = held(shipped)
    expected = {
        ("early", "learning_rate"): (0.78, 0.39, 0.93), ("early", quality.ALL_HELD): (0.25, -0.84, 0.94),
        ("end", "nothing"): (-0.67, -0.91, -0.08), ("end", "corrupted"): (-0.35, -0.69, 0.12),
        ("end", quality.ALL_HELD): (0.36, -0.12, 0.70), ("equal training loss", "nothing"): (0.21, -0.22, 0.57),
        ("equal training loss", "unique_tokens"): (0.67, 0.35, 0.85),
        ("equal training loss", quality.ALL_HELD): (0.10, -0.64, 0.74),
    }  # fmt: skip
    np.testing.assert_allclose(found.loc[[*expected], ENDS].astype(float), [*expected.values()], rtol=0, atol=0.006)
    shares = found["explains_score"]
    assert shares["early", "learning_rate"] > 0.93 and round(shares["end", "corrupted"], 2) == 0.88
    assert round(found.loc[("equal training loss", "nothing"), "sd_score"], 3) == 0.020
    clean = quality.on_clean_text(shipped, READING)
    assert (clean.n, *np.round(clean[:3], 2)) == (11, -0.32, -0.88, 0.61)
    later, alone = quality.of_final_score(shipped, READING).values()
    assert np.round([*later[:3], *alone[:3]], 2).tolist() == [0.59, 0.24, 0.81, 0.16, -0.69, 0.82]
    # By the bases alone, which is what "the same directions" says, the sign does not turn.
    for reading, ends in {"basis_uu_k10": (0.72, 0.45, 0.87), "basis_vv_k10": (0.83, 0.66, 0.92)}.items():
        found = held(shipped, reading)
        assert found.loc[("end", "nothing"), ENDS].to_numpy(float) == pytest.approx(ends, abs=0.006)
        assert found.loc[("early", "nothing"), "value"] > 0.4 > 0 > found.loc[("end", quality.ALL_HELD), "low"]


def test_each_level_is_left_out_with_its_models():
    table = pd.DataFrame({"model": ["centre", "c10", "c10-lr6", "lr6"], "corrupted": [0, 0.1, 0.1, 0]})
    table = table.assign(learning_rate=[2e-3, 2e-3, 6e-3, 6e-3], unique_tokens=[5, 5, 5, 5])
    left = [set(part["model"]) for part in quality.without_a_level(table)]
    assert left == [{"c10", "c10-lr6"}, {"centre", "lr6"}, set(), {"c10-lr6", "lr6"}, {"centre", "c10"}]
