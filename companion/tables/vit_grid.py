"""The grid of trained vision transformers, `data/vit_grid.csv`, one row per model: reading and fits.

Its columns are described in `data/tables.toml`. *Coupling* is 1 minus a normalised mismatch, mean over
images and over pairs of different blocks. Models of one seed form the grid; further seeds repeat one row of it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from companion.tables import effects, photographs
from companion.tables.inference import Effect, detectable_correlation, effect_of
from companion.tables.statistics import correlation, correlation_over, fit_with_interval
from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.labelled_images import read_dataset

TOKENS = ("class", "patch")
NAMED_RATES = (0.0, 0.05, 0.1, 0.3)
"""Rates of stochastic depth for which the paper states correlations (figure 6a)."""

SEEDED_DECAY = 0.04
"""Weight decay of the paper's figure 6b; its models were trained from several seeds."""

_SETTINGS = ["model", "weight_decay", "drop_path", "seed", "test_accuracy", "train_accuracy"]


class Reading(NamedTuple):
    """A measurement in the grid: token (class or last patch), K, and variant."""

    token: str = "class"
    k: int = 10
    variant: str = "normalized_miscoupling"

    @property
    def column(self) -> str:
        """Column of the measurement in the grid."""
        return f"{self.token}.k{self.k}.{self.variant}"


def read_grid(file: Path | str = "") -> pd.DataFrame:
    """Read a table of trained vision transformers, by default that of this project."""
    file = Path(file or paths.DATA / "vit_grid.csv")
    try:
        table = pd.read_csv(file) if file.is_file() else pd.DataFrame()
    except ValueError:  # no table
        table = pd.DataFrame()
    if lacking := [name for name in _SETTINGS if name not in table]:
        raise ParameterError(
            f"no grid in {file.name}, which lacks {', '.join(lacking)}; "
            "make one with `python -m companion.training vit grid digits`"
        )
    return table.sort_values(["weight_decay", "drop_path", "seed"], ignore_index=True)


def nearest_reading(grid: pd.DataFrame, token: int, k: int, variant: str) -> Reading:
    """Return the measurement in the grid nearest to that of a single model."""
    ending = f".{variant}"
    measured = {int(name.split(".")[1][1:]) for name in grid if name.startswith("class.k") and name.endswith(ending)}
    return Reading(TOKENS[token != 0], min(measured, key=lambda m: (abs(m - k), m)), variant)


