"""Evaluation of `data/rivals.csv`: whether coupling predicts a model's quality beside its rivals.

Coupling, scores, line-shape score, training loss and width come from the tables of the models themselves.
"""

import numpy as np
import pandas as pd

from companion.tables import effects, photographs
from companion.tables.correlations import equal_tokens, last_checkpoints
from companion.tables.files import read_table, without_repeats
from companion.tables.generalization import suite
from companion.tables.inference import Effect
from companion.tables.statistics import correlation_over, partial_over
from coupling_lib import paths

TABLE = paths.DATA / "rivals.csv"
SUITE, PHOTOGRAPHS = "suite", "photographs"
"""Sets of models."""
LABELS = {
    "alpha": "alpha",
    "alpha_hat": "alpha-hat",
    "stable_rank": "stable rank",
    "influence": "block influence",
    "line_shape_score": "line-shape score",
    "train_loss": "training loss",
    "width": "width",
}
"""Rivals, by column."""


def rivals() -> pd.DataFrame:
    """Read the table, each row with the coupling, the score and the other properties of its model."""
    table = without_repeats(read_table(TABLE), ["set", "model"])
    return table if table.empty else table.merge(_known(), on=["set", "model"], how="left", validate="one_to_one")


def _known() -> pd.DataFrame:
    language, vision = equal_tokens(last_checkpoints(suite())), photographs.cells()
    language = language.assign(
        set=SUITE, coupling=1 - language["normalized_miscoupling_k10"], score=language["negative_loss"]
    )
    vision = vision.assign(
        set=PHOTOGRAPHS, coupling=1 - vision[photographs.PARTS["whole"]], score=vision["test_accuracy"],
        line_shape_score=vision["class.line_shape_score"],
    )  # fmt: skip
    columns = ["set", "model", "coupling", "score", "line_shape_score", "train_loss", "width"]
    return pd.concat([language[columns], vision[columns]], ignore_index=True)


def answers(table: pd.DataFrame) -> dict[tuple[str, str], Effect]:
    """Return the effects in question, by question and by set and rival."""
    found: dict[tuple[str, str], Effect] = {}
    for name, own in table.groupby("set", sort=False):
        coupling, score = own["coupling"].to_numpy(), own["score"].to_numpy()
        varied = {column: label for column, label in LABELS.items() if np.ptp(own[column]) > 0}
        for column, label in varied.items():
            values = own[column].to_numpy(float)
            found["each alone", f"{name}, {label}"] = correlation_over(values, score)
            found["coupling beside each", f"{name}, {label}"] = partial_over(coupling, score, values)
        others = own[[column for column in varied if column != "train_loss"]].to_numpy(float)
        found["coupling beside all", str(name)] = partial_over(coupling, score, others)
    return found


def numbers_of(table: pd.DataFrame) -> dict[str, float]:
    """Return the numbers that prose quotes, by set and rival."""
    words = {"each alone": "alone", "coupling beside each": "coupling", "coupling beside all": "coupling"}
    found = {
        f"{of.replace(', ', '-').replace(' ', '-')}-{words[name]}": one for (name, of), one in answers(table).items()
    }
    return effects.numbers(found, "rivals")
