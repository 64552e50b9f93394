"""Evaluation of `data/edits.csv`: whether coupling, or its rivals, predict which edits of a network cost little.

Each block is in many pairs, so that pairs are not independent: errors are those of leaving out one block with all
its pairs. *Within distances* each distance's mean rank is subtracted from both variables.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.linalg
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from companion.tables.files import read_table, without_repeats
from companion.tables.inference import Effect, detectable_correlation, jackknifed, p_value
from companion.tables.regression import corrected
from companion.tables.statistics import correlation, pearson, residuals
from coupling_lib import paths

TABLE = paths.DATA / "edits.csv"
KEY = ["model", "edit", "blocks", "by"]
SKIP, REMOVE = "skip", "remove"
PAIRS = ("swap", "replace", "merge", "parallel")
"""Edits of two blocks."""
BEST, RANDOM = "best", "random"
K, NEAR = 10, 4
"""Number of singular vectors, and the largest distance of the evaluated pairs."""
COUPLING, SHARED, INFLUENCE, DISTANCE = "coupling", "traceless part", "block influence", "distance"
LIKELY = {
    COUPLING: (f"normalized_miscoupling_k{K}", -1),
    SHARED: (f"shared_normalized_miscoupling_k{K}", -1),
    INFLUENCE: ("influence", 1),
    "cosine of states": ("state_cosine", -1),
    "singular values": ("log_singular", 1),
    "alpha": ("alpha", -1),
    DISTANCE: ("distance", 1),
}
"""Predictors: the column of each, and the expected sign of its correlation with the cost."""
LEVEL = 0.01
"""Level of the registered tests over pairs, which the power is for."""
_FOLDS, _DRAWS = 5, 1000


def edits(file: Path | None = None) -> pd.DataFrame:
    """Read the table, and refuse one with a repeated edit."""
    table = without_repeats(read_table(file or TABLE), KEY)
    if table.empty:
        return table
    return table.assign(blocks=table["blocks"].astype(str), by=table["by"].fillna(""))


def complete_distance(rows: pd.DataFrame) -> int:
    """Return the largest evaluated distance up to which every pair of a model was edited in all ways."""
    n, counts = int((rows["edit"] == SKIP).sum()), rows.groupby(["edit", "distance"]).size()
    whole = [all(counts.get((edit, d), 0) == n - d for edit in PAIRS) for d in range(1, min(NEAR, n - 2) + 1)]
    return whole.index(False) if False in whole else len(whole)


def finished(table: pd.DataFrame, least: int = NEAR, first: str = "") -> pd.DataFrame:
    """Select models with every block skipped, and every pair up to a distance edited; model `first` comes first."""
    whole = [name for name, rows in table.groupby("model") if complete_distance(rows) >= least]
    found = table[table["model"].isin(whole)]
    return found.sort_values("model", key=lambda names: names != first, kind="stable", ignore_index=True)


def valued(name: str, column: ArrayLike) -> NDArray[np.float64]:
    """Return a predictor's values from its column, which holds coupling as a distance."""
    values = np.asarray(column, dtype=float)
    return 1 - values if "miscoupling" in LIKELY[name][0] else values


def by_block(known: Mapping[str, ArrayLike]) -> dict[str, list[int]]:
    """Order blocks, from 0, by each predictor of single blocks, the lowest predicted cost of leaving out first."""
    found = {}
    for name, (column, sign) in LIKELY.items():
        if column in known and column != "state_cosine":
            values = valued(name, known[column])
            if values.ndim == 2:
                values = (values.sum(axis=1) - np.diag(values)) / (len(values) - 1)
            found[name] = [int(place) for place in np.argsort(sign * values, kind="stable")]
    return found


def near_pairs(rows: pd.DataFrame, edit: str) -> pd.DataFrame:
    """Select the pairs of one edit up to the complete distance, with the two blocks of each."""
    own = rows[(rows["edit"] == edit) & (rows["distance"] <= complete_distance(rows))].reset_index(drop=True)
    return own.assign(pair=[tuple(map(int, blocks.split())) for blocks in own["blocks"]])


def centred_ranks(distances: NDArray[np.int64], *variables: ArrayLike, clear: bool = True) -> list[NDArray[np.float64]]:
    """Rank the values of each variable over pairs, and subtract each distance's mean rank."""
    ranks = [*scipy.stats.rankdata(variables, axis=1)]
    if not clear:
        return ranks
    counts = np.bincount(distances).clip(1)
    return [own - (np.bincount(distances, own) / counts)[distances] for own in ranks]


