"""Effects of training a model to be more coupled, or less: runs with `coupling_loss` and their twins, within seeds."""

from pathlib import Path

import numpy as np
import pandas as pd

from companion.tables.files import read_table, without_repeats
from companion.tables.inference import Effect, effect_of
from coupling_lib import paths
from coupling_lib.errors import ParameterError

QUANTITIES = ("coupling", "shared", "validation_loss", "accuracy")
"""Compared columns."""
SHAM = "sham0.3"
"""The control: gradients as large as those of strength 0.3, in random directions. From step 0 it lowers coupling."""
DOSES = ("decouple0.03", "encourage0.03", "encourage0.3")
"""Arms that differ in strength only."""
_READINGS = {"coupling": "normalized_miscoupling_k10", "shared": "shared_normalized_miscoupling_k10"}


def regularised(file: Path = paths.DATA / "regulariser.csv") -> pd.DataFrame:
    """Read the runs after training, a row each with its arm and the step from which on it is regularised."""
    table = without_repeats(read_table(file), ["model", "step"])
    last = table[table["step"] == table["steps"]]
    arms = last["model"].str.split("-").str[0].rename("arm")
    readings = pd.DataFrame({name: 1 - last[column] for name, column in _READINGS.items()})
    plain = last[["model", "seed", "begin", "strength", "validation_loss", "accuracy", "versions"]]
    return pd.concat([arms, plain, readings], axis=1).sort_values(["seed", "begin", "arm"], ignore_index=True)


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the seeds with every run measured; the seed is the independent unit."""
    counted = runs.groupby("seed")["model"].transform("nunique")
    return runs[counted == runs["model"].str.rpartition("-")[0].nunique()].reset_index(drop=True)


def changes(runs: pd.DataFrame, against: str = "without") -> pd.DataFrame:
    """Return each run's difference to its twin, quantity by quantity."""
    # A run without the regulariser is the same for all starting steps, and so is the twin of all runs of its seed.
    on = ["seed"] if against == "without" else ["seed", "begin"]
    twins = runs.loc[runs["arm"] == against, [*on, *QUANTITIES]]
    paired = runs[~runs["arm"].isin(["without", against])].merge(twins, on=on, suffixes=("", "_twin"))
    moved = {name: paired[name] - paired[f"{name}_twin"] for name in QUANTITIES}
    return paired[["seed", "begin", "arm", "strength"]].assign(**moved)


def over_sham(runs: pd.DataFrame) -> dict[str, Effect]:
    """Return the loss of every arm minus that of the sham from the same step, within seeds."""
    found = changes(runs, against=SHAM).groupby(["arm", "begin"])["validation_loss"]
    return {f"{arm}-from{begin}-over-sham": effect_of(part.to_numpy()) for (arm, begin), part in found}


def agreement(runs: pd.DataFrame) -> dict[str, float]:
    """Return the number of seeds in which an arm's loss exceeds its twin's."""
    counted = changes(runs).groupby(["arm", "begin"])["validation_loss"].agg(lambda loss: int((loss > 0).sum()))
    return {f"{arm}-from{begin}-seeds-worse": float(n) for (arm, begin), n in counted.items()}


def slopes(moved: pd.DataFrame) -> pd.Series:
    """Return each seed's slope, through the origin, of change of loss on change of coupling over the strengths."""
    doses = moved[moved["arm"].isin(DOSES)]
    products = doses.assign(both=doses["coupling"] * doses["validation_loss"], square=doses["coupling"] ** 2)
    summed = products.groupby("seed")[["both", "square"]].sum()
    return summed["both"] / summed["square"]


def difference_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare every arm with no regulariser, within seeds: a row for each arm, start and quantity."""
    rows = []
    for (begin, arm), part in changes(runs).groupby(["begin", "arm"]):
        if len(part) < 2:
            raise ParameterError(f"{arm} from {begin} has {len(part)} pairs of runs; 2 are needed, run more seeds")
        rows += [(begin, arm, column, effect_of(part[column])) for column in QUANTITIES]
    return pd.DataFrame([{"begin": b, "arm": a, "column": c, **effect._asdict()} for b, a, c, effect in rows])


def answers(runs: pd.DataFrame) -> dict[str, Effect]:
    """Return the effects that answer the questions of `data/predictions.toml`, by question."""
    found: dict[str, Effect] = {}
    beside_sham = changes(runs, against=SHAM)
    for begin, moved in changes(runs).groupby("begin"):
        of = {arm: part.sort_values("seed")["validation_loss"].to_numpy() for arm, part in moved.groupby("arm")}
        sham = beside_sham[(beside_sham["begin"] == begin) & (beside_sham["arm"] == "encourage0.3")]
        values = {
            "encouraged": of["encourage0.03"],
            "driven apart": of["decouple0.03"],
            "encouraged over sham": sham["validation_loss"],
            "shared part": of["shared0.3"],
            "loss per coupling": slopes(moved),
        }
        found |= {f"{name}, from step {begin}": effect_of(np.asarray(each)) for name, each in values.items()}
    return found
