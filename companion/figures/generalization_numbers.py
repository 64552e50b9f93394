"""Numbers of `companion.figures.generalization` that the book quotes, and the page's summary table."""

import re
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from companion.figures.generalization import READING, REST, TASKS
from companion.tables import correlations, figure_1a
from companion.tables.effects import effect_in, numbers
from companion.tables.regression import r_squared
from companion.tables.regularised import agreement, answers, changes, difference_table, over_sham
from companion.tables.statistics import correlation_over, squared

_RIVAL = ("r", "r_squared", "p_holm", "r_low", "r_high", "low", "high", "held_out", "partial", "partial_p")
_VARIANT = ("r", "p_holm", "r_relative", "r_low", "r_high")
_SUMMARY = {
    "figure 1a: R2 of score on coupling": "figure-1a-r-squared",
    "figure 1a: R2 of score on the width curve": "figure-1a-width-r-squared",
    "figure 1a: R2 of coupling on the width curve": "figure-1a-curve-r-squared",
    "figure 1a: partial r given the curve of width": "figure-1a-partial-curve",
    "figure 1a: partial r given log width": "figure-1a-partial-width",
    "figure 1a: the same within widths": "figure-1a-partial-within",
    "suite: r of score and relative coupling": "loss-coupling-r",
    "suite: r of score and parameters": "loss-parameters-r",
    "suite, equal tokens: r of score and relative coupling": "equal-tokens-coupling-r",
    "suite, equal tokens: r of score and parameters": "equal-tokens-parameters-r",
    "suite, equal tokens: r of score and width": "equal-tokens-width-r",
    "suite: r of score and 1 - released_trace, K = 0.1 d": "variant-released_trace-ktenth-r",
    "suite: the same relative to its null": "variant-released_trace-ktenth-r-relative",
    "suite: r over all checkpoints": "checkpoints-r",
}
"""Numbers of the page's summary table."""


def take_summary(found: Mapping[str, float]) -> pd.DataFrame:
    """Return a summary table of the page's main numbers."""
    lines = {line: found[name] for line, name in _SUMMARY.items()}
    steps = [name.removeprefix("sign-step-") for name in found if re.fullmatch(r"sign-step-\d+", name)]
    lines |= {f"suite: r across the same models at step {step}": found[f"sign-step-{step}"] for step in steps}
    return pd.DataFrame({"value": lines})


def measured_sentence(models: pd.DataFrame) -> str:
    """Return a sentence with the models that have been measured on this machine."""
    done = models.loc[models["trace"].notna() | models["normalized"].notna(), "model"].tolist()
    names = ", ".join(done) if done else "none"
    return f"Measured here: {names}. Not measured here: {len(models) - len(done)} of {len(models)} models."


def numbers_of(
    points: pd.DataFrame, suite: pd.DataFrame, untrained: pd.DataFrame, shapes: pd.DataFrame, board: pd.DataFrame,
    runs: pd.DataFrame,
) -> dict[str, float]:  # fmt: skip
    """Return the numbers that the book quotes, and the effects that verdicts rest on, by name."""
    found = of_points(points) | of_suite(suite, untrained) | of_shapes(shapes) | of_tasks(board) | of_runs(runs)
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}


def of_points(points: pd.DataFrame) -> dict[str, float]:
    """Return the numbers of the paper's figure 1a, and its residual relation without width."""
    paper, partial = figure_1a.statistics(points), figure_1a.partial_table(points)
    found = _named("figure-1a", paper, paper)
    effects = {f"figure-1a-gain-{label.replace(' ', '-')}": lead for label, lead in figure_1a.gains(points).items()}
    for way, row in partial.iterrows():
        found |= _named(f"figure-1a-partial-{way}", row, ("least", "most", "p", "p_families"))
        effects[f"figure-1a-partial-{way}"] = effect_in(row, "families")
    return found | numbers(effects)


