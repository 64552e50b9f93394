"""Causes of the peak of coupling, `data/phases.csv`: action common to all prompts, and a rival, over training."""

from pathlib import Path

import pandas as pd

from companion.tables import effects, quality
from companion.tables.inference import Effect, effect_of
from coupling_lib import paths

EXPLANATIONS = ("alike", "log_lead")
"""Explanatory columns for the course of coupling: the part common to all prompts, and the lead of one direction."""
READINGS = {"coupling": "normalized_miscoupling_k10", "shared": "shared_normalized_miscoupling_k10"}
"""Coupling and that of the traceless part: 1 minus these columns."""
PEAK, LAST = 91, 1642
"""Compared steps: the peak of coupling in other models of this width, and the last."""


def phases(file: Path = paths.DATA / "phases.csv") -> pd.DataFrame:
    """Read the table, a row for each model and step, with coupling and that of the traceless part."""
    table = quality.quality(file)
    return table.assign(**{name: 1 - table[column] for name, column in READINGS.items()})


def finished(table: pd.DataFrame) -> pd.DataFrame:
    """Select the seeds of the small model that were measured at every step."""
    return quality.finished(table[table["model"].str.startswith("seed")])


def courses(table: pd.DataFrame) -> pd.DataFrame:
    """Return each seed's rank correlation over steps of coupling with each explanation, without step 0."""
    trained = table[table["step"] > 0]
    rows = {
        model: {name: part["coupling"].corr(part[name], method="spearman") for name in EXPLANATIONS}
        for model, part in trained.groupby("model")
    }
    return pd.DataFrame(rows).T


def answers(table: pd.DataFrame) -> dict[str, Effect]:
    """Return the effects that answer the questions of `data/predictions.toml`, by question."""
    share = table.pivot(index="model", columns="step", values="alike")
    of = courses(table)
    return {
        "alike at the peak": effect_of(share[PEAK] - share[LAST]),
        "coupling goes with likeness": effect_of(of["alike"]),
        "coupling goes with one strong direction": effect_of(of["log_lead"]),
        "likeness ahead of its rival": effect_of(of["alike"] - of["log_lead"]),
    }


def numbers_of(table: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that prose quotes: the answers, and means over seeds at the peak and at the end."""
    own = finished(table)
    found = effects.numbers({name.replace(" ", "-"): effect for name, effect in answers(own).items()}, "phases")
    means = own.groupby("step")[["coupling", "shared", *EXPLANATIONS]].mean()
    for word, step in (("first", 0), ("peak", PEAK), ("last", LAST)):
        found |= {f"phases-{word}-{name.replace('_', '-')}": float(x) for name, x in means.loc[step].items()}
    return found | {"phases-seeds": float(own["model"].nunique()), "phases-peak-step": PEAK, "phases-last-step": LAST}
