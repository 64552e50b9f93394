"""Models of one shape and unequal quality: the estimands that `data/predictions.toml` names, over models.

Coupling is 1 minus a variant's mismatch, the score minus the loss on authors absent from training. Every estimate is a
correlation over models, with the error of leaving one out at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from companion.tables import effects
from companion.tables.files import without_repeats
from companion.tables.generalization import coupling_columns, suite
from companion.tables.inference import Effect, detectable_correlation
from companion.tables.regression import r_squared
from companion.tables.statistics import correlation_over, partial_over, residuals
from coupling_lib import paths

EARLY = 29
"""The step before coupling turns, 0.12 M tokens into the training."""

MODELS = 26
"""Number of models required before anything is judged."""

TESTS = 44
"""Number of tests beside the claim on the score, corrected together (`data/claims.toml`); power is for their level."""

FACTORS = ("corrupted", "unique_tokens", "learning_rate")
"""Factors that were varied to make models better or worse, by column."""

READINGS = {
    "": "normalized_miscoupling_k10", "shared-": "shared_normalized_miscoupling_k10",
    "neighbours-": "normalized_miscoupling_k10_neighbours",
}  # fmt: skip
"""Variants that decide, and the prefixes of their numbers' names."""
BASES = {"uu-": "basis_uu_k10", "vv-": "basis_vv_k10", "diagonal-": "released_diag_k10"}
"""Variants that compare bases only, output or input or both; they decide nothing, and are reported for comparison."""

MOMENTS = ("early", "end", "equal training loss")
"""Moments of comparison: at `EARLY`, at the last step, and at equal loss on the training text."""
ALL_HELD = "all three"
_LEFT = ("sd_coupling", "sd_score", "explains_coupling", "explains_score")


def quality(file: Path = paths.DATA / "quality.csv") -> pd.DataFrame:
    """Read the table of the experiment, a row for each model and step, and refuse one with a repeated row."""
    table = without_repeats(suite(file, untrained=True), ["model", "step"])
    return table.assign(score=table["negative_loss"])


def finished(table: pd.DataFrame) -> pd.DataFrame:
    """Select the models that were measured at every step."""
    steps = table.groupby("model")["step"].transform("nunique")
    return table[steps == table["step"].nunique()].reset_index(drop=True)


def estimates(table: pd.DataFrame, readings: Sequence[str]) -> pd.DataFrame:
    """Return the effects in question, for each variant: a row each, with the training step if there is one."""
    rows = []
    for reading in readings:
        own = table.assign(coupling=1 - table[reading])
        found = [("equal steps", step, effect) for step, effect in equal_steps(own).items()] + _asked_once(own)
        rows += [{"question": name, "reading": reading, "step": step, **one._asdict()} for name, step, one in found]
    return pd.DataFrame(rows)


def equal_steps(table: pd.DataFrame) -> dict[int, Effect]:
    """Correlate coupling and score at each step of training."""
    trained = table[table["step"] > 0].groupby("step")
    return {int(step): correlation_over(now["coupling"], now["score"]) for step, now in trained}


def _asked_once(table: pd.DataFrame) -> list[tuple[str, int, Effect]]:
    last = int(table["step"].max())
    early, end, equal = moments(table).values()
    seeds = pd.get_dummies(end["seed"], drop_first=True, dtype=float).to_numpy()
    return [
        ("early", EARLY, correlation_over(early["coupling"], early["score"])),
        ("end", last, correlation_over(end["coupling"], end["score"])),
        ("equal training loss", -1, correlation_over(equal["coupling"], equal["score"])),
        ("partial on training loss", last, partial_over(end["coupling"], end["score"], end["seen_loss"])),
        ("within seeds", last, partial_over(end["coupling"], end["score"], seeds)),
    ]


