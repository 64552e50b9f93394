"""What encouraging coupling changes: pairs of runs with and without `coupling_loss`, compared within seeds."""

from pathlib import Path

import pandas as pd

from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.inference import mean_interval

QUANTITIES = ("coupling", "validation_loss", "accuracy")
"""Columns that are compared."""


def regularised(file: Path | None = None) -> pd.DataFrame:
    """Read the runs of the experiment, after training."""
    measured = ["normalized_miscoupling_k10", "normalized_miscoupling_k10_null"]
    others = ["validation_loss", "accuracy", "coupling_loss", "versions"]
    columns = ["strength", "seed", *measured, *others]
    table = pd.read_csv(file or paths.DATA / "regulariser.csv", comment="#", usecols=["step", *columns])
    table = table.loc[table["step"] > 0, columns].sort_values(["strength", "seed"], ignore_index=True)
    table[measured] = 1 - table[measured]
    return table.rename(columns=dict(zip(measured, ("coupling", "null"), strict=True)))


def difference_table(table: pd.DataFrame) -> pd.DataFrame:
    """Compare each strength with no regulariser, within seeds."""
    plain = table[table["strength"] == 0].set_index("seed")
    rows = []
    for strength, part in table[table["strength"] > 0].groupby("strength"):
        part = part.set_index("seed")
        seeds = part.index.intersection(plain.index)
        if len(seeds) < 2:
            raise ParameterError(f"strength {strength:g} has {len(seeds)} pairs of runs; 2 are needed, run more seeds")
        for column in QUANTITIES:
            mean, low, high = map(float, mean_interval(part.loc[seeds, column] - plain.loc[seeds, column]))
            rows.append((strength, column, len(seeds), mean, low, high))
    return pd.DataFrame(rows, columns=["strength", "column", "pairs", "difference", "low", "high"])
