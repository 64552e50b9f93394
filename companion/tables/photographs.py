"""Vision transformers on photographs: a grid of models with different seeds, and pairs that differ in one rate only.

`data/cifar_grid.csv` and `data/cifar_pairs.csv`, described in `data/tables.toml`. Coupling is that at the class token.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from companion.tables import effects
from companion.tables.files import read_table, without_repeats
from companion.tables.inference import Effect, detectable_correlation, effect_of
from companion.tables.statistics import correlation_over, partial_over
from coupling_lib import paths

GRID, PAIRS = paths.DATA / "cifar_grid.csv", paths.DATA / "cifar_pairs.csv"
CELLS, N_PAIRS = 64, 40
"""Number of cells of the grid, and of pairs, required before anything is judged."""
TESTS = 3
"""Number of tests beside the claim on accuracy, corrected together (`data/claims.toml`); power is for their level."""
PARTS = {"whole": "class.k10.normalized_miscoupling", "traceless part": "class.k10.shared_normalized_miscoupling"}
"""Columns by the part of the Jacobians that they describe."""


def cells(file: Path = GRID) -> pd.DataFrame:
    """Read the cells of the grid, a model each, without repetitions of the diagonal."""
    table = without_repeats(read_table(file), ["model"])
    settings = ["weight_decay", "drop_path"]
    return table if table.empty else table.sort_values("seed").drop_duplicates(settings).reset_index(drop=True)


def pairs(file: Path = PAIRS) -> pd.DataFrame:
    """Read the complete pairs, in the order of their seeds, the model without stochastic depth first."""
    table = without_repeats(read_table(file), ["model"])
    if table.empty:
        return table
    whole = table.groupby("seed")["model"].transform("size") == 2
    return table[whole].sort_values(["seed", "drop_path"], ignore_index=True)


def answers(table: pd.DataFrame, column: str) -> dict[str, Effect]:
    """Return the effects in question for the experiment on the grid, for one column."""
    found = table[["test_accuracy", "drop_path"]].assign(coupling=1 - table[column])
    score, coupling, rate = (found[name].to_numpy() for name in ("test_accuracy", "coupling", "drop_path"))
    means = pd.get_dummies(found["drop_path"], drop_first=True).to_numpy(float)
    # A relation that grows with the rate is a product of the two, beyond the effect of each.
    centred = effects.group_centred(found, "drop_path", ["coupling"])["coupling"].to_numpy()
    grows = partial_over(centred * rate, score, np.column_stack([means, centred]))
    return {
        "over all models": correlation_over(coupling, score),
        "within rates": partial_over(coupling, score, means),
        "the more so with stochastic depth": grows,
        "coupling rises with the rate": correlation_over(coupling, rate),
    }


def grid_answers(table: pd.DataFrame) -> dict[tuple[str, str], Effect]:
    """Return these effects for each part, by question and part."""
    return {(name, part): one for part, column in PARTS.items() for name, one in answers(table, column).items()}


def partial_effects(
    table: pd.DataFrame, columns: dict[str, str], groups: pd.Series | None = None
) -> dict[tuple[str, str], Effect]:
    """Correlate coupling and accuracy with the grid's settings held fixed, by setting and part."""
    # Both settings change accuracy and coupling, so that holding one fixed leaves the other's effect.
    given = effects.level_columns(table, {"rates": "drop_path", "decays": "weight_decay"}, "both")
    y = table["test_accuracy"].to_numpy()
    return {
        (name, part): partial_over(1 - table[column].to_numpy(), y, fixed, groups)
        for part, column in columns.items()
        for name, fixed in given.items()
    }


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return the effect of the most stochastic depth within each pair, on coupling of each part and on accuracy."""
    values = pd.DataFrame({part: 1 - table[column] for part, column in PARTS.items()})
    values = values.assign(accuracy=table["test_accuracy"]).set_index(table["seed"])
    least = (table["drop_path"] == table["drop_path"].min()).to_numpy()
    return values[~least] - values[least]


def pair_answers(table: pd.DataFrame) -> dict[tuple[str, str], Effect]:
    """Return the effects in question for the experiment on pairs, by question and part."""
    questions = {part: ("coupling with stochastic depth", part) for part in PARTS}
    questions["accuracy"] = "accuracy with stochastic depth", ""
    return {questions[name]: effect_of(values.to_numpy()) for name, values in gains(table).items()}


def numbers_of(grid: pd.DataFrame, paired: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that prose quotes, by name; none of an incomplete experiment."""
    return _of_grid(grid) | _of_pairs(paired)


def _of_grid(table: pd.DataFrame) -> dict[str, float]:
    if len(table) < CELLS:
        return {}
    words = {"over all models": "accuracy", "within rates": "within", "coupling rises with the rate": "rate"}
    words["the more so with stochastic depth"] = "steeper"
    fixed = partial_effects(table, PARTS)
    found = {(words[question], part): effect for (question, part), effect in grid_answers(table).items()}
    found |= {(f"within-{name}", part): effect for (name, part), effect in fixed.items()}
    named = {f"{'' if part == 'whole' else 'shared-'}{name}": effect for (name, part), effect in found.items()}
    more = {
        "models": len(table),
        "accuracy-lowest": table["test_accuracy"].min(),
        "accuracy-spread": table.groupby("drop_path")["test_accuracy"].agg(np.ptp).max(),
        "accuracy-highest": table["test_accuracy"].max(),
        "within-both-seen": detectable_correlation(fixed["both", "whole"], 0.05 / TESTS),
    }
    return effects.numbers(named, "photographs") | {f"photographs-{name}": float(value) for name, value in more.items()}


def _of_pairs(table: pd.DataFrame) -> dict[str, float]:
    if table.empty or table["seed"].nunique() < N_PAIRS:
        return {}
    moved = gains(table)
    columns = {"coupling": "whole", "shared-coupling": "traceless part", "accuracy": "accuracy"}
    found = {name: effect_of(moved[column].to_numpy()) for name, column in columns.items()}
    return effects.numbers(found, "pairs") | {"pairs-coupling-least": float(moved["whole"].min())}
