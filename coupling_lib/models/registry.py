"""The models of the paper, the embedded ones and newer open ones: `data/models.csv`, read and checked."""

from __future__ import annotations  # `_PARSERS` are looked up by annotation

import csv
import difflib
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from coupling_lib import paths
from coupling_lib.errors import CouplingError

TASKS = ("ARC", "HellaSwag", "MMLU", "TruthfulQA", "Winogrande", "GSM8K")


@dataclass(frozen=True)
class Entry:
    """One row of the registry; a value without a source is None, never a guess."""

    alias: str
    hub_id: str
    family: str
    organisation: str
    kind: str
    parameters_b: float | None
    blocks: int | None
    width: int | None
    training_tokens_t: float | None
    training_tokens_source: str
    ARC: float | None
    HellaSwag: float | None
    MMLU: float | None
    TruthfulQA: float | None
    Winogrande: float | None
    GSM8K: float | None
    average: float | None
    score_source: str
    in_paper: bool
    embedded: bool
    coupling_fig1a_digitised: float | None
    score_fig1a_digitised: float | None
    note: str


_PARSERS = {
    "str": str,
    "bool": {"y": True, "n": False}.__getitem__,
    "int | None": lambda text: int(text) if text else None,
    "float | None": lambda text: float(text) if text else None,
}


def entries() -> tuple[Entry, ...]:
    """Return every model of the registry."""
    return _read(paths.DATA / "models.csv")


def lookup(name: str) -> Entry | None:
    """Return a model's entry by its alias or its Hugging Face id; None if there is none."""
    wanted = name.strip().lower()
    return next((entry for entry in entries() if wanted and wanted in (entry.alias, entry.hub_id.lower())), None)


def suggest(name: str) -> list[str]:
    """Return the aliases most similar to a name, for the message about a misspelling."""
    return difflib.get_close_matches(name.strip().lower(), [entry.alias for entry in entries()], n=3, cutoff=0.6)


def by_size(names: Iterable[str]) -> list[str]:
    """Order models by their number of parameters; those of unknown size come last, in their given order."""
    sizes = {name: getattr(lookup(name), "parameters_b", None) for name in names}
    return sorted(sizes, key=lambda name: math.inf if sizes[name] is None else sizes[name])


@functools.cache
def _read(file: Path) -> tuple[Entry, ...]:
    """Read a registry, and report the line and the column of an invalid value."""
    with file.open(newline="", encoding="utf-8") as lines:
        header, *table = list(csv.reader(lines)) or [[]]
    columns = fields(Entry)
    if header != [field.name for field in columns]:
        raise CouplingError(f"{file.name} has columns {header}; those of `registry.Entry` were expected; restore it")
    rows = []
    for line, row in enumerate(table, start=2):
        place, values = f"{file.name} line {line}", []
        if len(row) != len(columns):
            raise CouplingError(f"{place} has {len(row)} values; {len(columns)} were expected; correct it")
        for field, text in zip(columns, row, strict=True):
            try:
                values.append(_PARSERS[field.type](text))
            except (KeyError, ValueError):
                message = f"{field.name} = {text!r}; {field.type} was expected"
                raise CouplingError(f"{place} has {message}; correct it") from None
        rows.append(Entry(*values))
    return tuple(rows)
