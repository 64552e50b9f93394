"""How well coupling, and everything that rivals it, explains how good a model is: statistics over tables of models.

The tables come from `coupling_lib.measures.generalization`. A correlation over a few dozen models is easily an
accident: every R² has an interval over resampled models, every p-value is corrected for the number of readings tried,
and every fit is also judged on models that it has not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from coupling_lib.errors import ParameterError
from coupling_lib.measures.generalization import RIVALS, coupling_columns
from coupling_lib.metrics.regression import (
    FITS,
    bootstrap_correlation,
    bootstrap_r_squared,
    corrected,
    cross_validated_r_squared,
    given_all_others,
    held_out_r_squared,
    r_squared,
)
from coupling_lib.metrics.statistics import linear_fit, partial_correlation
from coupling_lib.metrics.width import beyond_width, width_curve

GROUPS = {"architecture": "architecture", "width": "width", "depth": "blocks"}
"""What is left out whole, one value after the other: label and column of `suite`."""


def figure_1a_statistics(points: pd.DataFrame, above: float = 50.0) -> dict[str, float]:
    """Say what explains what among the points of the paper's figure 1a.

    Args:
        points: columns coupling, score, width, average, as `figure_1a` gives them.
        above: score above which the models are looked at by themselves.

    Returns:
        numbers by name: `n`; `slope`, `intercept` and `r-squared` of score on coupling with `p-value` and interval
        (`low`, `high`); `width-r-squared`, of score on the curve that has no coupling in it; `curve-r-squared`, of
        coupling on that curve; `residual-r-squared`, of score on coupling with the width divided out; `difference-
        r-squared`, of score on coupling minus the curve; `partial-r` and `partial-p` of score and coupling given
        log width; `log-slope`, of log(1 - c) on log d; `above-n`, `above-r-squared` and `above-p`; and
        `registry-r-squared` with `registry-n`, with the registry's scores in place of the plotted ones.
    """
    coupling, score, width = (points[name].to_numpy(dtype=float) for name in ("coupling", "score", "width"))
    line = linear_fit(coupling, score)
    interval = bootstrap_r_squared(coupling, score)
    partial = partial_correlation(coupling, score, np.log(width))
    good = score > above
    top = linear_fit(coupling[good], score[good])
    known = points["average"].notna().to_numpy()
    return {
        "n": float(len(points)),
        "slope": line.slope,
        "intercept": line.intercept,
        "r-squared": line.r_squared,
        "p-value": line.p_value,
        "low": interval.low,
        "high": interval.high,
        "width-r-squared": r_squared(width_curve(width), score),
        "curve-r-squared": r_squared(width_curve(width), coupling),
        "residual-r-squared": r_squared(beyond_width(coupling, width), score),
        "difference-r-squared": r_squared(coupling - width_curve(width), score),
        "residual-p": linear_fit(beyond_width(coupling, width), score).p_value,
        "difference-p": linear_fit(coupling - width_curve(width), score).p_value,
        "parameters-r-squared": r_squared(np.log(points["parameters_b"]), score),
        "blocks-r-squared": r_squared(points["blocks"], score),
        "partial-r": partial.r,
        "partial-p": partial.p_value,
        "log-slope": linear_fit(np.log(width), np.log(1 - coupling)).slope,
        "above-n": float(good.sum()),
        "above-r-squared": top.r_squared,
        "above-p": top.p_value,
        "registry-n": float(known.sum()),
        "registry-r-squared": r_squared(coupling[known], points.loc[known, "average"]),
    }


def last_checkpoints(table: pd.DataFrame) -> pd.DataFrame:
    """Take one row per model, its last checkpoint.

    Args:
        table: what `generalization.suite` gives.

    Returns:
        those rows.

    Raises:
        ParameterError: if these are fewer than five models, on which no statistic here means anything.
    """
    last = table[table["final"]].reset_index(drop=True)
    if len(last) < 5:
        raise ParameterError(f"the suite has {len(last)} models; at least 5 are needed, train more with: make suite")
    return last


def equal_tokens(last: pd.DataFrame) -> pd.DataFrame:
    """Take the models that saw the number of tokens that most of them saw.

    Models that were trained longer are better, whatever else; among models of one budget that explanation is gone.

    Args:
        last: what `last_checkpoints` gives.

    Returns:
        those rows.
    """
    return last[last["tokens"] == last["tokens"].mode().iloc[0]].reset_index(drop=True)


def variant_table(table: pd.DataFrame, score: str, group: str = "width", n_resamples: int = 300) -> pd.DataFrame:
    """Correlate every variant of coupling, at every K, with a score.

    The sign is that of coupling: a positive r says that models with more coupling score higher.

    Args:
        table: rows of `generalization.suite`, independent ones.
        score: column of the score.
        group: column whose values are left out whole.
        n_resamples: number of bootstrap resamples of each R².

    Returns:
        one line per variant and K: variant, k ("5", "10", "tenth"), r, r_squared, low, high (95 %), p, p_holm and
        p_bh (corrected for all lines of the table), held_out (R² on groups not seen), and r_relative, of coupling
        relative to its null.
    """
    y = table[score].to_numpy(dtype=float)
    rows = []
    for column in coupling_columns(table):
        variant, _, label = column.rpartition("_k")
        x = -table[column].to_numpy(dtype=float)
        explained = bootstrap_r_squared(x, y, n_resamples=n_resamples)
        rows.append(
            {
                "variant": variant, "k": label, "r": float(np.corrcoef(x, y)[0, 1]),
                "r_squared": explained.r_squared, "low": explained.low, "high": explained.high,
                "p": linear_fit(x, y).p_value, "held_out": held_out_r_squared(x, y, table[group]),
                "r_relative": float(np.corrcoef(table[f"{column}_relative"], y)[0, 1]),
            }
        )  # fmt: skip
    found = pd.DataFrame(rows)
    return found.assign(p_holm=corrected(found["p"]), p_bh=corrected(found["p"], "bh"))


def rival_table(table: pd.DataFrame, score: str, coupling: str, group: str = "width") -> pd.DataFrame:
    """Set coupling beside everything else that could predict the score.

    Args:
        table: rows of `generalization.suite`, independent ones.
        score: column of the score.
        coupling: column of a coupling.
        group: column whose values are left out whole.

    Returns:
        one line per predictor, coupling first: predictor, r with its interval r_low and r_high, r_squared with low and
        high, p, p_holm, held_out, and partial and partial_p, given all others. A predictor that does not vary is left
        out.
    """
    y = table[score].to_numpy(dtype=float)
    columns = {"coupling": coupling} | RIVALS
    variables = {name: table[column].to_numpy(dtype=float) for name, column in columns.items()}
    variables = {name: x for name, x in variables.items() if np.ptp(x) > 0}
    partial = given_all_others(variables, y) if len(y) > len(variables) + 2 else {}
    rows = []
    for name, x in variables.items():
        explained = bootstrap_r_squared(x, y)
        r, p = partial.get(name, (np.nan, np.nan))
        signed = bootstrap_correlation(x, y)
        rows.append(
            {
                "predictor": name, "r": signed.r, "r_low": signed.low, "r_high": signed.high,
                "r_squared": explained.r_squared, "low": explained.low, "high": explained.high,
                "p": linear_fit(x, y).p_value,
                "held_out": held_out_r_squared(x, y, table[group]), "partial": r, "partial_p": p,
            }
        )  # fmt: skip
    found = pd.DataFrame(rows)
    return found.assign(p_holm=corrected(found["p"]))


def group_table(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Judge what coupling adds to the rivals, on groups of models that the fit has not seen.

    Args:
        table: rows of `generalization.suite`, independent ones.
        score: column of the score.
        coupling: column of a coupling.

    Returns:
        one line per kind of group: left_out, groups (how many), and the held-out R² with coupling alone, parameters
        and tokens, and these with coupling.
    """
    size = ["log_parameters", "log_tokens"]
    predictors = {"coupling": [coupling], "size and tokens": size, "size, tokens and coupling": [*size, coupling]}
    rows = []
    for label, column in GROUPS.items():
        largest = table[column].value_counts().max()
        # With too few models on one side the fit is no fit.
        if table[column].nunique() < 2 or len(table) - largest < 6:
            continue
        row = {"left_out": label, "groups": int(table[column].nunique())}
        for name, columns in predictors.items():
            row[name] = held_out_r_squared(table[columns].to_numpy(), table[score].to_numpy(), table[column])
        rows.append(row)
    return pd.DataFrame(rows)


