"""The experiment with coupling as a regulariser: its table, differences within seeds, and what was asked of it."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from refusals import refused

from companion.tables import regularised
from coupling_lib.errors import ParameterError

RUNS = regularised.finished(regularised.regularised())
CHANGES = regularised.difference_table(RUNS).set_index(["begin", "arm", "column"])
ARMS = ("encourage0.3", "encourage0.03", "decouple0.03", "sham0.3", "shared0.3")
LOSS, COUPLING = (
    RUNS.pivot(index=["begin", "seed"], columns="arm", values=name) for name in ("validation_loss", "coupling")
)


def test_every_seed_has_every_arm_and_twin():
    assert RUNS.groupby("seed").size().unique().tolist() == [11] and not RUNS["model"].duplicated().any()
    assert set(RUNS["arm"]) == {*ARMS, "without"}
    assert set(RUNS[RUNS["arm"] == "encourage0.03"].groupby("seed")["begin"].agg(tuple)) == {(0, 300)}


@pytest.mark.parametrize(("begin", "arm"), product((0, 300), ARMS))
def test_differences_are_paired_within_seeds(begin, arm):
    plain = RUNS[RUNS["arm"] == "without"].sort_values("seed")
    changed = RUNS[(RUNS["arm"] == arm) & (RUNS["begin"] == begin)].sort_values("seed")
    for column in regularised.QUANTITIES:
        student = scipy.stats.ttest_rel(changed[column].array, plain[column].array).confidence_interval(0.95)
        found = CHANGES.loc[begin, arm, column]
        assert found["value"] == pytest.approx((changed[column].array - plain[column].array).mean())
        assert found["low"] <= student.low + 1e-12 and student.high - 1e-12 <= found["high"]
        assert found["n"] == len(plain)


@pytest.mark.parametrize("begin", [0, 300])
def test_regulariser_changes_coupling_as_intended(begin):
    assert CHANGES.loc[begin, "encourage0.3", "coupling"].low > CHANGES.loc[begin, "encourage0.03", "coupling"].high
    assert CHANGES.loc[begin, "encourage0.03", "coupling"].low > 0 > CHANGES.loc[begin, "decouple0.03", "coupling"].high
    assert CHANGES.loc[begin, "shared0.3", "shared"].low > 0


def test_answers_equal_a_second_calculation():
    found = regularised.answers(RUNS)
    late, doses = LOSS.loc[300], list(regularised.DOSES)
    x, y = (values.loc[300, doses].sub(values.loc[0]["without"], axis=0) for values in (COUPLING, LOSS))
    slopes = [np.linalg.lstsq(x.loc[[seed]].T, y.loc[seed], rcond=None)[0][0] for seed in late.index]
    lead = (late["encourage0.3"] - late["sham0.3"]).mean()
    assert found["encouraged over sham, from step 300"].value == pytest.approx(lead)
    assert found["loss per coupling, from step 300"].value == pytest.approx(np.mean(slopes))
    assert len(found) == 10 and all(effect.n == RUNS["seed"].nunique() for effect in found.values())


def test_sham_costs_more_only_after_the_peak():
    found, counted = regularised.over_sham(RUNS), regularised.agreement(RUNS)
    for begin in (0, 300):
        lead = (LOSS.loc[begin, "encourage0.3"] - LOSS.loc[begin, "sham0.3"]).to_numpy()
        assert found[f"encourage0.3-from{begin}-over-sham"].value == pytest.approx(lead.mean())
    assert found["encourage0.3-from0-over-sham"].low < 0 < found["encourage0.3-from0-over-sham"].high
    assert (lead < 0).all() and len(lead) == 6 and round(lead.mean(), 4) == -0.0064
    # From the start, driving blocks apart helps in every seed; every other arm hurts in every one.
    helps = "decouple0.03-from0-seeds-worse"
    assert {name for name, seeds in counted.items() if seeds == 0} == {helps}
    assert {name for name, seeds in counted.items() if seeds < 6} == {helps, "decouple0.03-from300-seeds-worse"}
    assert round(CHANGES.loc[0, "decouple0.03", "validation_loss"]["value"], 3) == -0.027
    assert CHANGES.loc[0, "sham0.3", "coupling"]["high"] < -0.1  # the control is not neutral


def test_unfinished_seed_is_left_out(tmp_path):
    part = RUNS.drop(RUNS.index[RUNS["model"] == "sham0.3-from300-seed1"])
    assert set(regularised.finished(part)["seed"]) == set(RUNS["seed"]) - {1}
    message = r"from 0 has 1 pairs of runs; 2 are needed"
    refused(ParameterError, message, regularised.difference_table, RUNS[RUNS["seed"] == 2])
    twice = pd.read_csv(regularised.paths.DATA / "regulariser.csv", comment="#", low_memory=False)
    pd.concat([twice, twice.tail(1)]).to_csv(tmp_path / "twice.csv", index=False)
    message = "two rows of model .*, step 600; remove"
    refused(ParameterError, message, regularised.regularised, tmp_path / "twice.csv")
