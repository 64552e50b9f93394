"""Why coupling peaks: the table, and what was asked of it, by a second calculation."""

import numpy as np
import pytest
import scipy.stats

from companion.tables import phases

TABLE = phases.phases()
OWN = phases.finished(TABLE)
ASKED = phases.answers(OWN)


def test_phases_table_holds_six_seeds_at_ten_steps():
    assert OWN.groupby("model").size().to_dict() == {f"seed{seed}": 10 for seed in range(6)}
    assert set(TABLE["model"]) - set(OWN["model"]) == {"nano-neox"}
    assert TABLE["alike"].between(-0.1, 1).all() and (TABLE["log_lead"] > 0).all()
    assert (TABLE["rank"] <= TABLE["width"]).all()


def test_answers_and_numbers_match_a_second_calculation():
    seeds = [part for _, part in OWN[OWN["step"] > 0].groupby("model")]
    likeness, lead = (
        np.array([scipy.stats.spearmanr(part["coupling"], part[name]).statistic for part in seeds])
        for name in ("alike", "log_lead")
    )
    alike = OWN.pivot(index="model", columns="step", values="alike")
    expected = {
        "coupling goes with likeness": likeness.mean(),
        "coupling goes with one strong direction": lead.mean(),
        "likeness ahead of its rival": (likeness - lead).mean(),
        "alike at the peak": (alike[91] - alike[1642]).mean(),
    }
    assert {name: ASKED[name].value for name in expected} == pytest.approx(expected)
    assert all(effect.n == 6 for effect in ASKED.values())
    found, at = phases.numbers_of(TABLE), OWN[OWN["step"] == 91]
    assert found["phases-peak-alike"] == pytest.approx(at["alike"].mean()) and found["phases-seeds"] == 6
    assert found["phases-peak-coupling"] == pytest.approx(1 - at["normalized_miscoupling_k10"].mean())
    assert found["phases-alike-at-the-peak"] == pytest.approx(ASKED["alike at the peak"].value)
