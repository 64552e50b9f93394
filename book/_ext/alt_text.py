"""Descriptions of figures in words, from the table under each: extremes and their places, ends of curves, diagonals.

A reader who does not see the picture gets its finding, not the caption a second time.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

# Columns that say where a number belongs, and columns that belong to another number: its ends, its error, its null.
PLACES = (
    "block block_a block_b block_jacobian block_vectors token_jacobian token_vectors distance level depth step k rank "
    "order width noise drop_path weight_decay direction place row strength decay"
).split()
_BESIDE = re.compile(
    r"(.*_)?(low|high|error|null|seeds?|models|blocks|prompt|image|draw|p_value|p|n|steps|tokens?|tokens_t|parameters(_b)?)$"
    r"|random_.*|entry_\d+"
)
ROLES = {"jacobian": "for its Jacobian", "vectors": "for its vectors", "a": "", "b": ""}
SUMMARIES = ("mean", "median")
MOST_GROUPS, MOST_VALUES = 6, 3


def alternative_text(table: pd.DataFrame) -> str:
    """Describe a table: per group of rows the least and the greatest value, where each is, and the mean."""
    entries = [name for name in table if re.fullmatch(r"entry_\d+", name)]
    numbers = [name for name in table if pd.api.types.is_numeric_dtype(table[name]) and table[name].notna().any()]
    numbers = [name for name in numbers if table[name].dtype != bool]
    places = [name for name in PLACES if name in numbers]
    values = [name for name in numbers if name not in places and not _BESIDE.fullmatch(name)]
    texts = [name for name in table if name not in numbers and 1 < table[name].nunique() <= MOST_GROUPS]
    parts = []
    for group, rows in _groups(table, texts):
        sentences = [_extremes(rows, name, places, texts) for name in values[:MOST_VALUES] if rows[name].notna().any()]
        sentences = [text for text in [_diagonal(rows, entries), *sentences] if text]
        if sentences:
            parts.append(f"{group}: {'; '.join(sentences)}." if group else f"{_begun('; '.join(sentences))}.")
    more = f" And {len(parts) - MOST_GROUPS} groups more." if len(parts) > MOST_GROUPS else ""
    return " ".join(parts[:MOST_GROUPS]) + more if parts else f"A table of {len(table)} rows."


def _groups(table: pd.DataFrame, texts: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Split by as many of the columns of words as leave few groups, in the order of the rows."""
    chosen: list[str] = []
    for name in texts:
        if len(table[[*chosen, name]].drop_duplicates()) <= MOST_GROUPS:
            chosen.append(name)
    if not chosen:
        return [("", table)]
    found = table.groupby(chosen, sort=False, dropna=False)
    return [(_begun(", ".join(_words(one) for one in key if pd.notna(one))), rows) for key, rows in found]


def _extremes(rows: pd.DataFrame, name: str, places: list[str], texts: list[str]) -> str:
    """Return the range of a column, and the places of its ends."""
    column = rows[name].dropna()
    if len(column) == 1 or column.min() == column.max():
        return f"{_words(name)} {_written(column.iloc[0])}"
    # A place is given by what varies: the axes, or else the name of a thing such as a model.
    things = [text for text in rows if not pd.api.types.is_numeric_dtype(rows[text]) and text not in texts]
    where = [place for place in places if rows[place].nunique() > 1][:2] or things[:1]
    ends = []
    for end in (column.idxmin(), column.idxmax()):
        at = [_place(place, rows.loc[end, place]) for place in where if pd.notna(rows.loc[end, place])]
        ends.append(_written(rows.loc[end, name]) + (f" at {' and '.join(at)}" if at else ""))
    if name in SUMMARIES:
        return f"{name}s from {ends[0]} to {ends[1]}"
    return f"{_words(name)} from {ends[0]} to {ends[1]}, mean {_written(column.mean())}"


def _place(name: str, value: object) -> str:
    """Write where a value lies, such as "block 3 as Jacobian"."""
    thing, _, role = name.partition("_")
    if role in ROLES:
        return f"{thing} {_written(value)} {ROLES[role]}".rstrip()
    return f"{_words(name)} {_written(value)}"


def _diagonal(rows: pd.DataFrame, entries: list[str]) -> str:
    """Compute the share of matrices, laid out row below row, that is on their diagonals; not of a block with itself."""
    for one, other in (("block_jacobian", "block_vectors"), ("token_jacobian", "token_vectors")):
        rows = rows[rows[one] != rows[other]] if one in rows else rows
    rows = rows.dropna(subset=entries)
    if not entries or rows.empty:
        return ""
    squares = rows[entries].to_numpy(float) ** 2
    at = rows["row"].to_numpy(int) - int(rows["row"].min())
    share = squares[np.arange(len(rows)), at].sum() / squares.sum()
    size = len(entries)
    return f"matrices of {size} by {size} with {100 * share:.0f} % of their squared size on the diagonal"


def _words(name: object) -> str:
    """Format a name as words."""
    return _written(name) if isinstance(name, float | int) else str(name).replace("_", " ")


def _begun(text: str) -> str:
    """Capitalise the first letter of a text."""
    return text[:1].upper() + text[1:]


def _written(value: object) -> str:
    """Format a number with three digits and no exponent; a word is returned as it is."""
    if isinstance(value, str):
        return value
    number = float(value)
    digits = f"{number:.3g}"
    return f"{number:,.0f}" if abs(number) >= 1000 else np.format_float_positional(float(digits), trim="-")
