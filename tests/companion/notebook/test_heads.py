"""Heads of tables in words."""

import pandas as pd

from companion.notebook.heads import headed

HEADS = {
    "c_norm_null_error": "coupling, normalised, by chance, standard error",
    "c_trace_trained": "coupling, released trace, trained",
    "r_low": "r, 95 % from",
    "left_out": "left out",
    3: "3",
}


def test_columns_are_named_in_words():
    table = pd.DataFrame([range(len(HEADS))], columns=[*HEADS])
    assert headed(table).equals(table.set_axis([*HEADS.values()], axis="columns"))
