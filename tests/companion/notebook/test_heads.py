"""Heads of tables in words."""

import pandas as pd
import pytest

from companion.notebook.heads import headed


@pytest.mark.parametrize(
    ("column", "head"),
    [
        ("c_norm_null_error", "coupling, normalised, by chance, standard error"),
        ("c_trace_trained", "coupling, released trace, trained"),
        ("r_low", "r, 95 % from"),
        ("left_out", "left out"),
        (3, "3"),
    ],
)
def test_columns_are_named_in_words(column, head):
    found = headed(pd.DataFrame({column: [1.5]}))
    assert found.columns.tolist() == [head] and found[head].tolist() == [1.5]
