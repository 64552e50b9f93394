"""The experiment with coupling as a regulariser: its table, and differences within seeds."""

from __future__ import annotations

import pytest
import scipy.stats

from companion.tables.regularised import difference_table, regularised
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.inference import mean_interval

RUNS = regularised()
CHANGES = difference_table(RUNS).set_index(["strength", "column"])


def test_the_table_has_five_seeds_a_side_and_names_no_run_twice():
    assert RUNS.groupby("strength").seed.nunique().to_dict() == {0.0: 5, 0.03: 5, 0.3: 5}
    assert not RUNS.duplicated(["strength", "seed"]).any() and (RUNS.groupby("seed").size() == 3).all()


@pytest.mark.parametrize("strength", [0.03, 0.3])
@pytest.mark.parametrize("column", ["coupling", "validation_loss", "accuracy"])
def test_differences_are_taken_within_seeds_and_no_surer_than_a_paired_t_test(strength, column):
    plain, changed = (RUNS[RUNS.strength == s].sort_values("seed")[column].to_numpy() for s in (0, strength))
    student = scipy.stats.ttest_rel(changed, plain).confidence_interval(0.95)
    found = CHANGES.loc[strength, column]
    assert (found.difference, found.low, found.high) == pytest.approx([*map(float, mean_interval(changed - plain))])
    assert found.low <= student.low + 1e-12 and student.high - 1e-12 <= found.high
    assert found.difference == pytest.approx((changed - plain).mean()) and found.pairs == 5


def test_the_regulariser_does_what_it_is_for():
    assert CHANGES.loc[0.3, "coupling"].low > CHANGES.loc[0.03, "coupling"].high
    assert CHANGES.loc[0.03, "coupling"].low > 0
    assert (RUNS.coupling > RUNS.null).all()


def test_one_pair_is_too_few():
    with pytest.raises(ParameterError, match=r"strength 0\.3 has 1 pairs of runs"):
        difference_table(RUNS[(RUNS.strength == 0) | ((RUNS.strength == 0.3) & (RUNS.seed == 2))])
