"""Public decoders whose weights do not ship, `data/decoders.csv`: numbers remembered from executed notebooks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from companion.tables.effects import effect_in
from companion.tables.files import predictions_sha256, read_table, write_table
from companion.tables.inference import Effect
from coupling_lib import paths, provenance
from coupling_lib.models.packages import GGUF_FILES

MODELS = tuple(GGUF_FILES)
"""Aliases of the registry, the smallest model first."""
FILE = paths.DATA / "decoders.csv"
QUESTIONS = {
    "beyond conjugation": "nulls-stricter-traceless-coupled",
    "whole beyond conjugation": "nulls-stricter-coupled",
    "matched": "nulls-paired-normalized_miscoupling",
    "self-coupling": "tokens-shared-coupled-between-self",
    "straighter": "trajectories-change-line-shape-score-all",
    "exponential": "trajectories-change-expodistance-all",
    "even": "trajectories-change-equidistance-all",
    "law of depth": "spectra-r2-change",
    "left and right": "spectra-aligned",
    "product": "dynamics-product-over-random",
    "perturbation": "perturbation-gap-trained",
    "instruction": "prompts-step-by-step-over-control-sentence",
    "four bits": "precision-change-nf4",
    "below the curve": "nulls-decisive-trace-over-curve",
}
"""The remembered effect that answers each question of `data/predictions.toml`."""
_NULLS = {
    "left and right": ("spectra-alignment-null",),
    "self-coupling": ("tokens-between-self-by-chance", "tokens-between-self-traceless-part-conjugated"),
}
"""Remembered nulls, the largest of which is subtracted from the effect; their errors are far below the effect's."""
ENDS = tuple(Effect._fields[1:])
_HEADER = """What executed notebooks remember of public decoders whose weights do not ship with the project.
name: of a number, or of an effect with its low, high, error, n, skew and freedom; or a notebook's parameter.
predictions_sha256: of data/predictions.toml as it was when the notebook had run."""


@functools.cache
def decoders(file: Path = FILE) -> pd.DataFrame:
    """Read the table, a row for each remembered effect."""
    return read_table(file)


def numbers_of(model: str, notebook: str, file: Path = FILE) -> dict[str, float | str]:
    """Return the numbers remembered from a notebook about a model, by name; empty if it was not run."""
    if (table := decoders(file)).empty:
        return {}
    found: dict[str, float | str] = {}
    for row in table[(table["model"] == model) & (table["notebook"] == notebook)].to_dict("records"):
        try:
            found[row["name"]] = float(row["value"])
        except ValueError:
            found[row["name"]] = row["value"]
        found |= {f"{row['name']}-{end}": float(row[end]) for end in ENDS if pd.notna(row[end])}
    return found


def rows_of(model: str, notebook: str, numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tabulate the numbers remembered from a notebook about a model, with the digest of the predictions."""
    effects: dict[str, dict[str, Any]] = {}
    for name, value in numbers.items():
        stem, _, end = name.rpartition("-")
        whole = end in ENDS and stem in numbers
        # The column of values holds texts as well, and is not rounded with the others.
        plain = value if whole or isinstance(value, str) else f"{value:.8g}"
        effects.setdefault(stem if whole else name, {})[end if whole else "value"] = plain
    where = {"model": model, "notebook": notebook}
    stamp = {"predictions_sha256": predictions_sha256(), "cpu": provenance.processor()}
    return [where | {"name": name} | dict.fromkeys(("value", *ENDS)) | one | stamp for name, one in effects.items()]


def replace_rows(rows: Iterable[Mapping[str, Any]], file: Path = FILE) -> int:
    """Replace the rows of the same notebook and model; return the number of rows of the table."""
    old, new, key = read_table(file), pd.DataFrame(rows), ["model", "notebook"]
    if not old.empty and not new.empty:
        old = old[~old.set_index(key).index.isin(new.set_index(key).index)]
    table = pd.concat([part for part in (old, new) if not part.empty])
    order = {model: at for at, model in enumerate(MODELS)}
    table = table.sort_values(key, key=lambda one: one.map(order).fillna(one), kind="stable", ignore_index=True)
    write_table(file, table, _HEADER)
    decoders.cache_clear()
    return len(table)


def answers(table: pd.DataFrame) -> dict[tuple[str, str], Effect]:
    """Return the effects that answer the questions of `data/predictions.toml`, by question and model."""
    found = {}
    for question, name in QUESTIONS.items():
        for row in table[table["name"] == name].to_dict("records"):
            parts = {part: value for part, value in row.items() if pd.notna(value)} | {"value": float(row["value"])}
            if nulls := _NULLS.get(question):
                own = table[table["name"].isin(nulls) & (table["model"] == row["model"])]
                chance = own["value"].astype(float).max()
                parts |= {end: parts[end] - chance for end in ("value", "low", "high")}
            found[question, row["model"]] = effect_in(parts, value="value")
    return found
