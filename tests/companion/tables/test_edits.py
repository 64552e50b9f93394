"""What edits cost and what goes with it: found where it is built in, not where distance alone makes it."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from claims import experiments
from refusals import refused

from companion.tables import edits as of
from companion.tables.edits import COUPLING, DISTANCE, INFLUENCE, LIKELY, NEAR, PAIRS, REMOVE, SHARED, SKIP
from coupling_lib.errors import ParameterError

N = 16
M, _ = LIKELY[COUPLING]


def made_up(rule, n=N, seed=0, model="m"):
    """A model's table whose costs follow a rule of coupling, influence and distance, and noise."""
    draw = np.random.default_rng(seed)
    influence, rows = draw.normal(size=n), []
    pairs = [pair for pair in combinations(range(n), 2) if pair[1] - pair[0] <= NEAR]
    for edit, places in [(SKIP, (i,)) for i in range(n)] + [(edit, pair) for edit in PAIRS for pair in pairs]:
        d, own = places[-1] - places[0], influence[list(places)].mean()
        m = 0.8 + 0.03 * d + 0.02 * np.random.default_rng([seed, *places]).normal()
        row = {"influence": own, M: m} | {name: draw.normal() for name in (LIKELY[SHARED][0], "alpha", "log_singular")}
        row |= {} if edit == SKIP else {"distance": d, "state_cosine": draw.normal()}
        cost = rule(1 - m, own, d, draw.normal())
        blocks = " ".join(str(place + 1) for place in places)
        rows.append({"model": model, "edit": edit, "blocks": blocks, "by": "", "loss_rise": cost, "kl": cost} | row)
    return pd.DataFrame(rows)


def noise(c, i, d, e):
    return e


def test_relation_by_distance_or_influence_is_not_found():
    by_coupling = of.near_pairs(made_up(lambda c, i, d, e: -c + 0.005 * e), "swap")
    found, (null, share) = of.related(by_coupling, COUPLING), of.permuted(by_coupling, COUPLING)
    assert found.high < -0.7 and found.n == N
    assert share < 0.002 and null == pytest.approx(1.96 / len(by_coupling) ** 0.5, rel=0.2)
    by_distance = of.near_pairs(made_up(lambda c, i, d, e: d + 0.1 * e), "swap")
    assert by_distance[M].corr(by_distance["loss_rise"], method="spearman") > 0.6
    found = of.related(by_distance, COUPLING)
    assert found.low < 0 < found.high and of.related(by_distance, DISTANCE).value > 0.9
    # Nor one by influence, once that is held fixed.
    own = of.near_pairs(made_up(lambda c, i, d, e: i + 0.05 * e), "swap")
    own[M] = own["influence"] + 0.3 * np.random.default_rng(1).normal(size=len(own))
    alone, held = of.related(own, COUPLING), of.related(own, COUPLING, given=INFLUENCE)
    assert alone.high < -0.5 and held.low < 0 < held.high


def test_error_counts_blocks_instead_of_pairs():
    # Costs and a predictor are of blocks: pairs repeat both, and nothing relates them.
    outside, permuted = [], []
    for seed in range(30):
        own = of.near_pairs(made_up(noise, seed=seed), "swap")
        a, b = np.random.default_rng([seed, 1]).normal(size=(2, N))
        pairs = np.array(own["pair"].tolist()) - 1
        own = own.assign(influence=a[pairs].mean(1), loss_rise=b[pairs].mean(1))
        effect = of.related(own, INFLUENCE)
        outside.append(not effect.low < 0 < effect.high)
        permuted.append(of.permuted(own, INFLUENCE)[1] < 0.05)
    assert np.mean(outside) <= 0.2 < np.mean(permuted)


@pytest.mark.thorough
def test_coupling_adds_to_prediction_of_unseen_blocks(monkeypatch):
    adding = of.added(made_up(lambda c, i, d, e: -30 * c + i, n=24))
    assert (adding.loc[adding["predictor"] == COUPLING, "value"] > 0.1).all()
    nothing = of.added(made_up(lambda c, i, d, e: i + 0.3 * d, n=24))
    assert (nothing["low"] < 0.02).all() and (nothing["without"] > 0.5).all()
    sizes, solve = [], of.scipy.linalg.lstsq
    monkeypatch.setattr(of.scipy.linalg, "lstsq", lambda X, y: sizes.append(len(y)) or solve(X, y))
    own = of.near_pairs(made_up(noise, n=10), "swap")
    of.held_out(own, [COUPLING])
    # Five stretches of two blocks: pairs up to four apart among the eight others, wherever the two were.
    assert len(own) == 30 and sizes == [22, 18, 15, 18, 22]


def test_removal_gives_median_of_random_choices():
    rows = [("2", "random 0", 1.0), ("3", "random 1", 2.0), ("4", "random 2", 6.0), ("5", COUPLING, 1.5)]
    table = pd.DataFrame(rows, columns=["blocks", "by", "loss_rise"]).assign(edit=REMOVE)
    found = of.removal(table).set_index("by")
    assert found["loss_rise"].to_dict() == {"random": 2.0, COUPLING: 1.5}
    assert found.loc[COUPLING, "random_better"] == pytest.approx(1 / 3)
    alone = of.removal(table[table["by"] == COUPLING])
    assert alone["loss_rise"].tolist() == [1.5] and alone["random_better"].isna().all()


def test_unfinished_models_are_left_out(tmp_path):
    one, two = made_up(noise), made_up(noise, model="n", seed=1)
    lacks = two.drop(index=two.index[two["edit"] == "merge"][0])
    assert list(of.finished(pd.concat([one, lacks]))["model"].unique()) == ["m"]
    assert list(of.finished(pd.concat([one, two]), first="n")["model"].unique()) == ["n", "m"]
    pd.concat([one, one.iloc[:1]]).to_csv(tmp_path / "twice.csv", index=False)
    refused(ParameterError, "two rows of model m, edit skip, blocks 1, by", of.edits, tmp_path / "twice.csv")


def test_blocks_are_ordered_by_expected_cost_of_removal():
    m = np.array([[0, 0.2, 0.9], [0.2, 0, 0.5], [0.9, 0.5, 0]])
    found = of.by_block({M: m, "influence": [0.3, 0.1, 0.2], "alpha": [2, 4, 3], "state_cosine": m})
    # The most coupled block, the one of least influence, that of the largest exponent.
    assert found == {COUPLING: [1, 0, 2], INFLUENCE: [1, 2, 0], "alpha": [1, 2, 0]}


def test_shipped_table_answers_every_question():
    table = of.finished(of.edits())
    found, named = of.estimates(table), of.numbers(table[table["model"] == "nano-neox"])
    by = {f"{edit} by {name}" for edit in (SKIP, *PAIRS) for name in (COUPLING, INFLUENCE)}
    assert set(found["question"]) == {SKIP, *PAIRS, "beyond influence", *by}
    assert len(found) == 27 * table["model"].nunique()
    assert ((found["low"] <= found["value"]) & (found["value"] <= found["high"])).all()
    assert (table["loss_rise_low"] <= table["loss_rise"]).all() and (table["kl"] > 0).all()
    swap = found.query("question == 'swap' and label == 'nano-neox, coupling'")["value"].item()
    expected = {"blocks": 12, "pairs": 38, "swap-coupling": swap}
    assert {name: named[f"nano-neox-{name}"] for name in expected} == expected
    assert {asked["level"] for asked in experiments()["edits"]["question"][:5]} == {of.LEVEL}
    assert named["nano-neox-parallel-coupling-seen"] == pytest.approx(0.956, abs=0.005)
