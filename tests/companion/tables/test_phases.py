"""Why coupling peaks: the table, and what was asked of it, by a second calculation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from companion.tables import phases

TABLE = phases.phases()
OWN = phases.finished(TABLE)


def test_phases_table_holds_six_seeds_at_ten_steps():
    assert OWN.groupby("model").size().to_dict() == {f"seed{seed}": 10 for seed in range(6)}
    assert set(TABLE["model"]) - set(OWN["model"]) == {"nano-neox"}
    assert TABLE["alike"].between(-0.1, 1).all() and (TABLE["log_lead"] > 0).all()
    assert (TABLE["rank"] <= TABLE["width"]).all()


def test_the_answers_are_those_of_a_second_calculation():
    asked, likeness, lead, fall = phases.answers(OWN), [], [], []
    for _, part in OWN[OWN["step"] > 0].groupby("model"):
        likeness.append(scipy.stats.spearmanr(part["coupling"], part["alike"]).statistic)
        lead.append(scipy.stats.spearmanr(part["coupling"], part["log_lead"]).statistic)
        of = part.set_index("step")["alike"]
        fall.append(of[91] - of[1642])
    assert asked["coupling goes with likeness"].value == pytest.approx(np.mean(likeness))
    assert asked["coupling goes with one strong direction"].value == pytest.approx(np.mean(lead))
    assert asked["likeness ahead of its rival"].value == pytest.approx(np.mean(np.subtract(likeness, lead)))
    assert asked["alike at the peak"].value == pytest.approx(np.mean(fall))
    assert all(effect.n == 6 for effect in asked.values())


def test_quoted_numbers_are_of_the_seeds_alone():
    found = phases.numbers_of(TABLE)
    at = OWN[OWN["step"] == 91]
    assert found["phases-peak-alike"] == pytest.approx(at["alike"].mean()) and found["phases-seeds"] == 6
    assert found["phases-peak-coupling"] == pytest.approx(1 - at["normalized_miscoupling_k10"].mean())
    assert found["phases-alike-at-the-peak"] == pytest.approx(phases.answers(OWN)["alike at the peak"].value)
