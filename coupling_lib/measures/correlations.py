"""How well coupling, and everything that rivals it, explains how good a model is: statistics over the suite.

A correlation over a few dozen models is easily an accident: every R² has an interval over resampled models, every
p-value is corrected for the number of readings tried, and every fit is also judged on models that it has not seen.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from coupling_lib.errors import ParameterError
from coupling_lib.measures.generalization import RIVALS, coupling_columns
from coupling_lib.metrics import regression
from coupling_lib.metrics.statistics import Effect, effect_of, linear_fit


def last_checkpoints(table: pd.DataFrame) -> pd.DataFrame:
    """Take one row per model, its last checkpoint."""
    last = table[table["final"]].reset_index(drop=True)
    if len(last) < 5:
        raise ParameterError(f"the suite has {len(last)} models; at least 5 are needed, train more with: make suite")
    return last


def equal_tokens(last: pd.DataFrame) -> pd.DataFrame:
    """Take the models that saw the number of tokens that most of them saw."""
    # Models that were trained longer are better, whatever else; among models of one budget that explanation is gone.
    return last[last["tokens"] == last["tokens"].mode().iloc[0]].reset_index(drop=True)


def variant_table(table: pd.DataFrame, score: str, n_resamples: int = 300) -> pd.DataFrame:
    """Correlate every variant of coupling, at every K, with a score."""
    # The sign is that of coupling: a positive r says that models with more coupling score higher.
    (y,) = _floats(table, score)
    rows = []
    for column in coupling_columns(table):
        variant, _, label = column.rpartition("_k")
        x = -table[column].to_numpy(dtype=float)
        r, low, high, error, n = regression.correlation_over(x, y, np.arange(len(y)))
        row = {"variant": variant, "k": label, "n": n, "r": r, "r_low": low, "r_high": high, "error": error}
        row |= _explained(x, y, table["width"], n_resamples)
        rows.append(row | {"r_relative": float(np.corrcoef(table[f"{column}_relative"], y)[0, 1])})
    found = pd.DataFrame(rows)
    return found.assign(p_holm=regression.corrected(found["p"]), p_bh=regression.corrected(found["p"], "bh"))


def rival_table(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Set coupling beside everything else that could predict the score."""
    columns = {"coupling": coupling} | RIVALS
    y, *xs = _floats(table, score, *columns.values())
    variables = {name: x for name, x in zip(columns, xs, strict=True) if np.ptp(x) > 0}
    partial = regression.given_all_others(variables, y) if len(y) > len(variables) + 2 else {}
    rows = []
    for name, x in variables.items():
        # By the same draws as in `sign_along_training`, so that one correlation has one interval.
        r, low, high, *_ = regression.correlation_over(x, y)
        row = {"predictor": name, "r": r, "r_low": low, "r_high": high} | _explained(x, y, table["width"])
        rows.append(row | dict(zip(("partial", "partial_p"), partial.get(name, (np.nan, np.nan)), strict=True)))
    found = pd.DataFrame(rows)
    return found.assign(p_holm=regression.corrected(found["p"]))


def _explained(x: np.ndarray, y: np.ndarray, groups: pd.Series, n_resamples: int = 1000) -> dict[str, float]:
    """Share of variance with its interval, p-value, and share for groups not seen, as parts of a table's line."""
    found = regression.r_squared_over(x, y, n_resamples=n_resamples)
    sizes = {"r_squared": found.value, "low": found.low, "high": found.high}
    return sizes | {"p": linear_fit(x, y).p_value, "held_out": regression.held_out_r_squared(x, y, groups)}