def moments(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return models with coupling, score, factors and seed, at each of `MOMENTS`."""
    early, end = (table[table["step"] == step] for step in (EARLY, table["step"].max()))
    settings = end.set_index("model")[[*FACTORS, "seed"]]
    return dict(zip(MOMENTS, (early, end, at_equal_loss(table).join(settings, on="model")), strict=True))


def held_table(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """Correlate coupling and score at each moment with each factor held fixed, and report the remaining variation."""
    # A factor is held fixed by its levels, whose means are subtracted from both. Standard deviations are those of
    # residuals: a score with little residual variation cannot correlate (restriction of range).
    rows = []
    for moment, now in moments(table.assign(coupling=1 - table[reading])).items():
        coupling, score = now["coupling"].to_numpy(), now["score"].to_numpy()
        both = {"coupling": coupling, "score": score}
        held = {"nothing": np.empty((len(now), 0)), **_levels(now)}
        for name, given in held.items():
            r = partial_over(coupling, score, given) if given.size else correlation_over(coupling, score)
            left = {f"sd_{of}": residuals(values, given).std(ddof=1) for of, values in both.items()}
            shares = {f"explains_{of}": r_squared(given, values) if given.size else 0.0 for of, values in both.items()}
            rows.append({"moment": moment, "held": name, **r._asdict(), **left, **shares})
    return pd.DataFrame(rows)


def _levels(now: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the levels of each factor, and of all of them, as indicator columns."""
    return effects.level_columns(now, dict(zip(FACTORS, FACTORS, strict=True)), ALL_HELD)


def on_clean_text(table: pd.DataFrame, reading: str) -> Effect:
    """Correlate coupling and score at the last step over models trained on text without corrupted tokens."""
    clean = table[(table["step"] == table["step"].max()) & (table["corrupted"] == 0)]
    return correlation_over(1 - clean[reading], clean["score"])


def of_final_score(table: pd.DataFrame, reading: str) -> dict[str, Effect]:
    """Correlate coupling at `EARLY` with the score at the last step, alone and with all factors held fixed."""
    early, end, _ = moments(table.assign(coupling=1 - table[reading])).values()
    coupling, score = early["coupling"].to_numpy(), end.set_index("model")["score"].loc[early["model"]].to_numpy()
    held = partial_over(coupling, score, _levels(early)[ALL_HELD])
    return {"final-score": correlation_over(coupling, score), "final-score-held-all-three": held}


def at_equal_loss(table: pd.DataFrame, by: str = "seen_loss") -> pd.DataFrame:
    """Return every model where its loss, by default on its training text, falls to the lowest that all reach."""
    level = table.groupby("model")[by].min().max()
    rows = []
    for model, part in table.groupby("model"):
        part = part.sort_values("step")
        loss = part[by].to_numpy()
        after = int(np.argmax(loss <= level))
        # Between two checkpoints all quantities are interpolated linearly in the loss.
        share = 0.0 if after == 0 else float((loss[after - 1] - level) / (loss[after - 1] - loss[after]))
        before = max(0, after - 1)
        row = {"model": model, "loss": level}
        for column in ("coupling", "score"):
            a, b = part[column].iloc[[before, after]]
            row[column] = a + share * (b - a)
        rows.append(row)
    return pd.DataFrame(rows)


def numbers_of(table: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that prose quotes, by name; none of an incomplete experiment."""
    if table["model"].nunique() < MODELS:
        return {}
    found = {}
    for mark, reading in READINGS.items():
        asked = _asked_once(table.assign(coupling=1 - table[reading]))
        found |= {f"{mark}{question.replace(' ', '-')}": effect for question, _, effect in asked}
    for mark in ("", "shared-"):
        along = equal_steps(table.assign(coupling=1 - table[READINGS[mark]]))
        found |= {f"{mark}step-{step}": effect for step, effect in along.items()}
    numbers: dict[str, float] = {}
    for mark, reading in ({"": READINGS[""]} | BASES).items():
        for row in held_table(table, reading).to_dict("records"):
            if mark and row["held"] not in ("nothing", ALL_HELD):
                continue
            stem = f"{mark}{row['moment']}-held-{row['held']}".replace(" ", "-").replace("_", "-")
            found[stem] = Effect(*(row[part] for part in Effect._fields))
            if not mark:
                numbers |= {f"{stem}-{part.replace('_', '-')}": row[part] for part in _LEFT}
    found["clean"] = on_clean_text(table, READINGS[""])
    found |= of_final_score(table, READINGS[""])
    # Uncertainty of one model's score where it first reaches the common loss on its training text.
    reached = table[table["seen_loss"] <= table.groupby("model")["seen_loss"].min().max()]
    first = reached.sort_values("step").groupby("model").first()
    numbers["half-width"] = float((first["validation_high"] - first["validation_low"]).mean() / 2)
    end = table[table["step"] == table["step"].max()]
    left = [correlation_over(1 - part[READINGS[""]], part["score"]).value for part in without_a_level(end)]
    every = {column: correlation_over(1 - end[column], end["score"]) for column in coupling_columns(end)}
    above = [column for column, r in every.items() if r.low > 0]
    of_seeds, of_settings = scatter_of_seeds(table, READINGS[""])
    for moment, now in (("early", table[table["step"] == EARLY]), ("end", end)):
        numbers[f"on-diagonal-{moment}"] = effects.diagonal_share(1 - now[READINGS[""]].mean())
    numbers |= {"models": end["model"].nunique(), "least": min(left), "most": max(left)}
    numbers |= {"spread-seeds": of_seeds, "spread-settings": of_settings, "tokens": end["tokens"].max()}
    numbers |= {"readings": len(every), "readings-below": sum(r.high < 0 for r in every.values())}
    numbers |= {"readings-above": len(above), "readings-above-bases": sum(c.startswith("basis_") for c in above)}
    numbers["end-held-all-three-seen"] = detectable_correlation(found["end-held-all-three"], 0.05 / TESTS)
    return effects.numbers(found, "quality") | {f"quality-{name}": float(value) for name, value in numbers.items()}


def without_a_level(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Return subsets of models, each without all those that share a level of a factor, the centre's own included."""
    return [table[table[factor] != level] for factor in FACTORS for level in sorted(table[factor].unique())]


def scatter_of_seeds(table: pd.DataFrame, reading: str) -> tuple[float, float]:
    """Return the standard deviation of coupling at the end over the centre's seeds, and over all settings."""
    end = table[table["step"] == table["step"].max()]
    centre = end["model"].str.startswith("centre")
    return float(end.loc[centre, reading].std()), float(end.loc[~centre, reading].std())