def of_blocks(
    own: pd.DataFrame, statistic: Callable[[NDArray[np.bool_]], float], fisher: bool = False, given: int = 0
) -> Effect:
    """Return a statistic of pairs with the error of leaving out one block at a time, with all its pairs."""
    pairs = np.array(own["pair"].tolist())
    names = np.unique(pairs)
    floor = 1 / np.sqrt(max(1, len(own) - 1 - given)) if fisher else 0.0

    def kept(places: NDArray[np.int64]) -> float:
        return statistic(np.isin(pairs, names[places]).all(axis=1))

    return jackknifed(kept, names, fisher=fisher, least=floor)


def related(own: pd.DataFrame, name: str, given: str = "", cost: str = "loss_rise") -> Effect:
    """Correlate ranks of a predictor and of the cost over pairs, within distances, perhaps given another predictor."""
    distances = own["distance"].to_numpy(int)
    variables = [valued(name, own[LIKELY[name][0]]), own[cost].to_numpy()]
    variables += [own[LIKELY[given][0]].to_numpy()] if given else []

    def r(kept: NDArray[np.bool_]) -> float:
        # Distance itself does not vary within distances.
        x, y, *held = centred_ranks(distances[kept], *(one[kept] for one in variables), clear=name != DISTANCE)
        if given:
            x, y = residuals(x, held[0]), residuals(y, held[0])
        return pearson(x, y)

    return of_blocks(own, r, fisher=True, given=int(bool(given)))


def permuted(own: pd.DataFrame, name: str) -> tuple[float, float]:
    """Permute a predictor within distances; return the 95 % quantile of |r|, and the share of draws that reach it."""
    x, y = centred_ranks(own["distance"].to_numpy(int), own[LIKELY[name][0]], own["loss_rise"])
    shuffled, draw = np.tile(x, (_DRAWS, 1)), np.random.default_rng(0)
    for distance in own["distance"].unique():
        place = (own["distance"] == distance).to_numpy()
        shuffled[:, place] = draw.permuted(shuffled[:, place], axis=1)
    null = np.abs(shuffled @ y) / (np.linalg.norm(x) * np.linalg.norm(y))  # their means are 0
    reached = int((null >= abs(pearson(x, y)) - 1e-12).sum())
    return float(np.quantile(null, 0.95)), (1 + reached) / (1 + _DRAWS)


def of_predictors(rows: pd.DataFrame) -> pd.DataFrame:
    """Correlate every predictor with the cost of every edit of one model; p corrected for all of them (Holm)."""
    lines = []
    for edit, (name, (column, _)) in product((SKIP, *PAIRS), LIKELY.items()):
        own = rows[rows["edit"] == SKIP] if edit == SKIP else near_pairs(rows, edit)
        if own[column].isna().any():
            continue
        alone = edit == SKIP or name == DISTANCE
        null, share = (np.nan, np.nan) if alone else permuted(own, name)
        effect, other = (
            correlation(valued(name, own[column]), own[cost]) if edit == SKIP else related(own, name, cost=cost)
            for cost in ("loss_rise", "kl")
        )
        line = {"edit": edit, "predictor": name, **effect._asdict(), "p": p_value(effect)}
        line |= {"null": null, "permuted": share, "seen": detectable_correlation(effect, LEVEL)}
        lines.append(line | {"kl": other.value, "kl_low": other.low, "kl_high": other.high})
    found = pd.DataFrame(lines)
    return found.assign(holm=corrected(found["p"]))


def held_out(own: pd.DataFrame, names: Sequence[str], kept: NDArray[np.bool_] | slice = slice(None)) -> float:
    """Return R² of predicted ranks of costs, for pairs within stretches of blocks that the fit has not seen."""
    y = scipy.stats.rankdata(own["loss_rise"].to_numpy()[kept])
    X = np.column_stack([scipy.stats.rankdata(own[LIKELY[name][0]].to_numpy()[kept]) for name in names])
    pairs = np.array(own["pair"].tolist())[kept]
    left, whole = 0.0, 0.0
    for stretch in np.array_split(np.unique(pairs), _FOLDS):
        inside = np.isin(pairs, stretch)
        test, fit = inside.all(axis=1), ~inside.any(axis=1)
        if test.any():
            # Written out, since sklearn's checks take ten times as long as the computation.
            centre, height = X[fit].mean(axis=0), y[fit].mean()
            slopes = scipy.linalg.lstsq(X[fit] - centre, y[fit] - height)[0]
            left += ((y[test] - (X[test] @ slopes + (height - centre @ slopes))) ** 2).sum()
            whole += ((y[test] - height) ** 2).sum()
    return float(1 - left / whole)


