"""Numbers of a build for sentences: what notebooks remember, tables under figures, tables of `data/`, verdicts."""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from claims import judge_all, read_margins, verdict_at
from named_numbers import paper_numbers, remembered, tables

from coupling_lib import paths


class Known:
    """Numbers of a build by "MODEL/NAME", or by NAME for one model."""

    def __init__(self, results: Path, model: str) -> None:
        self.results, self.model = results, model

    def __getitem__(self, name: str) -> float | str:
        if name.startswith("paper."):
            return paper_numbers()[name]
        return remembered(self.notebook(name))[name.rpartition("/")[2]]

    def notebook(self, name: str) -> Path:
        """Return the file that stores a number or shows a figure, whose name begins with the notebook's."""
        model, _, own = name.rpartition("/")
        if model == "book":
            return self.results / model / f"{own}.md"
        return self.results / (model or self.model) / f"{own.replace('.', '-').split('-')[0]}.ipynb"

    def column(self, figure: str, name: str, **where: Any) -> np.ndarray:
        """Return a column of the table under a figure, of the rows that are asked for."""
        model, _, own = figure.rpartition("/")
        found = tables(self.notebook(figure))
        # A program draws one figure for each part that it writes.
        if not (chosen := list(found.values()) if model == "book" else [found[own]] if own in found else []):
            raise KeyError(f"the figure {figure}")
        return _rows(chosen[0], figure, name, where)

    def data(self, table: str, name: str, **where: Any) -> np.ndarray:
        """Return a column of a table of `data/`; `benchmarks/RUN/PART` is a list in a record of `benchmarks/`."""
        return _rows(_data(table), table if table.startswith("benchmarks/") else f"data/{table}.csv", name, where)

    def margin(self, unit: str) -> float:
        """Return the smallest effect of a unit that matters."""
        return read_margins()[unit]["value"]

    def verdict(self, claim: str, place: str) -> str | None:
        """Return the verdict on a claim, by its id, in one place."""
        (of_it,) = (one for one in judge_all(self.results) if one[0]["id"] == claim)
        return verdict_at(*of_it, place)


def _rows(table: pd.DataFrame, called: str, name: str, where: Mapping[str, Any]) -> np.ndarray:
    chosen = fnmatch.filter(table.columns, name)
    if lacking := where.keys() - set(table) or ({name} if not chosen else set()):
        raise KeyError(f"the column {', '.join(sorted(lacking))} of {called}")
    for column, wanted in where.items():
        table = table[table[column].isin(wanted if isinstance(wanted, tuple) else (wanted,))]
    if table.empty:
        raise KeyError(f"rows of {called} with {dict(where)}")
    return table[chosen[0] if len(chosen) == 1 else chosen].to_numpy()


@functools.cache
def _data(table: str) -> pd.DataFrame:
    if table.startswith("benchmarks/"):
        run, _, part = table.removeprefix("benchmarks/").partition("/")
        record = json.loads((paths.ROOT / "benchmarks" / f"{run}.json").read_text(encoding="utf-8"))
        return pd.json_normalize(record[part] if part else record)
    return pd.read_csv(paths.DATA / f"{table}.csv", comment="#")
