"""Public decoders' text prediction and question answering, beside their coupling."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats
import xarray as xr

from companion.tables.effects import couplings
from companion.tables.files import read_table, without_repeats
from companion.tables.inference import effect_of
from coupling_lib import paths
from coupling_lib.datasets.parts import SHARED, shared_part

FILE = paths.DATA / "decoder_scores.csv"
VARIANT, K = "normalized_miscoupling", 10
SETS = ("arc_easy", "arc_challenge", "hellaswag", "openbookqa", "piqa")
"""Sets of questions, whose mean is one score."""
QUESTIONS = "questions"
TEXTS = ("wikitext2", "novels")
"""Texts of the prediction scores, in bits per byte."""
_TWO_SIDED = 1.96


def decoder_scores() -> pd.DataFrame:
    """Read every model's scores, and add the mean over all sets of questions."""
    table = without_repeats(read_table(FILE), ["model", "test"])
    return pd.concat([table, mean_of_sets(table)], ignore_index=True) if len(table) else table


def mean_of_sets(scores: pd.DataFrame) -> pd.DataFrame:
    """Return each model's mean share of right answers over all sets, for models that have all of them."""
    own = scores[scores["test"].isin([f"{name} per character" for name in SETS])]
    lines = []
    for model, sets in own.groupby("model", sort=False):
        if len(sets) == len(SETS):
            value, error = sets["value"].mean(), float(np.sqrt((sets["error"] ** 2).sum())) / len(SETS)
            ends = {"low": value - _TWO_SIDED * error, "high": value + _TWO_SIDED * error}
            line = {"model": model, "test": QUESTIONS, "chance": sets["chance"].mean(), "value": value, "error": error}
            lines.append(line | ends | {"n": int(sets["n"].sum())})
    return pd.DataFrame(lines)


def beside_coupling(models: Mapping[str, xr.Dataset], scores: pd.DataFrame, tests: Sequence[str]) -> pd.DataFrame:
    """Return a row for each trained model, score and part of its Jacobians: coupling and the score."""
    lines = []
    for model, measured in models.items():
        own = scores[(scores["model"] == model) & scores["test"].isin(tests)] if len(scores) else scores
        for part, ds in {"whole": measured, SHARED: shared_part(measured)}.items():
            effect = effect_of(couplings(ds, VARIANT, K))
            found = {"coupling": effect.value, "coupling_low": effect.low, "coupling_high": effect.high}
            rows = own[["test", "value", "low", "high", "n"]].to_dict("records") if len(own) else []
            lines += [{"model": model, "part": part, **found, **row} for row in rows]
    return pd.DataFrame(lines)


def models_needed(r: float) -> int:
    """Return the number of models that detect a correlation at 5 % with 80 % power, by Fisher's transformation."""
    far = scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)
    return int(np.ceil((far / np.arctanh(r)) ** 2 + 3))


def numbers_of(scores: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that the book quotes, by name: means over all sets, bits per byte, and models needed."""
    found = {"decoders-needed": float(models_needed(0.6))}
    for row in scores[scores["test"].isin([QUESTIONS, *TEXTS])].to_dict("records") if len(scores) else []:
        name = f"decoders-{row['model']}" + (f"-{row['test']}" if row["test"] in TEXTS else "")
        found |= {f"{name}-{end}": row[end] for end in ("value", "low", "high")}
    return found