def coupling_table(grid: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """Return one measurement of the grid as a table."""
    name = reading.column
    if name not in grid:
        raise ParameterError(f"the grid has no column {name!r}; take token 'class' or 'patch' and one of its K")
    ends = {"coupling": "", "low": "_high", "high": "_low", "random_bases": "_null", "untrained": "_untrained"}
    return grid[_SETTINGS].assign(**{column: 1 - grid[name + end] for column, end in ends.items()})


def null_error(reading: Reading) -> float:
    """Return the error of a null in the grid against the exact one (`data/tables.toml`)."""
    errors = pd.read_csv(paths.DATA / "null_errors.csv").set_index(["table", "variant", "k"])["error"]
    return float(errors.get(("grid", reading.variant, reading.k), np.nan))


def first_seed(table: pd.DataFrame) -> pd.DataFrame:
    """Select among models with the same settings the one with the smallest seed; every cell may have its own."""
    return table.sort_values("seed", kind="stable").drop_duplicates(["weight_decay", "drop_path"]).sort_index()


def fits_by_rate(grid: pd.DataFrame, reading: Reading, stated: Mapping[float, float] | None = None) -> pd.DataFrame:
    """Fit test accuracy against coupling, over the weight decays at each rate of stochastic depth and over all."""
    table = first_seed(coupling_table(grid, reading))
    groups = [(f"{rate:g}", (stated or {}).get(rate, np.nan), part) for rate, part in table.groupby("drop_path")]
    rows = []
    for rate, known, part in [*groups, ("all", np.nan, table)]:
        if len(part) >= 3:
            fit = fit_with_interval(part.coupling, part.test_accuracy)
            rows.append((rate, fit.n, fit.slope, fit.intercept, fit.r_squared, fit.low, fit.high, fit.p_value, known))
    columns = ["drop_path", "models", "slope", "intercept", "r_squared", "low", "high", "p_value", "paper"]
    return pd.DataFrame(rows, columns=columns)


def stated_r_squared(paper: pd.DataFrame) -> dict[float, float]:
    """Return the correlations that the paper states for its figure 6a."""
    rows = paper[(paper.figure == "6a") & (paper.y_quantity == "r_squared")]
    return dict(zip(rows.x.astype(float), rows.y.astype(float), strict=True))


def seeds_table(grid: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """Tabulate coupling at both tokens against the rate of stochastic depth, over the seeds of one weight decay."""
    rows = []
    for token in TOKENS:
        table = coupling_table(grid, reading._replace(token=token))
        for rate, part in table[table.weight_decay == SEEDED_DECAY].groupby("drop_path"):
            mean = part.mean(numeric_only=True)
            ends = (part.coupling.min(), part.coupling.max(), mean.low, mean.high)
            rows.append((token, rate, len(part), mean.coupling, *ends, mean.random_bases, mean.untrained))
    columns = ["token", "drop_path", "seeds", "coupling", "low", "high", "image_low", "image_high"]
    return pd.DataFrame(rows, columns=[*columns, "random_bases", "untrained"])


def trend_table(grid: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    """Compute, for each weight decay, rank correlations of coupling and accuracy with the rate of stochastic depth."""
    rows = []
    for decay, part in first_seed(coupling_table(grid, reading)).groupby("weight_decay"):
        part = part.sort_values("drop_path")
        ranks = [part[name].corr(part.drop_path, method="spearman") for name in ("coupling", "test_accuracy")]
        rows.append((decay, len(part), *ranks, part.coupling.iloc[0], part.coupling.iloc[-1]))
    return pd.DataFrame(rows, columns=["weight_decay", "models", "coupling_rank", "accuracy_rank", "without", "most"])


def circumstances(grid: pd.DataFrame, model: str, spread: float) -> dict[str, float]:
    """Return the epochs of training, and the number of pictures behind the grid's accuracy."""
    known = grid["test_pictures"].iloc[0] if "test_pictures" in grid else len(read_dataset(grid["data"].iloc[0]).test)
    pictures = int(known)
    found = {"grid-epochs": float(grid["epochs"].iloc[0]), "test-pictures": float(pictures)}
    found["pictures-spread"] = float(round(spread * pictures))
    record = paths.CHECKPOINTS / model / "training.json"
    if record.is_file():
        found["model-epochs"] = float(json.loads(record.read_text(encoding="utf-8"))["recipe"]["epochs"])
    return found


def grid_provenance(grid: pd.DataFrame, command: str = "", file: str = "") -> str:
    """Return one line that describes the origin of the grid's numbers."""
    first = grid.iloc[0]
    parts = [
        f"{file or 'data/vit_grid.csv'}: {len(grid)} ViTs on {first['data']}, {first.blocks} blocks, width "
        f"{first.width}, {first.heads} heads, patch {first.patch}, {first.epochs} epochs ({first.steps} steps of "
        f"{first.batch})",
        f"seeds {', '.join(map(str, sorted(grid.seed.unique())))}",
        f"{first.images} held-out images each",
        str(first.machine),
        str(first.versions),
        command,
    ]
    return " · ".join(part for part in parts if part)


def of_grid(table: pd.DataFrame, token: str) -> dict[str, Effect]:
    """Return correlations of coupling and accuracy in the grid of ViTs, and of coupling with stochastic depth."""
    # Models that differ only in weight decay are nearly copies here, so eight of them are not eight independent trials.
    seeded = table.groupby("weight_decay")["seed"].nunique().idxmax()
    by_seed = [
        part["coupling"].corr(part["drop_path"], method="spearman")
        for _, part in table[table["weight_decay"] == seeded].groupby("seed")
    ]
    first = first_seed(table)
    at_rate = first.groupby("drop_path")[["coupling", "test_accuracy"]]
    centred = effects.group_centred(first, "drop_path", ["coupling", "test_accuracy"])
    along = at_rate.apply(lambda part: part["coupling"].corr(part["test_accuracy"]))
    rate = first["drop_path"].to_numpy()
    rank = effect_of(by_seed)
    return {
        # Few seeds have a wide interval, and a correlation ends at 1.
        f"rank-{token}": rank._replace(low=max(-1.0, rank.low), high=min(1.0, rank.high)),
        f"accuracy-{token}": correlation_over(first["coupling"], first["test_accuracy"], rate),
        f"within-{token}": correlation_over(centred["coupling"], centred["test_accuracy"], rate),
        f"steeper-{token}": correlation(along.index, along.values),
    }


def rise(table: pd.DataFrame) -> Effect:
    """Return the rise of coupling from the lowest rate of stochastic depth to the highest, over seeds."""
    along = table[table.weight_decay == SEEDED_DECAY].pivot(index="seed", columns="drop_path", values="coupling")
    return effect_of((along.iloc[:, -1] - along.iloc[:, 0]).to_numpy())


def numbers_of(grid: pd.DataFrame, reading: Reading, model: str) -> dict[str, float]:
    """Return the numbers that prose about the grid quotes, by name."""
    at_rate = first_seed(coupling_table(grid, reading)).groupby("drop_path")[["test_accuracy", "coupling"]]
    spread, trends = (at_rate.max() - at_rate.min()).max(), trend_table(grid, reading)
    found = {"models": len(grid), "accuracy-spread": spread.test_accuracy, "coupling-spread": spread.coupling}
    found |= {"accuracy-lowest": grid.test_accuracy.min(), "accuracy-highest": grid.test_accuracy.max()}
    found |= {"rank-mean": trends.coupling_rank.mean(), "accuracy-rank-mean": trends.accuracy_rank.mean()}
    for fit in fits_by_rate(grid, reading).itertuples():
        key = f"r-squared-{fit.drop_path}"
        found |= {key: fit.r_squared, f"{key}-low": fit.low, f"{key}-high": fit.high}
        found |= {f"{key}-p-value": fit.p_value, f"{key}-slope": fit.slope}
    for row in seeds_table(grid, reading).itertuples():
        key = f"coupling-{row.token}-rate-{row.drop_path:g}"
        found |= {key: row.coupling, f"{key}-low": row.low, f"{key}-high": row.high}
        found |= {f"coupling-{row.token}-null": row.random_bases, f"coupling-{row.token}-untrained": row.untrained}
    first = first_seed(grid)
    # Models that differ only in weight decay are nearly copies here, so that rates are the independent units.
    fixed = photographs.partial_effects(first, {"": reading.column}, first["drop_path"])
    found |= effects.numbers({name: effect for (name, _), effect in fixed.items()}, "grid-within")
    found["grid-within-both-seen"] = detectable_correlation(fixed["both", ""])
    for token in TOKENS:
        one = reading._replace(token=token)
        found[f"coupling-{token}-null-error"] = null_error(one)
        found |= effects.numbers(of_grid(coupling_table(grid, one), token))
    of_class = coupling_table(grid, reading._replace(token="class"))
    found["steeper-class-seen"] = detectable_correlation(of_grid(of_class, "class")["steeper-class"])
    found |= effects.numbers({"rise-class": rise(of_class)})
    return {name: float(value) for name, value in found.items()} | circumstances(grid, model, spread.test_accuracy)