def group_table(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Judge what coupling adds to the rivals, on groups of models that the fit has not seen."""
    size = ["log_parameters", "log_tokens"]
    predictors = {"coupling": [coupling], "size and tokens": size, "size, tokens and coupling": [*size, coupling]}
    rows = []
    for label, column in {"architecture": "architecture", "width": "width", "depth": "blocks"}.items():
        largest = table[column].value_counts().max()
        # With too few models on one side the fit is no fit.
        if table[column].nunique() < 2 or len(table) - largest < 6:
            continue
        row = {"left_out": label, "groups": int(table[column].nunique())}
        for name, columns in predictors.items():
            row[name] = regression.held_out_r_squared(table[columns].to_numpy(), table[score].to_numpy(), table[column])
        rows.append(row)
    return pd.DataFrame(rows)


def shape_table(tables: Mapping[str, tuple[Sequence[float], Sequence[float]]], n_seeds: int = 40) -> pd.DataFrame:
    """Compare a line with an exponential on points that neither has seen."""
    # Which points are left out together is drawn at random, and one draw decides nothing: the folds are drawn
    # `n_seeds` times. How far another set of models would move the difference is what the interval says.
    rows = []
    for name, (x, y) in tables.items():
        squares = {fit: regression.held_out_squares(x, y, fit, n_seeds) for fit in regression.FITS}
        spread = np.var(np.asarray(y, dtype=float))
        scores = {fit: 1 - square.mean(axis=1) / spread for fit, square in squares.items()}
        gain, low, high, error, _ = effect_of((squares["linear"] - squares["exponential"]).mean(axis=0) / spread)
        wins = int((scores["exponential"] > scores["linear"]).sum())
        row = {"points": name, "n": len(x)} | {fit: float(score.mean()) for fit, score in scores.items()}
        rows.append(row | {"wins": wins, "seeds": n_seeds, "gain": gain, "low": low, "high": high, "error": error})
    return pd.DataFrame(rows)


def within_models(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Follow coupling and score along the checkpoints of each model, where nothing differs but training."""
    rows = [
        (model, len(part), float(np.corrcoef(part[coupling], part[score])[0, 1]))
        for model, part in table.groupby("model")
        if len(part) >= 4 and np.ptp(part[coupling]) > 0
    ]
    return pd.DataFrame(rows, columns=["model", "checkpoints", "r"])


def checkpoints_beside_models(table: pd.DataFrame, score: str, coupling: str) -> dict[str, float]:
    """Correlate coupling and score over all checkpoints of all models, and say what that hides."""
    y, x, tokens = _floats(table, score, coupling, "log_tokens")
    found = {"checkpoints": float(len(table))}
    for prefix, (a, b) in {"": (x, y), "tokens-": (tokens, x)}.items():
        r, low, high, *_ = regression.correlation_over(a, b, table["model"].to_numpy())
        found |= {f"{prefix}r": r, f"{prefix}low": low, f"{prefix}high": high}
    within = within_models(table, score, coupling)["r"]
    return found | {"within-median": float(within.median()), "within-positive": float((within > 0).mean())}


def sign_along_training(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Correlate coupling and score across models, at each step of training that they share."""
    # The models are always those of the commonest budget of tokens; what differs is when they are looked at.
    chosen = equal_tokens(last_checkpoints(table))["model"]
    part = table[table["model"].isin(chosen)]
    rows = []
    for step, now in part.groupby("step"):
        if len(now) == len(chosen):
            found = _correlated(*_floats(now, coupling, score), np.arange(len(now)))
            rows.append({"step": int(step), "tokens": int(now["tokens"].iloc[0]), "models": len(now)} | found)
    return pd.DataFrame(rows)


def inverted_u(table: pd.DataFrame, coupling: str) -> dict[str, float]:
    """Set coupling against the validation loss over all checkpoints: a line, and a parabola."""
    loss, value = _floats(table, "validation_loss", coupling)

    def explained(rows: np.ndarray, degree: int) -> float:
        left = value[rows] - np.polyval(np.polyfit(loss[rows], value[rows], degree), loss[rows])
        return float(1 - left.var() / value[rows].var())

    gain = regression.effect_over(lambda rows: explained(rows, 2) - explained(rows, 1), len(table), table["model"])
    bend = np.polyfit(loss, value, 2)
    found = {"checkpoints": float(len(table)), "models": float(gain.n), "peak": float(-bend[1] / (2 * bend[0]))}
    for prefix, rows in {"": np.arange(len(table)), "trained-": np.flatnonzero(table["step"] > 0)}.items():
        found |= {f"{prefix}line": explained(rows, 1), f"{prefix}parabola": explained(rows, 2)}
    return found | {"gain": gain.value, "gain-low": gain.low, "gain-high": gain.high, "gain-error": gain.error}


def tokens_by_phase(table: pd.DataFrame, coupling: str) -> dict[str, dict[str, float]]:
    """Correlate coupling with the logarithm of the tokens seen: over all of training, and on each side of the peak."""
    peak = table["model"].map(table.loc[table.groupby("model")[coupling].idxmax()].set_index("model")["step"])
    phases = {"all": table, "rising": table[table["step"] <= peak], "falling": table[table["step"] >= peak]}
    found = {}
    for name, part in phases.items():
        found[name] = _correlated(*_floats(part, "log_tokens", coupling), part["model"].to_numpy())
        found[name] |= {"n": part["model"].nunique(), "checkpoints": len(part)}
    return found


def signed_gains(table: pd.DataFrame, score: str, coupling: str) -> dict[str, Effect]:
    """Say by how much coupling explains a score better than each size does; a negative one counts against it."""
    own, y, every = table[coupling], table[score], np.arange(len(table))
    sizes = ("parameters", "blocks", "width")
    return {label: regression.lead_over(own, table[RIVALS[label]], y, every, signed=True) for label in sizes}


def _floats(table: pd.DataFrame, *columns: str) -> list[np.ndarray]:
    return [table[column].to_numpy(dtype=float) for column in columns]


def _correlated(x: ArrayLike, y: ArrayLike, groups: ArrayLike) -> dict[str, float]:
    """Pearson's r with interval and standard error over whole groups, as parts of a table's line."""
    found = regression.correlation_over(x, y, groups)
    return {"r": found.value, "low": found.low, "high": found.high, "error": found.error}
