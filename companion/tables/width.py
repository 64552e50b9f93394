"""Width at fixed quality, `data/width.csv`: the relation of coupling and width among models of equal quality.

Where the number of vectors K grows with the width, the value by chance falls, and the raw number with it. So the
compared quantity is the share of the distance from chance to perfect coupling. Two models of one width are not two
trials of a relation with width: errors are over widths as well as over models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from companion.tables import effects, quality
from companion.tables.generalization import coupling_columns
from companion.tables.inference import Effect, detectable_correlation
from companion.tables.statistics import correlation_over, uncoupled
from coupling_lib import paths

FIGURE_1A = "released_trace_ktenth"
"""The variant that the paper's figure 1a may show: its number of vectors grows with the width."""

READINGS = {
    "figure_1a": FIGURE_1A, "k10": "normalized_miscoupling_k10", "shared": "shared_normalized_miscoupling_k10",
    "ktenth": "normalized_miscoupling_ktenth", "shared_ktenth": "shared_normalized_miscoupling_ktenth",
}  # fmt: skip
"""Variants that are shown; for the last two nothing was predicted."""

ASIDE = (0, 289, 920)
"""Further steps of comparison, whatever the loss: untrained, in the fall of coupling, and last."""

MODELS = 10
"""Number of models required before anything is judged."""

TESTS = 5
"""Number of tests beside the claim on width, corrected together (`data/claims.toml`); the power is for their level."""


def width() -> pd.DataFrame:
    """Read the table of the experiment."""
    return quality.quality(paths.DATA / "width.csv")


def equally_good(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """Return every model at the lowest validation loss that all of them reach, with its width."""
    found = quality.at_equal_loss(table.assign(coupling=1 - table[reading]), by="validation_loss")
    settings = table.groupby("model")[["width", "k_tenth"]].first()
    return found.join(settings, on="model").assign(random=lambda rows: uncoupled(rows["k_tenth"]))


def estimates(table: pd.DataFrame, experiment: Mapping[str, Any]) -> pd.DataFrame:
    """Return the effects in question: a row each."""
    rows = []
    for question in experiment["question"]:
        effect = with_width(equally_good(table, question["reading"]), question["reading"])
        rows.append({"question": question["name"], "reading": question["reading"], "label": "", **effect._asdict()})
    return pd.DataFrame(rows)


def with_width(models: pd.DataFrame, reading: str) -> Effect:
    """Correlate coupling with the curve of random directions for figure 1a's variant, otherwise with log width."""
    beside = uncoupled(models["k_tenth"]) if reading == FIGURE_1A else np.log(models["width"])
    return correlation_over(models["coupling"], beside)


def beyond_chance(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """Return equally good models with coupling as a share of the distance from chance to perfect coupling."""
    return equally_good(table.assign(**{reading: 1 - table[f"{reading}_relative"]}), reading)


def shown(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return equally good models by every variant of `READINGS`: raw, and beyond chance as `-relative`."""
    found = {}
    for mark, reading in READINGS.items():
        stem = mark.replace("_", "-")
        found |= {stem: equally_good(table, reading), f"{stem}-relative": beyond_chance(table, reading)}
    return found


def over_widths(models: pd.DataFrame, beside: pd.Series) -> Effect:
    """Correlate coupling with a variable over all models, with widths as independent units."""
    return correlation_over(models["coupling"], beside, models["width"])


def relations(table: pd.DataFrame) -> dict[str, Effect]:
    """Return every shown variant's correlation with width: raw and beyond chance, over models and over widths."""
    found = {}
    for name, own in shown(table).items():
        # Coupling beyond chance follows no curve of chance.
        beside = own["random"] if name == "figure-1a" else np.log(own["width"])
        found |= {name: correlation_over(own["coupling"], beside), f"{name}-over-widths": over_widths(own, beside)}
    untrained = table[table["step"] == 0].assign(coupling=lambda rows: 1 - rows[FIGURE_1A])
    found["figure-1a-step-0-over-widths"] = over_widths(untrained, uncoupled(untrained["k_tenth"]))
    return found


def numbers_of(table: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that prose quotes, by name; none of an incomplete experiment."""
    if table["model"].nunique() < MODELS:
        return {}
    found, numbers = relations(table), {}
    models = shown(table)
    for name, own in models.items():
        of_widths = own.groupby("width")["coupling"].mean()
        numbers |= {f"{name}-narrowest": of_widths.iloc[0], f"{name}-widest": of_widths.iloc[-1]}
    for end in ("narrowest", "widest"):
        numbers[f"on-diagonal-{end}"] = effects.diagonal_share(numbers[f"k10-{end}"])
    for name, reading in (("figure-1a", FIGURE_1A), ("k10", READINGS["k10"])):
        own = table.assign(coupling=1 - table[reading])
        found |= {f"{name}-step-{step}": with_width(own[own["step"] == step], reading) for step in ASIDE}
    columns = [column for column in coupling_columns(table) if column.endswith("_k10")]
    # As a share of the distance from chance, over widths.
    every = [over_widths(own, np.log(own["width"])) for own in (beyond_chance(table, column) for column in columns)]
    numbers |= {"readings": len(every), "readings-above": sum(r.low > 0 for r in every)}
    numbers |= {"readings-below": sum(r.high < 0 for r in every)}
    chance = 1 - table.groupby("width")[f"{READINGS['ktenth']}_null"].first()
    numbers |= {"ktenth-chance-narrowest": chance.iloc[0], "ktenth-chance-widest": chance.iloc[-1]}
    # Tokens at that loss are interpolated between checkpoints as coupling is, which is 1 minus a column.
    reached = equally_good(table.assign(reached=1 - table["tokens"]), "reached").groupby("width")["coupling"].mean()
    numbers |= {"tokens-narrowest": reached.iloc[0], "tokens-widest": reached.iloc[-1]}
    numbers |= {"models": table["model"].nunique(), "widths": table["width"].nunique()}
    numbers["loss"] = models["k10"]["loss"].iloc[0]  # the same by every variant
    judged = found["ktenth-relative-over-widths"]
    numbers["ktenth-relative-over-widths-seen"] = detectable_correlation(judged, 0.05 / TESTS)
    return effects.numbers(found, "width") | {f"width-{name}": float(value) for name, value in numbers.items()}
