"""The program that measures how often the rule is wrong, and its page: every reading has a cell, and the goal holds."""

from __future__ import annotations

import math
from functools import partial

import calibrated
import calibration
import claims
import numpy as np
import pandas as pd
import pytest
from calibration import CELLS, Cell, judged, shifted

from companion.tables.inference import effect_of

TABLE = pd.read_csv(calibration.TABLE).set_index("cell")
BY_NAME = {cell.name: cell for cell in CELLS}


def test_every_reading_of_a_claim_has_cells_of_its_kind():
    effects = [test["effect"] for claim in claims.read_claims() for test in claim["test"]]
    for effect in effects:
        assert any(cell.reading.startswith(calibrated.kind_of(effect)) for cell in CELLS), effect
    with pytest.raises(ValueError, match="not enough values"):
        calibrated.kind_of("generalization-unheard-of")


def test_the_table_has_a_line_for_every_cell_before_and_now():
    assert list(TABLE.index) == [cell.name for cell in CELLS] and len(BY_NAME) == len(CELLS)
    assert (TABLE.draws == [2000 * cell.often for cell in CELLS]).all()
    assert TABLE[["false_alarms", "power"]].notna().all(axis=None)
    # A kind of reading that came later has no line of the rule before.
    later = TABLE.index.str.startswith("correlation, seven held")
    assert TABLE.loc[~later, ["before_false_alarms", "before_power"]].notna().all(axis=None) and later.sum() == 2


def test_values_have_mean_0_and_variance_1_in_every_shape():
    rng = np.random.default_rng(0)
    for name, shape in calibration.SHAPES.items():
        values = shape(rng, 400_000)
        assert values.mean() == pytest.approx(0, abs=0.02), name
        assert values.var() == pytest.approx(1, abs=0.35 if name == "very skewed" else 0.1), name


def test_a_rule_that_always_sees_an_effect_is_found_out_and_one_that_never_does_as_well():
    sure, blind = (Cell("r", "s", 12, shifted(12, "normal"), partial(told, error=e), 1.0) for e in (1e-9, 1e9))
    assert judged(sure, 20) == {"draws": 20, "false_alarms": 1, "coverage": 0, "power": 1}
    assert judged(blind, 20) == {"draws": 20, "false_alarms": 0, "coverage": 1, "power": 0}


def told(values, error):
    mean = float(np.mean(values))
    return effect_of(values)._replace(low=mean - error, high=mean + error, error=error, skew=0.0)


@pytest.mark.parametrize(
    "name",
    [
        "mean; skewed; 12",
        "correlation; skewed; 16",
        "correlation over rates; groups alike; 8",
        "mean within a margin; normal; 12",
        pytest.param("fall from the peak; runs scatter by 0.01; 12", marks=pytest.mark.thorough),
    ],
)
def test_the_table_is_what_the_program_gives(name):
    found, line = judged(BY_NAME[name], 150), TABLE.loc[name]
    for part in ("false_alarms", "coverage", "power"):
        p = min(max(line[part], 0.02), 0.98)
        assert found[part] == pytest.approx(line[part], abs=3.5 * math.sqrt(p * (1 - p) / 150)), part
    assert found == judged(BY_NAME[name], 150)


def test_no_cell_misses_the_goal():
    assert calibrated.misses(TABLE.reset_index()).empty
    assert (TABLE.n >= calibrated.FEW).sum() == 67


@pytest.mark.parametrize(
    ("false_alarms", "coverage", "n", "missed"),
    [(0.061, 0.95, 8, True), (0.06, 0.929, 8, True), (0.06, 0.93, 8, False), (0.2, 0.5, 7, False),
     (0.05, math.nan, 9, False)],
)  # fmt: skip
def test_a_cell_misses_by_its_false_alarms_or_its_coverage_unless_its_values_are_few(false_alarms, coverage, n, missed):
    line = {"cell": "c", "n": n, "false_alarms": false_alarms, "coverage": coverage}
    assert calibrated.misses(pd.DataFrame([line])).cell.tolist() == ["c"] * missed


def test_the_page_has_every_cell_and_says_that_none_misses():
    page = calibrated.calibration_page()
    assert page.count("\n| correlation | ") == 17  # sixteen cells, and the readings of that kind
    assert "Each of the 67 cells with n of 8 or more has at most 0.06 false alarms and at least 0.93 coverage" in page


def test_the_page_names_what_misses(tmp_path, monkeypatch):
    lines = TABLE.copy()
    lines.loc["mean; skewed; 12", "coverage"] = 0.9
    lines.to_csv(tmp_path / "calibration.csv")
    monkeypatch.setattr(calibrated, "TABLE", tmp_path / "calibration.csv")
    page = calibrated.calibration_page()
    assert "Of 67 cells with n of 8 or more, 1 misses the goal" in page and "| mean; skewed; 12 | " in page