def of_suite(suite: pd.DataFrame, untrained: pd.DataFrame, reading: str = READING) -> dict[str, float]:
    """Return correlations of coupling and its rivals with the suite's quality; `untrained` includes step 0."""
    last = correlations.last_checkpoints(suite)
    budget, score = correlations.equal_tokens(last), "negative_loss"
    along = correlations.checkpoints_beside_models(suite, score, reading)
    bend = correlations.inverted_u(untrained, reading)
    found = _named("checkpoints", along, along) | _named("bend", bend, (name for name in bend if "gain" not in name))
    tables = {name: (last, column) for name, column in (("loss", score), ("accuracy", "accuracy"))}
    rivals = {name: correlations.rival_table(*given, reading) for name, given in tables.items()}
    rivals["equal-tokens"] = correlations.rival_table(budget, score, reading)
    for name, table in rivals.items():
        for _, row in table.iterrows():
            found |= _named(f"{name}-{row.predictor.replace(' ', '-')}", row, _RIVAL)
    variants = correlations.variant_table(budget, score)
    for _, row in variants.iterrows():
        stem = f"variant-{row['variant']}-k{row.k}"
        found |= _named(stem, row, _VARIANT) | {f"{stem}-r-{part}": row[part] for part in ("error", "n", "freedom")}
    sure = variants.loc[variants["p_holm"] < 0.05, "r"]
    found |= {"variants": len(variants), "variants-positive": (sure > 0).sum(), "variants-negative": (sure < 0).sum()}
    groups = correlations.group_table(last, score, reading)
    found |= {f"without-{row.left_out}-coupling": row.coupling for row in groups.itertuples()}
    r = found["equal-tokens-coupling-r"]
    found |= {"suite-signed-coupling": abs(r) * r, "models": len(last), "equal-tokens-models": len(budget)}
    found |= {"last-tokens": budget["tokens"].iloc[0], "most-tokens": last["tokens"].max()}
    signs = correlations.sign_along_training(suite, score, reading)
    effects = {f"sign-step-{row['step']:.0f}": effect_in(row, "models") for _, row in signs.iterrows()}
    # Equal directions of blocks are another question than one block's vectors diagonalising the other's Jacobian.
    for mark in ("uu", "vv"):
        if (bases := f"basis_{mark}_k10_relative") in suite:
            along = correlations.sign_along_training(suite, score, bases)
            effects |= {f"sign-{mark}-step-{row['step']:.0f}": effect_in(row, "models") for _, row in along.iterrows()}
    phases = correlations.tokens_by_phase(suite, reading)
    effects |= {f"tokens-{phase}": effect_in(row, "n") for phase, row in phases.items()}
    ahead = correlations.signed_gains(budget, score, reading)
    effects |= {f"suite-gain-{label.replace(' ', '-')}": lead for label, lead in ahead.items()}
    gain = {name.removeprefix("gain-"): value for name, value in bend.items() if name.startswith("gain")}
    return found | numbers(effects | {"bend": effect_in(gain, "n", "gain")})


def of_shapes(shapes: pd.DataFrame) -> dict[str, float]:
    """Return the comparison of a line with an exponential, for figure 1a and for the suite."""
    found = {}
    for name, (_, row) in zip(("figure-1a", "suite"), shapes.iterrows(), strict=True):
        found |= _named(f"{name}-cv", row, ("linear", "exponential", "wins", "seeds")) | {f"{name}-points": row["n"]}
        found |= numbers({f"{name}-cv-gain": effect_in(row, "groups", "gain")})
    return found


def of_tasks(board: pd.DataFrame) -> dict[str, float]:
    """Return the correlation of GSM8K with the rest of the leaderboard, with the error over families of models."""
    known = board.dropna(subset=[*TASKS])
    rest = known[REST].mean(axis=1)
    r = correlation_over(rest, known["GSM8K"], figure_1a.base_family(known["family"]))
    ranked = known.dropna(subset=["average"])
    return numbers({"gsm8k-r": r, "gsm8k": squared(r)}) | {
        "gsm8k-models": len(ranked),
        "gsm8k-r-squared": r_squared(rest[ranked.index], ranked["GSM8K"]),
        "gsm8k-average-r-squared": r_squared(ranked["average"], ranked["GSM8K"]),
    }


def of_runs(runs: pd.DataFrame) -> dict[str, float]:
    """Return the effects of the regulariser, with the answers to its registered questions."""
    found = {"regularised-pairs": float(changes(runs)["seed"].nunique())}
    for row in difference_table(runs).to_dict("records"):
        stem = f"regularised-{row['arm']}-from{row['begin']}-{row['column'].removeprefix('validation_')}"
        found |= numbers({stem: effect_in(row, value="value")})
    found |= {f"regularised-{name}": seeds for name, seeds in agreement(runs).items()}
    answered = {re.sub(r"[ ,]+", "-", name): each for name, each in answers(runs).items()}
    return found | numbers(over_sham(runs) | answered, "regularised")


def _named(stem: str, row: Mapping[str, float], columns: Iterable[str]) -> dict[str, float]:
    return {f"{stem}-{column.replace('_', '-')}": row[column] for column in columns}
