"""Descriptions of figures in words, from the table under each: kind, extremes and their places, diagonals.

A reader who does not see the picture is told what it is of, in the first sentence of its caption, and its finding.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

# Columns that say where a number belongs, and columns that belong to another number: its ends, its error, its null.
PLACES = (
    "block block_a block_b block_jacobian block_vectors token_jacobian token_vectors distance level depth step k rank "
    "order width noise drop_path weight_decay direction place row strength decay removed tokens"
).split()
_BESIDE = re.compile(
    r"(.*_)?(low|high|error|null|seeds?|models|blocks|prompt|image|draw|p_value|p|n|steps|token|tokens_t|parameters(_b)?)$"
    r"|(.*_)?random(_.*)?|entry_\d+|freedom|skew|spread|holm|permuted|progress|begin|slope|seen|needed|component"
)
# What the rows of a column of mixed numbers measure: they are told apart by it first.
_MEASURES = ("quantity", "score", "test", "panel")
_IN_WORDS = {
    "alike": "share alike on all prompts", "drop_path": "rate of stochastic depth", "k": "K", "log_lead": "log(s1/s2)",
    "near": "coupling of neighbours", "normalized_miscoupling_k10_relative": "coupling relative to chance",
    "removed": "blocks left out", "sham": "control", "shared": "traceless part", "value": "",
}  # fmt: skip
"""What axes call a column or a word of one."""
ROLES = {"jacobian": "for its Jacobian", "vectors": "for its vectors", "a": "", "b": ""}
SUMMARIES = ("mean", "median")
_DIFFER = set(
    "edit lens of panel part predictor quantity question reading rival route score test variant version".split()
)
"""Columns of words whose values stand for different quantities: nothing is averaged over them."""
_PAIRS = {f"{thing}_{role}" for thing in ("block", "token") for role in ROLES}
MOST_GROUPS, MOST_VALUES = 6, 3


def kind_of(table: pd.DataFrame) -> str:
    """Name the kind of picture by the places that its table has."""
    if {"block_jacobian", "token_jacobian"} & set(table):
        return "Map"
    return "Graph" if "block_a" in table else "Chart"


def alternative_text(table: pd.DataFrame) -> str:
    """Describe a table: per group of rows the least and the greatest value, where each is, and the mean."""
    entries = [name for name in table if re.fullmatch(r"entry_\d+", name)]
    numbers = list(table.select_dtypes("number").dropna(axis="columns", how="all"))
    places = [name for name in PLACES if name in numbers]
    # The rank of a token is a place, an effective rank is measured. Tokens are one where steps are not.
    if "rank" in places and (table["rank"].dropna() % 1 > 0).any():
        places.remove("rank")
    if {"step", "tokens"} <= set(places):
        places.remove("tokens")
    values = [name for name in numbers if name not in [*places, "tokens"] and not _BESIDE.fullmatch(name)]
    # How a number was read off a picture is no group.
    table = table.drop(columns="how", errors="ignore")
    texts = [name for name in table if name not in numbers and 1 < table[name].nunique() <= MOST_GROUPS]
    texts.sort(key=lambda name: name not in _MEASURES)
    parts = []
    for group, rows in _groups(table, texts):
        sentences = [_extremes(rows, name, places) for name in values[:MOST_VALUES] if rows[name].notna().any()]
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


def _extremes(rows: pd.DataFrame, name: str, places: list[str]) -> str:
    """Return the range of a column, and the places of its ends."""
    column = rows[name].dropna()
    if len(column) == 1 or column.min() == column.max():
        return f"{_words(name)} {_written(column.iloc[0])}".lstrip()
    # A place is given by what varies: the axes, and the name of a thing such as a model.
    varying = [place for place in rows if rows.loc[column.index, place].nunique() > 1]
    things = [text for text in varying if not pd.api.types.is_numeric_dtype(rows[text])]
    axes = [place for place in places if place in varying]
    where = [*axes, *things][:2]
    ends = []
    for end in (column.idxmin(), column.idxmax()):
        at = [_place(place, rows.loc[end, place]) for place in where if pd.notna(rows.loc[end, place])]
        ends.append(_written(rows.loc[end, name]) + (f" at {' and '.join(at)}" if at else ""))
    told = f"{f'{name}s' if name in SUMMARIES else _words(name)} from {ends[0]} to {ends[1]}".lstrip()
    # A mean over things or pairs is a finding, one over training steps, depth or different quantities is not.
    if name in SUMMARIES or not set(axes) <= _PAIRS or _DIFFER & set(things):
        return told
    if "network" not in things:
        return f"{told}, mean {_written(column.mean())}"
    means = column.groupby(rows["network"], sort=False).mean()
    return f"{told}, mean {' and '.join(f'{_written(mean)} {_words(which)}' for which, mean in means.items())}"


def _place(name: str, value: object) -> str:
    """Write where a value lies, such as "block 3 as Jacobian"."""
    thing, _, role = name.partition("_")
    if role in ROLES:
        return f"{thing} {_written(value)} {ROLES[role]}".rstrip()
    return _words(value) if isinstance(value, str) else f"{_words(name)} {_written(value)}"


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
    return f"matrices of {size} by {size} with {100 * share:.0f} % of their energy on the diagonal"


def _words(name: object) -> str:
    """Format a name as words, an arm such as "sham0.3" as what axes call it."""
    if isinstance(name, float | int):
        return _written(name)
    words = re.sub(r"^([a-z]+)(\d+\.\d+)$", r"\1 \2", str(name).replace("_", " ")).split(" ")
    return _IN_WORDS.get(str(name)) or " ".join(_IN_WORDS.get(word, word) for word in words)


def _begun(text: str) -> str:
    """Capitalise the first letter of a text."""
    return text[:1].upper() + text[1:]


def _written(value: object) -> str:
    """Format a number with three digits and no exponent; a word is returned as it is."""
    if isinstance(value, str):
        return value
    # The table has five digits, of which a last 5 is rounded up.
    number = float(value) * (1 + 1e-9)
    digits = f"{number:.3g}"
    return f"{number:,.0f}" if abs(number) >= 1000 else np.format_float_positional(float(digits), trim="-")