def shape_table(tables: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> pd.DataFrame:
    """Compare a line with an exponential on points that neither has seen.

    Args:
        tables: couplings and scores by what they are called.

    Returns:
        one line per entry: points, n, and the cross-validated R² of each shape.
    """
    rows = []
    for name, (x, y) in tables.items():
        row = {"points": name, "n": len(x)}
        rows.append(row | {fit: cross_validated_r_squared(x, y, fit) for fit in FITS})
    return pd.DataFrame(rows)


def within_models(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Follow coupling and score along the checkpoints of each model, where nothing differs but training.

    Args:
        table: what `generalization.suite` gives.
        score: column of the score.
        coupling: column of a coupling.

    Returns:
        one line per model with at least four checkpoints: model, checkpoints and r over them.
    """
    rows = []
    for model, part in table.groupby("model"):
        if len(part) >= 4 and np.ptp(part[coupling]) > 0:
            r = np.corrcoef(part[coupling], part[score])[0, 1]
            rows.append({"model": model, "checkpoints": len(part), "r": float(r)})
    return pd.DataFrame(rows, columns=["model", "checkpoints", "r"])


def checkpoints_beside_models(table: pd.DataFrame, score: str, coupling: str) -> dict[str, float]:
    """Correlate coupling and score over all checkpoints of all models, and say what that hides.

    Args:
        table: what `generalization.suite` gives.
        score: column of the score.
        coupling: column of a coupling.

    Returns:
        numbers by name: `checkpoints` (how many), `r` with its interval over whole models (`low`, `high`),
        `within-median`, the median over models of the correlation along training, `within-positive`, the share of
        models in which it is positive, and `tokens-r` with `tokens-low` and `tokens-high`, the correlation of
        coupling with log training tokens.
    """
    y, x = table[score].to_numpy(dtype=float), table[coupling].to_numpy(dtype=float)
    signed = bootstrap_correlation(x, y, table["model"])
    tokens = bootstrap_correlation(table["log_tokens"], x, table["model"])
    within = within_models(table, score, coupling)["r"]
    return {
        "checkpoints": float(len(table)),
        "r": signed.r,
        "low": signed.low,
        "high": signed.high,
        "tokens-r": tokens.r,
        "tokens-low": tokens.low,
        "tokens-high": tokens.high,
        "within-median": float(within.median()),
        "within-positive": float((within > 0).mean()),
    }
