"""The numbers of `companion.figures.generalization` that the book quotes, and the table that sums them up."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from companion.figures.generalization import REST, TASKS
from companion.tables import correlations
from companion.tables.effects import effect_in, numbers
from companion.tables.figure_1a import base_family
from companion.tables.regression import r_squared
from coupling_lib.metrics.inference import Effect
from coupling_lib.metrics.statistics import correlation_over, squared

_RIVAL = ("r", "r_squared", "p_holm", "r_low", "r_high", "low", "high", "held_out", "partial", "partial_p")
_VARIANT = ("r", "p_holm", "r_relative", "r_low", "r_high")


def take_summary(
    paper: Mapping[str, float], partial: pd.DataFrame, scores: Mapping[str, pd.DataFrame], variants: pd.DataFrame,
    along: Mapping[str, float], signs: pd.DataFrame,
) -> pd.DataFrame:  # fmt: skip
    """Sum the page up."""
    by_name, equal = (scores[name].set_index("predictor")["r"] for name in ("loss", "equal-tokens"))
    trace = variants.set_index(["variant", "k"]).loc["released_trace", "tenth"]
    lines = {
        "figure 1a: R2 of score on coupling": paper["r-squared"],
        "figure 1a: R2 of score on the width curve": paper["width-r-squared"],
        "figure 1a: R2 of coupling on the width curve": paper["curve-r-squared"],
        "figure 1a: partial r given log width": partial.loc["width", "r"],
        "figure 1a: the same within widths": partial.loc["within", "r"],
        "suite: r of score and relative coupling": by_name["coupling"],
        "suite: r of score and parameters": by_name["parameters"],
        "suite, equal tokens: r of score and relative coupling": equal["coupling"],
        "suite, equal tokens: r of score and parameters": equal["parameters"],
        "suite, equal tokens: r of score and width": equal["width"],
        "suite: r of score and 1 - released_trace, K = 0.1 d": trace["r"],
        "suite: the same relative to its null": trace["r_relative"],
        "suite: r over all checkpoints": along["r"],
    }
    lines |= {f"suite: r across the same models at step {at.step}": at.r for at in signs.itertuples()}
    return pd.DataFrame({"value": lines})


def measured_sentence(models: pd.DataFrame) -> str:
    """Say which models have been measured on this machine."""
    done = models.loc[models["trace"].notna() | models["normalized"].notna(), "model"].tolist()
    names = ", ".join(done) if done else "none"
    return f"Measured here: {names}. Not measured here: {len(models) - len(done)} of {len(models)} models."


def numbers_of(
    paper: Mapping[str, float], partial: pd.DataFrame, gains: Mapping[str, Effect],
    scores: Mapping[str, pd.DataFrame], variants: pd.DataFrame, shapes: pd.DataFrame, along: Mapping[str, float],
    groups: pd.DataFrame, signs: pd.DataFrame, bend: Mapping[str, float], board: pd.DataFrame, changes: pd.DataFrame,
    suite: pd.DataFrame, reading: str,
) -> dict[str, float]:  # fmt: skip
    """Collect the numbers that the book quotes, and the effects that verdicts rest on."""
    found = _named("figure-1a", paper, paper) | _named("checkpoints", along, along)
    found |= _named("bend", bend, (name for name in bend if "gain" not in name))
    for way, row in partial.iterrows():
        found |= _named(f"figure-1a-partial-{way}", row, ("least", "most", "p"))
    for score, table in scores.items():
        for _, row in table.iterrows():
            found |= _named(f"{score}-{row.predictor.replace(' ', '-')}", row, _RIVAL)
    for _, row in variants.iterrows():
        stem = f"variant-{row['variant']}-k{row.k}"
        found |= _named(stem, row, _VARIANT) | {f"{stem}-r-{part}": row[part] for part in ("error", "n", "freedom")}
    sure = variants.loc[variants["p_holm"] < 0.05, "r"]
    found |= {"variants": len(variants), "variants-positive": (sure > 0).sum(), "variants-negative": (sure < 0).sum()}
    for name, (_, row) in zip(("figure-1a", "suite"), shapes.iterrows(), strict=True):
        found |= _named(f"{name}-cv", row, ("linear", "exponential", "wins", "seeds")) | {f"{name}-points": row["n"]}
        found |= numbers({f"{name}-cv-gain": effect_in(row, "groups", "gain")}, "")
    found |= {f"without-{row.left_out}-coupling": row.coupling for row in groups.itertuples()}
    found |= of_tasks(board) | of_changes(changes)
    last = correlations.last_checkpoints(suite)
    budget = correlations.equal_tokens(last)
    r = scores["equal-tokens"].set_index("predictor").loc["coupling", "r"]
    found |= {"suite-signed-coupling": abs(r) * r, "models": len(last), "equal-tokens-models": len(budget)}
    found |= {"last-tokens": budget["tokens"].iloc[0], "most-tokens": last["tokens"].max()}
    phases = correlations.tokens_by_phase(suite, reading)
    ahead = correlations.signed_gains(budget, "negative_loss", reading)
    found |= numbers(effects_of(partial, gains, signs, bend, phases, ahead), "")
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}


def effects_of(
    partial: pd.DataFrame, gains: Mapping[str, Effect], signs: pd.DataFrame, bend: Mapping[str, float],
    phases: Mapping[str, Mapping[str, float]], suite_gains: Mapping[str, Effect],
) -> dict[str, Effect]:  # fmt: skip
    """Collect the effects that verdicts rest on."""
    found = {f"figure-1a-partial-{way}": effect_in(row, "families") for way, row in partial.iterrows()}
    found |= {f"sign-step-{row['step']:.0f}": effect_in(row, "models") for _, row in signs.iterrows()}
    found |= {f"tokens-{phase}": effect_in(row, "n") for phase, row in phases.items()}
    for page, leads in (("figure-1a", gains), ("suite", suite_gains)):
        found |= {f"{page}-gain-{label.replace(' ', '-')}": lead for label, lead in leads.items()}
    gain = {name.removeprefix("gain-"): value for name, value in bend.items() if name.startswith("gain")}
    return found | {"bend": effect_in(gain, "n", "gain")}


def of_tasks(board: pd.DataFrame) -> dict[str, float]:
    """Say how far GSM8K follows the rest of the leaderboard, with the error over families of models."""
    known = board.dropna(subset=[*TASKS])
    rest = known[REST].mean(axis=1)
    r = correlation_over(rest, known["GSM8K"], base_family(known["family"]))
    ranked = known.dropna(subset=["average"])
    return numbers({"gsm8k-r": r, "gsm8k": squared(r)}, "") | {
        "gsm8k-models": len(ranked),
        "gsm8k-r-squared": r_squared(rest[ranked.index], ranked["GSM8K"]),
        "gsm8k-average-r-squared": r_squared(ranked["average"], ranked["GSM8K"]),
    }


def of_changes(changes: pd.DataFrame) -> dict[str, float]:
    """Say what the regulariser changes."""
    found = {"regularised-pairs": int(changes["pairs"].min())}
    for _, row in changes.iterrows():
        stem = f"regularised-{row.column.removeprefix('validation_')}-{row.strength:g}"
        found |= _named(stem, row, ("low", "high")) | {stem: row.difference}
    return found


def _named(stem: str, row: Mapping[str, float], columns: Iterable[str]) -> dict[str, float]:
    return {f"{stem}-{column.replace('_', '-')}": row[column] for column in columns}
