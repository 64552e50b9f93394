"""Vision transformers on photographs: what is asked of a grid, and of pairs that differ in one rate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from companion.tables import photographs
from tests.companion.figures.test_vision import GRID, make_pairs


def make_photographs(slope: float = 0.0, grows: float = 0.0) -> pd.DataFrame:
    """A grid of which no two models share a seed; accuracy follows coupling within rates, or the more with the rate."""
    rng, cells = np.random.default_rng(3), GRID[GRID.seed == 0].drop(columns=["seed", "test_accuracy"])
    noise, rate = rng.normal(size=(2, len(cells))), cells["drop_path"].to_numpy()
    coupling = 0.1 + 0.1 * rate + 0.01 * noise[0]
    accuracy = 0.4 - 0.1 * rate + 0.01 * ((slope + grows * (rate - rate.mean())) * noise[0] + 0.5 * noise[1])
    columns = dict.fromkeys(photographs.PARTS.values(), 1 - coupling)
    return cells.assign(**columns, test_accuracy=accuracy, seed=np.arange(len(cells)))


def test_answers_separate_relations_within_and_across_rates():
    column = photographs.PARTS["whole"]
    none, alike, steeper = (make_photographs(*sizes) for sizes in ((), (1.0,), (0.0, 4.0)))
    found = photographs.answers(none, column)
    # Rates alone make the two go apart; among models of one rate there is nothing.
    assert found["over all models"].high < 0 < found["coupling rises with the rate"].low
    assert found["within rates"].low < 0 < found["within rates"].high
    cleared = none[["test_accuracy"]].assign(coupling=1 - none[column])
    cleared -= cleared.groupby(none["drop_path"]).transform("mean")
    assert found["within rates"].value == pytest.approx(cleared.corr().iloc[0, 1], abs=1e-6)
    assert photographs.answers(alike, column)["within rates"].low > 0.5
    assert photographs.answers(alike, column)["the more so with stochastic depth"].high < 0.5
    assert photographs.answers(steeper, column)["the more so with stochastic depth"].low > 0.3


def test_held_factors_are_removed_by_level_means():
    table, column = photographs.cells(), photographs.PARTS["whole"]
    found = photographs.partial_effects(table, photographs.PARTS)
    values = table[["test_accuracy"]].assign(coupling=1 - table[column])
    rates, decays = (values.groupby(table[name]).transform("mean") for name in ("drop_path", "weight_decay"))
    for name, means in (("rates", rates), ("decays", decays), ("both", rates + decays - values.mean())):
        expected = (values - means).corr().iloc[0, 1]  # every cell is there once, so that means add up
        assert found[name, "whole"].value == pytest.approx(expected, abs=1e-6)
    intervals = {"rates": (0.22, -0.08, 0.49), "decays": (-0.47, -0.72, -0.12), "both": (-0.13, -0.44, 0.22)}
    for name, ends in intervals.items():
        assert found[name, "whole"][:3] == pytest.approx(ends, abs=0.006)
    numbers = photographs.numbers_of(table, pd.DataFrame())
    assert numbers["photographs-within-both"] == found["both", "whole"].value
    assert numbers["photographs-within-both-seen"] == pytest.approx(0.53, abs=0.005)


def test_repeated_seeds_of_a_cell_are_ignored(tmp_path):
    table, file = make_photographs(), tmp_path / "grid.csv"
    more = table[table["weight_decay"] == 0.2].assign(seed=lambda rows: rows["seed"] + 100, model="again")
    pd.concat([table, more.assign(model=more["seed"].astype(str))]).to_csv(file, index=False)
    assert photographs.cells(file)["seed"].tolist() == list(range(64))
    numbers = photographs.numbers_of(photographs.cells(file), pd.DataFrame())
    assert numbers["photographs-models"] == 64 and numbers["photographs-accuracy-high"] < 0
    half = photographs.cells(file).head(30)
    assert photographs.numbers_of(half, pd.DataFrame()) == {}


def test_pairs_show_the_gain_from_stochastic_depth(tmp_path):
    make_pairs(0.003, photographs.N_PAIRS).sample(frac=1, random_state=0).to_csv(tmp_path / "pairs.csv", index=False)
    table = photographs.pairs(tmp_path / "pairs.csv")
    gains = photographs.gains(table)
    assert gains.shape == (40, 3) and gains["traceless part"].abs().max() == 0
    found = photographs.pair_answers(table)
    coupling, accuracy = found["coupling with stochastic depth", "whole"], found["accuracy with stochastic depth", ""]
    assert 0 < coupling.low < 0.003 < coupling.high < 0.005 and accuracy.low < -0.01 < accuracy.high < 0
    # Not told apart from the scatter of seeds without the pairing.
    apart = table.groupby("drop_path")["class.k10.normalized_miscoupling"].std()
    assert coupling.error < apart.min() / 100
    numbers = photographs.numbers_of(pd.DataFrame(), table)
    assert numbers["pairs-coupling"] == pytest.approx(gains["whole"].mean()) and numbers["pairs-accuracy-high"] < 0


def test_models_without_a_twin_are_left_out(tmp_path):
    make_pairs(0.003, photographs.N_PAIRS).iloc[:-1].to_csv(tmp_path / "pairs.csv", index=False)
    table = photographs.pairs(tmp_path / "pairs.csv")
    assert table["seed"].nunique() == 39 and photographs.numbers_of(pd.DataFrame(), table) == {}
    assert photographs.pairs(tmp_path / "none.csv").empty
