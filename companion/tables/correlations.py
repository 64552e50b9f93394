"""Correlation of coupling, and of all its rivals, with a model's quality: statistics over the suite.

A correlation over a few dozen models easily arises by chance: every R² has an interval over models, every
p-value is corrected for the number of variants tried, and every fit is also judged on models that it has not seen.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from companion.tables import regression
from companion.tables.effects import OtherRuns, numbers
from companion.tables.generalization import RIVALS, coupling_columns, suite
from companion.tables.inference import Effect, checked_groups, effect_of, jackknifed
from companion.tables.statistics import correlation_over, fit_with_interval
from coupling_lib.datasets.statistics import finite
from coupling_lib.errors import ParameterError


def last_checkpoints(table: pd.DataFrame) -> pd.DataFrame:
    """Select one row per model, its last checkpoint."""
    last = table[table["final"]].reset_index(drop=True)
    if len(last) < 5:
        raise ParameterError(f"the suite has {len(last)} models; at least 5 are needed, train more with: make suite")
    return last


def equal_tokens(last: pd.DataFrame) -> pd.DataFrame:
    """Select the models trained on the most common number of tokens."""
    # Longer training improves a model in any case; among models of one budget that explanation is excluded.
    return last[last["tokens"] == last["tokens"].mode().iloc[0]].reset_index(drop=True)


def variant_table(table: pd.DataFrame, score: str) -> pd.DataFrame:
    """Correlate every variant of coupling, at every K, with a score."""
    # The sign is that of coupling: a positive r says that models with more coupling score higher.
    (y,) = _floats(table, score)
    rows = []
    for column in coupling_columns(table):
        variant, _, label = column.rpartition("_k")
        x = -table[column].to_numpy(dtype=float)
        r = correlation_over(x, y)
        row = {"variant": variant, "k": label, "n": r.n, "r": r.value, "r_low": r.low, "r_high": r.high}
        row |= {"error": r.error, "freedom": r.freedom} | _explained(x, y, table["width"])
        rows.append(row | {"r_relative": float(np.corrcoef(table[f"{column}_relative"], y)[0, 1])})
    found = pd.DataFrame(rows)
    return found.assign(p_holm=regression.corrected(found["p"]), p_bh=regression.corrected(found["p"], "bh"))


def rival_table(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Compare coupling with all rival predictors of the score."""
    columns = {"coupling": coupling} | RIVALS
    y, *xs = _floats(table, score, *columns.values())
    variables = {name: x for name, x in zip(columns, xs, strict=True) if np.ptp(x) > 0}
    partial = regression.given_all_others(variables, y) if len(y) > len(variables) + 2 else {}
    rows = []
    for name, x in variables.items():
        r = correlation_over(x, y)
        row = {"predictor": name, "r": r.value, "r_low": r.low, "r_high": r.high} | _explained(x, y, table["width"])
        rows.append(row | dict(zip(("partial", "partial_p"), partial.get(name, (np.nan, np.nan)), strict=True)))
    found = pd.DataFrame(rows)
    return found.assign(p_holm=regression.corrected(found["p"]))


def _explained(x: np.ndarray, y: np.ndarray, groups: pd.Series) -> dict[str, float]:
    """Return the share of variance with its interval, p-value, and share for unseen groups, as parts of a row."""
    fit = fit_with_interval(x, y)
    sizes = {"r_squared": fit.r_squared, "low": fit.low, "high": fit.high, "p": fit.p_value}
    return sizes | {"held_out": regression.held_out_r_squared(x, y, groups)}


