"""What `data/edits.csv` says: whether coupling, or what rivals it, tells which edits of a network cost little."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from companion.tables.files import read_table
from coupling_lib import paths
from coupling_lib.errors import ParameterError

TABLE = paths.DATA / "edits.csv"
KEY = ["model", "edit", "blocks", "by"]
SKIP, REMOVE = "skip", "remove"
PAIRS = ("swap", "replace", "merge", "parallel")
"""Edits of two blocks."""
BEST, RANDOM = "best", "random"
K = 10
LIKELY = {
    "coupling": (f"normalized_miscoupling_k{K}", -1),
    "shared part": (f"shared_normalized_miscoupling_k{K}", -1),
    "block influence": ("influence", 1),
    "cosine of states": ("state_cosine", -1),
    "distance": ("distance", 1),
    "singular values": ("log_singular", 1),
    "alpha": ("alpha", -1),
}
"""Predictors: the column of each, and the sign that its correlation with the cost would have."""


def edits(file: Path | None = None) -> pd.DataFrame:
    """Read the table, and refuse one with an edit twice."""
    table = read_table(file or TABLE)
    if table.empty:
        return table
    table = table.assign(blocks=table["blocks"].astype(str), by=table["by"].fillna(""))
    if (twice := table[table.duplicated(KEY)]).size:
        seen = twice.iloc[0]
        raise ParameterError(f"{seen['edit']} {seen['blocks']} stands twice for {seen['model']!r}; take one line out")
    return table


def by_block(known: Mapping[str, ArrayLike]) -> dict[str, list[int]]:
    """Order blocks, from 0, by each predictor that a single block has: the first should cost least to leave out."""
    found = {}
    for name, (column, sign) in LIKELY.items():
        if column not in known or column == "state_cosine":
            continue
        values = valued(name, np.asarray(known[column], dtype=float))
        if values.ndim == 2:
            values = (values.sum(axis=1) - np.diag(values)) / (len(values) - 1)
        found[name] = [int(place) for place in np.argsort(sign * values, kind="stable")]
    return found


def valued(name: str, column: ArrayLike) -> NDArray[np.float64]:
    """Give a predictor's values from its column, where coupling stands as a distance."""
    return 1 - np.asarray(column) if "miscoupling" in LIKELY[name][0] else np.asarray(column)
