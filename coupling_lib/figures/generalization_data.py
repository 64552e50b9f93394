"""What the figures of `coupling_lib.figures.generalization` show, as tables, and the numbers that the book quotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from coupling_lib.measures.effects import numbers
from coupling_lib.measures.figure_1a import cleared
from coupling_lib.metrics.regression import bootstrap_error, r_squared
from coupling_lib.metrics.statistics import Effect, beyond_width, width_curve


def paper_table(points: pd.DataFrame) -> pd.DataFrame:
    """Tabulates what `paper_scatter` draws."""
    columns = ["model", "family", "width", "score", "coupling", "how"]
    return points[columns].assign(
        width_curve=width_curve(points["width"]),
        coupling_cleared=cleared(points["coupling"], np.log(points["width"])),
        score_cleared=cleared(points["score"], np.log(points["width"])),
        beyond_width=beyond_width(points["coupling"], points["width"]),
    )


def suite_table(table: pd.DataFrame, coupling: str) -> pd.DataFrame:
    """Tabulates what `suite_scatter` and `sizes` draw."""
    columns = ["model", "architecture", "width", "blocks", "parameters", "step", "tokens", "final"]
    return table[[*columns, "validation_loss", "accuracy", coupling]]


def named(tables: Mapping[str, pd.DataFrame], name: str) -> pd.DataFrame:
    """Stacks tables under each other."""
    return pd.concat([table.assign(**{name: label}) for label, table in tables.items()])[
        [name, *next(iter(tables.values())).columns]
    ].reset_index(drop=True)


def point_table(tables: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> pd.DataFrame:
    """Tabulates the points that `shapes` draws."""
    parts = {title: pd.DataFrame({"coupling": list(x), "score": list(y)}) for title, (x, y) in tables.items()}
    return named(parts, "points")


def tasks_effect(table: pd.DataFrame) -> Effect:
    """Gives R² of GSM8K on the mean of the other five tasks, with its error over families of models."""
    known = table.dropna(subset=["ARC", "HellaSwag", "MMLU", "TruthfulQA", "Winogrande", "GSM8K"])
    rest = known[["ARC", "HellaSwag", "MMLU", "TruthfulQA", "Winogrande"]].mean(axis=1).to_numpy()
    score = known["GSM8K"].to_numpy()
    root = known["family"].str.extract(r"\((.+)\)", expand=False).fillna(known["family"]).to_numpy()

    def explained(rows: np.ndarray) -> float:
        return float(np.corrcoef(rest[rows], score[rows])[0, 1] ** 2)

    return Effect(explained(np.arange(len(score))), *bootstrap_error(explained, root), len(np.unique(root)))


def tasks_r_squared(table: pd.DataFrame) -> dict[str, float]:
    """Says how far GSM8K follows the rest of the leaderboard."""
    known = table.dropna(subset=["ARC", "HellaSwag", "MMLU", "TruthfulQA", "Winogrande", "GSM8K", "average"])
    rest = known[["ARC", "HellaSwag", "MMLU", "TruthfulQA", "Winogrande"]].mean(axis=1)
    return {
        "gsm8k-models": float(len(known)),
        "gsm8k-r-squared": r_squared(rest, known["GSM8K"]),
        "gsm8k-average-r-squared": r_squared(known["average"], known["GSM8K"]),
    }


def measured_sentence(models: pd.DataFrame) -> str:
    """Says which models have been measured on this machine."""
    done = models.loc[models["trace"].notna() | models["normalized"].notna(), "model"].tolist()
    names = ", ".join(done) if done else "none"
    return f"Measured here: {names}. Not measured here: {len(models) - len(done)} of {len(models)} models."


def summary_table(
    figure_1a: Mapping[str, float],
    rivals: Mapping[str, pd.DataFrame],
    variants: pd.DataFrame,
    checkpoints: Mapping[str, float],
    partial: pd.DataFrame,
    signs: pd.DataFrame,
) -> pd.DataFrame:
    """Sums the page up."""
    by_name, equal = (rivals[name].set_index("predictor") for name in ("loss", "equal-tokens"))
    trace = variants.set_index(["variant", "k"]).loc["released_trace", "tenth"]
    steps = signs.set_index("step")["r"]
    lines = {
        "figure 1a: R2 of score on coupling": figure_1a["r-squared"],
        "figure 1a: R2 of score on the width curve": figure_1a["width-r-squared"],
        "figure 1a: R2 of coupling on the width curve": figure_1a["curve-r-squared"],
        "figure 1a: partial r given log width": partial.loc["width", "r"],
        "figure 1a: the same within widths": partial.loc["within", "r"],
        "suite: r of score and relative coupling": by_name.loc["coupling", "r"],
        "suite: r of score and parameters": by_name.loc["parameters", "r"],
        "suite, equal tokens: r of score and relative coupling": equal.loc["coupling", "r"],
        "suite, equal tokens: r of score and parameters": equal.loc["parameters", "r"],
        "suite, equal tokens: r of score and width": equal.loc["width", "r"],
        "suite: r of score and 1 - released_trace, K = 0.1 d": trace["r"],
        "suite: the same relative to its null": trace["r_relative"],
        "suite: r over all checkpoints": checkpoints["r"],
    }
    lines |= {f"suite: r across the same models at step {step}": r for step, r in steps.items()}
    return pd.DataFrame({"value": lines})


def records(
    figure_1a: Mapping[str, float],
    rivals: Mapping[str, pd.DataFrame],
    variants: pd.DataFrame,
    shapes: pd.DataFrame,
    checkpoints: Mapping[str, float],
    groups: pd.DataFrame,
) -> dict[str, float]:
    """Collects the numbers that the book quotes."""
    found = {f"figure-1a-{name}": value for name, value in figure_1a.items()}
    found |= {f"checkpoints-{name}": value for name, value in checkpoints.items()}
    for score, table in rivals.items():
        for row in table.itertuples():
            stem = f"{score}-{row.predictor.replace(' ', '-')}"
            found |= {f"{stem}-r": row.r, f"{stem}-r-squared": row.r_squared, f"{stem}-p-holm": row.p_holm}
            found |= {f"{stem}-r-low": row.r_low, f"{stem}-r-high": row.r_high}
            found |= {f"{stem}-low": row.low, f"{stem}-high": row.high, f"{stem}-held-out": row.held_out}
            found |= {f"{stem}-partial": row.partial, f"{stem}-partial-p": row.partial_p}
    for row in variants.itertuples():
        stem = f"variant-{row.variant}-k{row.k}"
        found |= {f"{stem}-r": row.r, f"{stem}-p-holm": row.p_holm, f"{stem}-r-relative": row.r_relative}
        found |= {f"{stem}-r-low": row.r_low, f"{stem}-r-high": row.r_high, f"{stem}-r-error": row.error}
        found[f"{stem}-r-n"] = row.n
    positive = ((variants["r"] > 0) & (variants["p_holm"] < 0.05)).sum()
    negative = ((variants["r"] < 0) & (variants["p_holm"] < 0.05)).sum()
    found |= {"variants": len(variants), "variants-positive": positive, "variants-negative": negative}
    for name, (_, row) in zip(("figure-1a", "suite"), shapes.iterrows(), strict=True):
        found |= {f"{name}-cv-linear": row["linear"], f"{name}-cv-exponential": row["exponential"]}
        found |= {f"{name}-points": row["n"], f"{name}-cv-wins": row["wins"], f"{name}-cv-seeds": row["seeds"]}
        gain = Effect(row["gain"], row["low"], row["high"], row["error"], row["n"])
        found |= numbers({f"{name}-cv-gain": gain}, "")
    for row in groups.itertuples():
        found[f"without-{row.left_out}-coupling"] = row.coupling
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}


def effects(
    partial: pd.DataFrame,
    gains: Mapping[str, Effect],
    signs: pd.DataFrame,
    bend: Mapping[str, float],
    phases: Mapping[str, Mapping[str, float]],
    suite_gains: Mapping[str, Effect],
) -> dict[str, Effect]:
    """Collects the effects that verdicts rest on."""
    found = {
        f"figure-1a-partial-{name}": Effect(row.r, row.low, row.high, row.error, row.families)
        for name, row in partial.iterrows()
    }
    found |= {f"figure-1a-gain-{label.replace(' ', '-')}": gain for label, gain in gains.items()}
    found |= {
        f"sign-step-{row.step}": Effect(row.r, row.low, row.high, row.error, row.models) for row in signs.itertuples()
    }
    found |= {f"suite-gain-{label.replace(' ', '-')}": gain for label, gain in suite_gains.items()}
    found["bend"] = Effect(bend["gain"], bend["gain-low"], bend["gain-high"], bend["gain-error"], int(bend["models"]))
    for phase, r in phases.items():
        found[f"tokens-{phase}"] = Effect(r["r"], r["low"], r["high"], r["error"], int(r["n"]))
    return found
