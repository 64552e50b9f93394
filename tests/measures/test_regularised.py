"""The experiment with coupling as a regulariser: its table, and differences within seeds."""

from __future__ import annotations

import pandas as pd
import pytest
import scipy.stats

from coupling_lib.errors import ParameterError
from coupling_lib.figures import regularised as figures
from coupling_lib.measures.regularised import difference_table, regularised

RUNS = regularised()
CHANGES = difference_table(RUNS).set_index(["strength", "column"])


def test_the_table_has_five_seeds_a_side_and_names_no_run_twice():
    assert RUNS.groupby("strength").seed.nunique().to_dict() == {0.0: 5, 0.03: 5, 0.3: 5}
    assert not RUNS.duplicated(["strength", "seed"]).any() and (RUNS.groupby("seed").size() == 3).all()


@pytest.mark.parametrize("strength", [0.03, 0.3])
@pytest.mark.parametrize("column", ["coupling", "validation_loss", "accuracy"])
def test_differences_are_those_of_a_paired_t_test(strength, column):
    plain, changed = (RUNS[RUNS.strength == s].sort_values("seed")[column].to_numpy() for s in (0, strength))
    expected = scipy.stats.ttest_rel(changed, plain).confidence_interval(0.95)
    found = CHANGES.loc[strength, column]
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.difference == pytest.approx((changed - plain).mean()) and found.pairs == 5


def test_the_regulariser_does_what_it_is_for():
    assert CHANGES.loc[0.3, "coupling"].low > CHANGES.loc[0.03, "coupling"].high
    assert CHANGES.loc[0.03, "coupling"].low > 0
    assert (RUNS.coupling > RUNS.null).all()


def test_one_pair_is_too_few():
    with pytest.raises(ParameterError, match=r"strength 0\.3 has 1 pairs of runs"):
        difference_table(RUNS[(RUNS.strength == 0) | ((RUNS.strength == 0.3) & (RUNS.seed == 2))])


def test_the_figure_draws_every_run_once_and_states_the_differences():
    changes = CHANGES.reset_index()
    coupling, loss, accuracy = figures.pairs(RUNS, changes).axes
    for axes, column, factor in ((coupling, "coupling", 1), (loss, "validation_loss", 1), (accuracy, "accuracy", 100)):
        drawn = {tuple(line.get_ydata().round(9)) for line in axes.lines if line.get_label() in ("one seed",)}
        first = RUNS[RUNS.seed == 0].sort_values("strength")[column] * factor
        assert drawn == {tuple(first.to_numpy().round(9))}
        mean = next(line for line in axes.lines if line.get_label() == "mean").get_ydata()
        assert mean == pytest.approx((RUNS.groupby("strength")[column].mean() * factor).to_numpy())
    said = [text.get_text() for text in loss.texts]
    row = CHANGES.loc[0.3, "validation_loss"]
    assert said[-1] == f"{row.difference:+.3f}\n[{row.low:+.3f},\n{row.high:+.3f}]"


def test_records_carry_the_names_that_the_book_quotes():
    found = figures.records(CHANGES.reset_index())
    assert found["regularised-pairs"] == 5
    assert found["regularised-loss-0.3-low"] == pytest.approx(CHANGES.loc[0.3, "validation_loss"].low)
    assert isinstance(pd.Series(found).sum(), float)
