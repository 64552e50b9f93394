"""Tables of measurements as files: comment lines at the head define the columns."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from coupling_lib import paths
from coupling_lib.errors import ParameterError, shown

PREDICTIONS = paths.DATA / "predictions.toml"
"""Predictions of the experiments, a file that is only appended to."""


def predictions_sha256(path: Path | None = None) -> str:
    """Return the digest of the predictions; without any, no measurement is allowed."""
    path = path or PREDICTIONS
    if not path.is_file():
        raise ParameterError(f"there are no predictions at {str(path)!r}; write them down before the first measurement")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_table(path: Path) -> pd.DataFrame:
    """Read a table; an empty one if there is no file."""
    # The copy joins pandas's columns in memory; without it a table of so many columns is slow and causes warnings.
    try:
        return pd.read_csv(path, comment="#").copy() if Path(path).exists() else pd.DataFrame()
    except (OSError, ValueError) as error:
        raise ParameterError(f"{str(path)!r} is no table ({shown(error)})") from None


def without_repeats(table: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the table, or refuse it if it lacks a column of the key or two of its rows have the same key."""
    if not table.empty and (lacking := [name for name in key if name not in table]):
        raise ParameterError(f"the table has no column {lacking[0]!r}; give one that was written here, or a new file")
    if not table.empty and (twice := table.duplicated(key)).any():
        row = table.loc[twice, key].iloc[0]
        what = ", ".join(f"{name} {value}" for name, value in zip(key, row.tolist(), strict=True))
        raise ParameterError(f"the table holds two rows of {what}; remove the one that was not measured")
    return table


def write_table(path: Path, table: pd.DataFrame, header: str) -> None:
    """Write a table atomically, below its header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "".join(f"# {line}\n" for line in header.splitlines())
    paths.write_text(path, head + table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def unique_keys(table: Path, key: list[str]) -> set[tuple]:
    """Return the keys of a table's rows, and refuse a table with two rows of one key."""
    rows = without_repeats(read_table(table), key)
    return set() if rows.empty else set(rows[key].itertuples(index=False, name=None))


def merge(table: Path, rows: Sequence[Mapping], key: list[str], order: list[str], header: str) -> None:
    """Merge rows into a table, by an order of its networks if any; a row replaces an earlier one of its key."""
    merged = pd.concat([read_table(table), pd.DataFrame(rows)], ignore_index=True).drop_duplicates(key, keep="last")
    if order:
        merged = merged.sort_values(key, key=lambda c: pd.Categorical(c, order) if c.name == "model" else c)
    write_table(table, merged, header)