def group_table(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Compute the additional R² of coupling beside the rivals, on groups of models that the fit has not seen."""
    size = ["log_parameters", "log_tokens"]
    predictors = {"coupling": [coupling], "size and tokens": size, "size, tokens and coupling": [*size, coupling]}
    rows = []
    for label, column in {"architecture": "architecture", "width": "width", "depth": "blocks"}.items():
        largest = table[column].value_counts().max()
        # With too few models on one side the fit is meaningless.
        if table[column].nunique() < 2 or len(table) - largest < 6:
            continue
        row = {"left_out": label, "groups": int(table[column].nunique())}
        for name, columns in predictors.items():
            row[name] = regression.held_out_r_squared(table[columns].to_numpy(), table[score].to_numpy(), table[column])
        rows.append(row)
    return pd.DataFrame(rows)


def shape_table(
    tables: Mapping[str, Sequence[ArrayLike]], groups: Mapping[str, ArrayLike] | None = None, n_seeds: int = 40
) -> pd.DataFrame:
    """Compare a line with an exponential on points (x, y) that neither has seen, with an error over groups of them."""
    # The folds are drawn at random `n_seeds` times, as a single draw decides nothing. The interval describes the
    # variation over sets of groups. Groups change the difference through the fits as well, so the whole comparison is
    # repeated without each of them. No curve explains more than the line's residual variance.
    rows = []
    for name, (x, y) in tables.items():
        scores = partial(_held_out, finite(x, "x"), finite(y, "y"), regression.drawn_folds(len(x), n_seeds))
        line, bent = scores(np.arange(len(x)))
        apart = (groups or {}).get(name, range(len(x)))
        gain = jackknifed(lambda kept, of=scores: float(np.diff(of(kept), axis=0).mean()), apart)
        row = {"points": name, "n": len(x), "linear": float(line.mean()), "exponential": float(bent.mean())}
        row |= {"wins": int((bent > line).sum()), "seeds": n_seeds, "gain": gain.value, "low": gain.low}
        row |= {"high": min(gain.high, 1 - row["linear"]), "error": gain.error, "skew": gain.skew}
        rows.append(row | {"freedom": gain.freedom, "groups": gain.n})
    return pd.DataFrame(rows)


def _held_out(x: np.ndarray, y: np.ndarray, folds: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return R² of a line and of an exponential on held-out points, for each draw of the folds."""
    squares = [regression.held_out_squares(x[kept], y[kept], folds[:, kept], fit) for fit in regression.FITS]
    return 1 - np.mean(squares, axis=2) / np.var(y[kept])


def mean_over(values: ArrayLike, groups: ArrayLike) -> Effect:
    """Return the mean of all rows, as the mean of the groups' contributions."""
    values = finite(values, "values")
    of_group = pd.Series(values).groupby(checked_groups(groups, len(values))).sum().to_numpy()
    return effect_of(of_group * len(of_group) / len(values))


def within_models(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Correlate coupling and score along the checkpoints of each model, which differ only by training."""
    rows = [
        (model, len(part), float(np.corrcoef(part[coupling], part[score])[0, 1]))
        for model, part in table.groupby("model")
        if len(part) >= 4 and np.ptp(part[coupling]) > 0
    ]
    return pd.DataFrame(rows, columns=["model", "checkpoints", "r"])


def checkpoints_beside_models(table: pd.DataFrame, score: str, coupling: str) -> dict[str, float]:
    """Correlate coupling and score over all checkpoints of all models, and compare with correlations within models."""
    y, x, tokens = _floats(table, score, coupling, "log_tokens")
    found = {"checkpoints": float(len(table))}
    for prefix, (a, b) in {"": (x, y), "tokens-": (tokens, x)}.items():
        r = correlation_over(a, b, table["model"].to_numpy())
        found |= {f"{prefix}r": r.value, f"{prefix}low": r.low, f"{prefix}high": r.high}
    within = within_models(table, score, coupling)["r"]
    return found | {"within-median": float(within.median()), "within-positive": float((within > 0).mean())}


def sign_along_training(table: pd.DataFrame, score: str, coupling: str) -> pd.DataFrame:
    """Correlate coupling and score across models, at each step of training that they share."""
    # The models are always those of the most common budget of tokens; only the step of measurement differs.
    chosen = equal_tokens(last_checkpoints(table))["model"]
    part = table[table["model"].isin(chosen)]
    rows = []
    for step, now in part.groupby("step"):
        if len(now) == len(chosen):
            found = _correlated(*_floats(now, coupling, score), np.arange(len(now)))
            rows.append({"step": int(step), "tokens": int(now["tokens"].iloc[0]), "models": len(now)} | found)
    return pd.DataFrame(rows)


def inverted_u(table: pd.DataFrame, coupling: str) -> dict[str, float]:
    """Fit coupling against the validation loss over all checkpoints: by a line, and by a parabola."""
    # A parabola never fits worse than a line. So its gain is measured in the prediction of models that the fit has not
    # seen.
    loss, value = _floats(table, "validation_loss", coupling)

    def left(fitted: np.ndarray, rows: np.ndarray, degree: int) -> np.ndarray:
        return value[rows] - np.polyval(np.polyfit(loss[fitted], value[fitted], degree), loss[rows])

    every, models = np.full(len(table), True), table["model"].to_numpy()
    unseen = np.empty((2, len(table)))
    for model in np.unique(models):
        own = models == model
        unseen[:, own] = [left(~own, own, degree) for degree in (1, 2)]
    gain = mean_over((unseen[0] ** 2 - unseen[1] ** 2) / value.var(), models)
    bend = np.polyfit(loss, value, 2)
    found = {"checkpoints": float(len(table)), "models": float(gain.n), "peak": float(-bend[1] / (2 * bend[0]))}
    for prefix, rows in {"": every, "trained-": (table["step"] > 0).to_numpy()}.items():
        for shape, degree in (("line", 1), ("parabola", 2)):
            found[f"{prefix}{shape}"] = float(1 - left(rows, rows, degree).var() / value[rows].var())
    return found | numbers({"gain": gain})


def turn(table: pd.DataFrame, coupling: str) -> float:
    """Return the step at which models are most coupled, among steps shared by half of them, without first and last."""
    by_step = table[table["step"] > 0].groupby("step")[coupling].agg(["size", "mean"])
    shared = by_step.loc[by_step["size"] * 2 >= table["model"].nunique(), "mean"]
    if len(shared) < 3:
        raise ParameterError(f"half of the models share {len(shared)} trained steps; to turn takes 3, measure more")
    return float(shared.iloc[1:-1].idxmax())


def other_runs(table: pd.DataFrame, coupling: str, model: str = "") -> OtherRuns:
    """Estimate a model's turning step and the scatter over seeds from the other runs of a suite."""
    others = table[(table["model"] != model) & (table["step"] > 0)]
    recipe = [name for name in table.columns[: list(table.columns).index("seed")] if name != "model"]
    same = others.groupby([*recipe, "step"], dropna=False)[coupling]
    repeated = same.transform("size") > 1
    freedom = int(repeated.sum()) - len(others[repeated].drop_duplicates([*recipe, "step"]))
    squares = float(((others[coupling] - same.transform("mean"))[repeated] ** 2).sum())
    return OtherRuns(turn(others, coupling), (squares / freedom) ** 0.5 if freedom else np.nan, freedom)


def runs_beside(model: str, variant: str, k: int) -> OtherRuns:
    """Estimate a model's turning step and scatter from the suite's other runs, by this or the default variant."""
    table = suite().copy()  # in one piece: pandas warns of a column more in one of many
    column = next(name for name in (f"{variant}_k{k}", "normalized_miscoupling_k10") if name in table)
    return other_runs(table.assign(coupling=1 - table[column]), "coupling", model)


def tokens_by_phase(table: pd.DataFrame, coupling: str) -> dict[str, dict[str, float]]:
    """Correlate coupling with the logarithm of the tokens seen: over all of training, and on each side of its turn."""
    # A phase that ends where the same models are most coupled rises in any case. So models are split into two
    # halves, and each half's phases are cut where the other half turns.
    half = table["model"].rank(method="dense") % 2
    cut = half.map({one: turn(table[half != one], coupling) for one in half.unique()})
    phases = {"all": table, "rising": table[table["step"] <= cut], "falling": table[table["step"] >= cut]}
    found = {}
    for name, part in phases.items():
        found[name] = _correlated(*_floats(part, "log_tokens", coupling), part["model"].to_numpy())
        found[name] |= {"n": part["model"].nunique(), "checkpoints": len(part)}
    return found


def signed_gains(table: pd.DataFrame, score: str, coupling: str) -> dict[str, Effect]:
    """Compute how much better coupling explains a score than each size does; negative if it explains less."""
    own, y, every = table[coupling], table[score], np.arange(len(table))
    sizes = ("parameters", "blocks", "width")
    return {label: regression.lead_over(own, table[RIVALS[label]], y, every, signed=True) for label in sizes}


def _floats(table: pd.DataFrame, *columns: str) -> list[np.ndarray]:
    return [table[column].to_numpy(dtype=float) for column in columns]


def _correlated(x: ArrayLike, y: ArrayLike, groups: ArrayLike) -> dict[str, float]:
    """Return Pearson's r with interval, standard error and degrees of freedom over whole groups, as parts of a row."""
    found = correlation_over(x, y, groups)
    return {"r": found.value, "low": found.low, "high": found.high, "error": found.error, "freedom": found.freedom}
