"""Vision transformers on photographs: what is asked of a grid, and of pairs that differ in one rate."""

import numpy as np
import pandas as pd
import pytest

from companion.tables import photographs
from tests.companion.figures.test_vision import GRID, make_pairs

NONE = pd.DataFrame()


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
    none, alike, steeper = (photographs.answers(make_photographs(*sizes), column) for sizes in ((), (1.0,), (0.0, 4.0)))
    # Rates alone make the two go apart; among models of one rate there is nothing.
    assert none["over all models"].high < 0 < none["coupling rises with the rate"].low
    assert none["within rates"].low < 0 < none["within rates"].high
    table = make_photographs()
    cleared = table[["test_accuracy"]].assign(coupling=1 - table[column])
    cleared -= cleared.groupby(table["drop_path"]).transform("mean")
    assert none["within rates"].value == pytest.approx(cleared.corr().iloc[0, 1], abs=1e-6)
    assert alike["within rates"].low > 0.5 > alike["the more so with stochastic depth"].high
    assert steeper["the more so with stochastic depth"].low > 0.3


def test_held_factors_are_removed_by_level_means():
    table, column = photographs.cells(), photographs.PARTS["whole"]
    found, numbers = photographs.partial_effects(table, photographs.PARTS), photographs.numbers_of(table, NONE)
    values = table[["test_accuracy"]].assign(coupling=1 - table[column])
    rates, decays = (values.groupby(table[name]).transform("mean") for name in ("drop_path", "weight_decay"))
    # Every cell is there once, so that means add up.
    held = {
        "rates": (rates, (0.22, -0.08, 0.49)),
        "decays": (decays, (-0.47, -0.72, -0.12)),
        "both": (rates + decays - values.mean(), (-0.13, -0.44, 0.22)),
    }
    for name, (means, ends) in held.items():
        effect = found[name, "whole"]
        assert effect.value == pytest.approx((values - means).corr().iloc[0, 1], abs=1e-6)
        assert effect[:3] == pytest.approx(ends, abs=0.006)
    assert numbers["photographs-within-both"] == found["both", "whole"].value
    assert numbers["photographs-within-both-seen"] == pytest.approx(0.53, abs=0.005)


def test_repeated_seeds_of_a_cell_are_ignored(tmp_path):
    table, file = make_photographs(), tmp_path / "grid.csv"
    more = table[table["weight_decay"] == 0.2].assign(seed=lambda rows: rows["seed"] + 100)
    pd.concat([table, more.assign(model=more["seed"].astype(str))]).to_csv(file, index=False)
    cells = photographs.cells(file)
    numbers = photographs.numbers_of(cells, NONE)
    assert cells["seed"].tolist() == list(range(64)) and photographs.numbers_of(cells.head(30), NONE) == {}
    assert numbers["photographs-models"] == 64 and numbers["photographs-accuracy-high"] < 0


def test_pairs_show_the_gain_from_stochastic_depth(tmp_path):
    made = make_pairs(0.003, photographs.N_PAIRS).sample(frac=1, random_state=0)
    made.to_csv(tmp_path / "pairs.csv", index=False)
    table = photographs.pairs(tmp_path / "pairs.csv")
    gains, found = photographs.gains(table), photographs.pair_answers(table)
    assert gains.shape == (40, 3) and gains["traceless part"].abs().max() == 0
    coupling, accuracy = found["coupling with stochastic depth", "whole"], found["accuracy with stochastic depth", ""]
    assert 0 < coupling.low < 0.003 < coupling.high < 0.005 and accuracy.low < -0.01 < accuracy.high < 0
    # Not told apart from the scatter of seeds without the pairing.
    assert coupling.error < table.groupby("drop_path")["class.k10.normalized_miscoupling"].std().min() / 100
    numbers = photographs.numbers_of(NONE, table)
    assert numbers["pairs-coupling"] == pytest.approx(gains["whole"].mean()) and numbers["pairs-accuracy-high"] < 0
    # Models without a twin are left out.
    made.drop(index=made.index.max()).to_csv(tmp_path / "pairs.csv", index=False)
    table = photographs.pairs(tmp_path / "pairs.csv")
    assert table["seed"].nunique() == 39 and photographs.numbers_of(NONE, table) == {}
    assert photographs.pairs(tmp_path / "none.csv").empty