def added(rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the R² that both parts of coupling add to block influence and distance, for held-out pairs."""
    base = (INFLUENCE, DISTANCE)

    def gain(kept: NDArray[np.bool_], own: pd.DataFrame, name: str) -> float:
        return held_out(own, (*base, name), kept) - held_out(own, base, kept)

    lines = []
    for edit in PAIRS:
        own = near_pairs(rows, edit)
        for name in (COUPLING, SHARED):
            effect = of_blocks(own, partial(gain, own=own, name=name))
            lines.append({"edit": edit, "predictor": name, "without": held_out(own, base), **effect._asdict()})
    return pd.DataFrame(lines)


def removal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rise of the loss by number of left-out blocks and source of the order; random ones with a range."""
    own = rows[rows["edit"] == REMOVE]
    if own.empty:
        return pd.DataFrame(columns=["by", "removed", "loss_rise", "low", "high", "random_better"])
    own = own.assign(removed=lambda part: part["blocks"].str.split().str.len())
    drawn = own["by"].str.startswith(RANDOM)
    chosen = own.loc[~drawn, ["by", "removed", "loss_rise"]]
    ends = {"low": 0, "loss_rise": 0.5, "high": 0.95}
    of_random = own[drawn].groupby("removed")["loss_rise"]
    random = pd.DataFrame({name: of_random.quantile(share) for name, share in ends.items()}).reset_index()
    found = pd.concat([chosen, random.assign(by=RANDOM)], ignore_index=True)
    of_size = {size: part.to_numpy() for size, part in of_random}
    better = [
        float((of_size[one.removed] < one.loss_rise).mean()) if one.removed in of_size else np.nan
        for one in found.itertuples()
    ]
    return found.assign(random_better=better)


def estimates(table: pd.DataFrame) -> pd.DataFrame:
    """Return estimates for every question of the experiments, for each model, both parts and influence: a row each."""
    lines = []
    for model, rows in table.groupby("model", sort=False):
        known = of_predictors(rows).set_index(["edit", "predictor"])[list(Effect._fields)]
        swapped = near_pairs(rows, "swap")
        for name, asked in {COUPLING: COUPLING, SHARED: COUPLING, INFLUENCE: INFLUENCE}.items():
            effects = {edit: known.loc[edit, name].to_dict() for edit in (SKIP, *PAIRS)}
            found = {f"{edit} by {asked}": effect for edit, effect in effects.items()}
            if name != INFLUENCE:
                found |= effects | {"beyond influence": related(swapped, name, INFLUENCE)._asdict()}
            lines += [{"question": one, "label": f"{model}, {name}", **effect} for one, effect in found.items()]
    return pd.DataFrame(lines).astype({"n": int})


def numbers(table: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that the book quotes, by name: MODEL-EDIT-PREDICTOR, added R², and cost of removal."""
    found: dict[str, float] = {}

    def put(names: Sequence[object], line: Mapping[str, float], *parts: str) -> None:
        name = "-".join(str(one).replace(" ", "-") for one in names)
        named = {f"{name}-{part}".removesuffix("-value").replace("_", "-"): float(line[part]) for part in parts}
        found.update({key: value for key, value in named.items() if np.isfinite(value)})

    for model, rows in table.groupby("model", sort=False):
        for line in of_predictors(rows).to_dict("records"):
            parts = ("value", "low", "high", "n", "p", "holm", "null", "permuted", "seen", "kl", "kl_low", "kl_high")
            put((model, line["edit"], line["predictor"]), line, *parts)
        for line in added(rows).to_dict("records"):
            put((model, "added", line["edit"], line["predictor"]), line, "value", "low", "high", "without")
        for line in removal(rows).to_dict("records"):
            line |= {"value": line["loss_rise"], "better": line["random_better"]}
            put((model, "removed", line["removed"], line["by"]), line, "value", "better")
        for name in (COUPLING, SHARED):
            effect = related(near_pairs(rows, "swap"), name, INFLUENCE)
            put((model, "beyond", name), effect._asdict(), "value", "low", "high")
        alone = rows[rows["edit"] == SKIP]
        for cost, name in product(("loss_rise", "kl"), (COUPLING, SHARED)):
            effect = correlation(valued(name, alone[LIKELY[name][0]]), alone[cost], given=alone[LIKELY[INFLUENCE][0]])
            put((model, "beyond", SKIP, name, cost), effect._asdict(), "value", "low", "high")
        for edit, costs in {SKIP: alone, **{edit: near_pairs(rows, edit) for edit in PAIRS}}.items():
            put((model, edit), costs["loss_rise"].agg(median="median", most="max"), "median", "most")
        drawn = rows.loc[rows["by"].str.startswith(RANDOM), "by"].nunique()
        pairs = len(near_pairs(rows, "swap"))
        sizes = {"blocks": len(alone), "reach": complete_distance(rows), "pairs": pairs, "orders": drawn}
        put((model,), sizes, *sizes)
    return found
