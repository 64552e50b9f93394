"""How often the rule of the verdicts is wrong: the project's own functions, given data whose truth is known.

    python book/calibration.py [--draws 2000] [--jobs 2] [--only WORD]

Each cell of `CELLS` is a kind of reading at an n, with groups and a shape of values that the book has. Data are drawn
without an effect, where the rule must stay silent, and with the stated one. They pass through the functions that the
claims use, and through the rule of `verdicts`. What comes out is kept in `book/calibration.csv`, beside what the rule
gave before it was mended; `calibrated` makes the page of it.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import t as student
from verdicts import LEVEL, Evidence

from companion.tables import correlations, effects
from companion.tables.inference import Effect, effect_of
from companion.tables.regression import lead_over
from companion.tables.statistics import correlation, correlation_over, fit_with_interval, partial_over

TABLE = Path(__file__).with_name("calibration.csv")
Values = NDArray[np.float64]
Groups = NDArray[np.int64]

SHAPES: dict[str, Callable[[Generator, Any], Values]] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed": lambda rng, size: rng.exponential(size=size) - 1,
    "heavy tails": lambda rng, size: rng.standard_t(3, size=size) / 3**0.5,
    "very skewed": lambda rng, size: (np.exp(rng.normal(size=size)) - np.e**0.5) / ((np.e - 1) * np.e) ** 0.5,
}
"""Values of mean 0 and variance 1: normal, exponential, Student's t of 3 degrees of freedom, lognormal."""

GRID, SUITE, SETS = (np.repeat(np.arange(n), m) for n, m in ((8, 8), (33, 4), (3, 12)))
"""Rates of the grid of vision transformers, models of the suite by checkpoints, data sets of prompts."""
RATE = np.repeat(np.eye(8)[:, 1:], 8, axis=0)  # seven columns that tell eight rates from each other
FAMILIES = np.repeat(np.arange(11), [1, 4, 2, 4, 1, 4, 2, 3, 1, 5, 1])
LEADERBOARD = np.repeat(np.arange(17), [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 7])
"""Models of figure 1a and of the leaderboard, by the families of their bases."""


@dataclass(frozen=True)
class Cell:
    """One kind of reading: how data with an effect of a given size are drawn, and what the project makes of them."""

    reading: str
    shape: str
    n: int
    draw: Callable[[Generator, float], tuple]
    measure: Callable[..., Effect]
    stated: float
    truth: Callable[[float], float] | None = float
    """The effect's true value, where its size is the argument; None where that is the middle of all draws."""
    silent: float = 0.0
    """The size at which the rule must stay silent."""
    claims: str = "other"
    null: float = 0.0
    null_error: float = 0.0
    margin: float = math.nan
    fisher: bool = False
    often: int = 1
    """How many times as many draws are made, where they are cheap."""

    @property
    def name(self) -> str:
        """Name the cell in the table."""
        return f"{self.reading}; {self.shape}; {self.n}"


# -- data of known truth


def shifted(n: int, shape: str, null_error: float = 0.0) -> Callable[..., tuple]:
    """Draw n values around the effect, all of them moved by what one network differs from the null."""
    return lambda rng, size: (size + SHAPES[shape](rng, n) + null_error * rng.normal(),)


def related(shape: str, groups: Groups, alike: float = 0.0, third: bool = False) -> Callable[..., tuple]:
    """Draw two variables whose correlation is the effect, perhaps both led by a third; rows of a group are alike."""

    def variable(rng: Generator) -> Values:
        shared = SHAPES[shape](rng, groups.max() + 1)[groups]
        return alike**0.5 * shared + (1 - alike) ** 0.5 * SHAPES[shape](rng, len(groups))

    def draw(rng: Generator, size: float) -> tuple:
        x = variable(rng)
        y = size * x + (1 - size**2) ** 0.5 * variable(rng)
        z = variable(rng)
        return (x + z, y + z, z) if third else (x, y)

    return draw


def rivals(groups: Groups) -> Callable[..., tuple]:
    """Draw two predictors of one score that explain half of it each, the first more by the effect."""

    def draw(rng: Generator, size: float) -> tuple:
        score, own, other = (related("normal", groups, 0.3)(rng, 0.0)[0] for _ in range(3))
        half, more = 0.5**0.5, 0.5 + size
        return more**0.5 * score + (1 - more) ** 0.5 * own, half * (score + other), score

    return draw


def checkpoints(models: int, steps: int, bent: bool = False) -> Callable[..., tuple]:
    """Draw models whose coupling rises with the tokens by the effect; or is a line in the loss, bent by it."""

    def draw(rng: Generator, size: float) -> tuple:
        noise = rng.normal(size=(models, 1)) + rng.normal(size=(models, steps))
        tokens = np.tile(np.arange(1.0, steps + 1), (models, 1))
        loss = rng.uniform(-1, 1, tokens.shape)
        value = 2 * loss - size * loss**2 if bent else size * tokens
        return (_table(value + noise, step=tokens, log_tokens=tokens, validation_loss=loss),)

    return draw


def trained(scatter: float, prompts: int = 12, steps: int = 8) -> Callable[..., tuple]:
    """Draw a run that rises to its third step and then falls by the effect, and the first steps of 16 other runs."""
    course = np.where(np.arange(steps) < 2, 0, (steps - 1 - np.arange(steps)) / (steps - 3))
    recipe = np.minimum(np.arange(16), 12)  # the last four differ by seed alone
    when = 10.0 ** np.arange(steps)

    def draw(rng: Generator, size: float) -> tuple:
        run = 0.2 + size * course + scatter * rng.normal(size=steps)
        values = run[:, None] + 0.01 * rng.normal(size=(steps, prompts)) + 0.02 * rng.normal(size=prompts)
        pairs = np.zeros((steps, prompts, 1, 2, 2))
        pairs[..., 0, 1] = pairs[..., 1, 0] = 1 - values[..., None]
        dims = ("step", "prompt", "k", "block_1", "block_2")
        coords = {"step": when, "k": [10], "block_1": [0, 1], "block_2": [0, 1]}
        others = 0.2 + size * course[:4] + scatter * rng.normal(size=(16, 4)) + 0.05 * rng.normal(size=13)[recipe, None]
        at = {"recipe": np.repeat(recipe, 4), "seed": np.repeat(np.arange(16), 4), "step": np.tile(when[:4], 16)}
        return xr.Dataset({"normalized_miscoupling": (dims, pairs)}, coords), _table(others, **at)

    return draw


def _table(coupling: Values, **columns: Values) -> pd.DataFrame:
    """Set the checkpoints of models as rows."""
    models = {"model": np.repeat(np.arange(len(coupling)), coupling.shape[1])}
    return pd.DataFrame(models | {name: np.ravel(values) for name, values in columns.items()} | {"c": coupling.ravel()})


def three_seeds(rng: Generator, size: float) -> tuple:
    """Draw, for three seeds, the rank correlation of coupling with eight rates."""
    draws = [related("normal", np.arange(8))(rng, size) for _ in range(3)]
    return ([correlation(x, y).value for x, y in draws],)


# -- what the project makes of them


median = partial(effect_of, statistic="median")


def within(groups: Groups, over: Callable[..., Effect], x: Values, y: Values) -> Effect:
    """Correlate what is left when each group's mean is taken out."""
    return over(*(values - (np.bincount(groups, values) / np.bincount(groups))[groups] for values in (x, y)))


def line(x: Values, y: Values) -> Effect:
    """Give the interval of a line's R² to its correlation."""
    fit, r = fit_with_interval(x, y), correlation_over(x, y)
    return r._replace(low=fit.low**0.5, high=fit.high**0.5)


def fall(measured: xr.Dataset, others: pd.DataFrame) -> Effect:
    """Change from the step where other runs turn to the last."""
    return effects.of_emergence(measured, "normalized_miscoupling", 10, correlations.other_runs(others, "c"))["fall"]


def phase(name: str, table: pd.DataFrame) -> Effect:
    """Correlate coupling with the tokens in one phase."""
    return effects.effect_in(correlations.tokens_by_phase(table, "c")[name])


def bend(table: pd.DataFrame) -> Effect:
    """Lead of a parabola over a line."""
    found = correlations.inverted_u(table, "c")
    return effects.effect_in(
        {name.removeprefix("gain-"): found[name] for name in found if "gain" in name}, value="gain"
    )


def bent_score(x: Values, y: Values) -> Effect:
    """Lead of an exponential over a line, over families; one drawing of the folds, as forty take too long here."""
    found = correlations.shape_table({"": (x, y)}, {"": FAMILIES}, n_seeds=1).iloc[0]
    return effects.effect_in(found, "groups", "gain")


def exponential(rng: Generator, size: float) -> tuple:
    """Draw the models of figure 1a with a score that is a line in coupling, or an exponential."""
    x = rng.normal(size=len(FAMILIES))
    return x, (np.expm1(size * x) / size if size else x) + 0.5 * rng.normal(size=len(x))


def _rank(size: float) -> float:
    """Rank correlation of normal pairs in the limit."""
    return 6 / math.pi * math.asin(size / 2)


def _mean_rank(size: float, n: int = 8) -> float:
    """Mean rank correlation of n normal pairs."""
    return 6 / (math.pi * (n + 1)) * (math.asin(size) + (n - 2) * math.asin(size / 2))


def _seen(n: int) -> float:
    """Give the mean, in standard deviations, that Student's t finds four times out of five."""
    return float(student.ppf(1 - LEVEL / 2, n - 1) + student.ppf(0.8, n - 1)) / n**0.5


MEDIANS = {"normal": 0.0, "skewed": math.log(2) - 1, "heavy tails": 0.0}
_mean = partial(Cell, measure=effect_of, often=5)
_r = partial(Cell, fisher=True, stated=0.7)
_alike = partial(_r, shape="groups alike")
over_grid, over_suite, over_families, over_leaderboard = (
    partial(correlation_over, groups=groups) for groups in (GRID, SUITE, FAMILIES, LEADERBOARD)
)
lead_over_families = partial(lead_over, groups=FAMILIES)
lead_over_models = partial(lead_over, groups=np.arange(32), signed=True)
BOTH = ("normal", "skewed")
PHASES = {"rising": 0.5, "falling": -0.5, "all": 0.5}
CELLS = (
    *(_mean("mean", s, n, shifted(n, s), stated=_seen(n)) for n in (5, 6, 12, 16, 24) for s in SHAPES),
    _mean("mean, the null has an error", "normal", 12, shifted(12, "normal", 0.3), stated=1.3, null_error=0.3),
    *(_mean("mean within a margin", s, 12, shifted(12, s), stated=0.0, silent=1.0, claims="within", margin=1.0)
      for s in SHAPES),
    *(Cell("median", s, n, shifted(n, s), median, 1.4 * _seen(n) - m, lambda size, m=m: size + m, -m)
      for n in (12, 24) for s, m in MEDIANS.items()),
    *(_r("correlation", s, n, related(s, np.arange(n)), correlation_over) for n in (6, 8, 16, 32) for s in SHAPES),
    *(_r("R² of a line", s, n, related(s, np.arange(n)), line) for n in (8, 64) for s in BOTH),
    _alike("correlation over rates", n=8, draw=related("normal", GRID, 0.8), measure=over_grid),
    _alike("correlation within rates", n=8, draw=related("normal", GRID, 0.8),
           measure=partial(within, GRID, over_grid)),
    _alike("correlation over models", n=33, draw=related("normal", SUITE, 0.5), measure=over_suite),
    *(_r("rank correlation", s, n, related(s, np.arange(n)), correlation, truth=_rank if s == "normal" else None)
      for n in (8, 36) for s in BOTH),
    _alike("rank correlation within sets", n=36, draw=related("normal", SETS, 0.5),
           measure=partial(within, SETS, correlation), truth=None),
    *(_r("rank correlation, a third held", s, 16, related(s, np.arange(16), third=True), correlation, truth=None)
      for s in BOTH),
    Cell("mean of rank correlations", "normal", 3, three_seeds, effect_of, 0.7, _mean_rank),
    *(_r("correlation, seven held", s, 64, related(s, np.arange(64)), partial(partial_over, given=RATE)) for s in BOTH),
    *(_r("partial correlation over families", s, 11, related(s, FAMILIES, 0.3, third=True),
         partial(partial_over, groups=FAMILIES)) for s in BOTH),
    _r("R² against one half, over families", "groups alike", 17, related("normal", LEADERBOARD, 0.3),
       over_leaderboard, stated=0.9, silent=0.5**0.5, null=0.5**0.5),
    Cell("lead of one R², over families", "groups alike", 11, rivals(FAMILIES), lead_over_families, 0.4),
    Cell("lead of one R²", "normal", 32, rivals(np.arange(32)), lead_over_models, 0.4),
    Cell("exponential against a line", "normal", 11, exponential, bent_score, 0.7, None, claims="above"),
    *(Cell("fall from the peak", f"runs scatter by {s:g}", 12, trained(s), fall, 0.06, None)
      for s in (0, 0.003, 0.01)),
    *(_r(f"coupling and tokens, {name}", f"{m} steps", 33, checkpoints(33, m), partial(phase, name),
         stated=size, truth=None)
      for m in (4, 10) for name, size in PHASES.items()),
    Cell("an inverted U", "5 checkpoints", 34, checkpoints(34, 5, bent=True), bend, 1.5, None, claims="above"),
)  # fmt: skip
"""Every kind of reading of `data/claims.toml`, and of the book's other intervals."""


def judged(cell: Cell, draws: int) -> dict[str, float]:
    """Draw one cell's data, and say how often the rule is wrong, and right."""
    name, draws = "small" if cell.claims == "within" else "differs", draws * cell.often
    known = {part: getattr(cell, part) for part in ("null", "null_error", "margin", "fisher")}
    rows = []
    for size in (cell.silent, cell.stated):
        rng, sure, found = np.random.default_rng([zlib.crc32(cell.name.encode()), size == cell.stated]), 0, []
        for _ in range(draws):
            effect = cell.measure(*cell.draw(rng, size))
            evidence = Evidence.of(effect, cell.claims, **known)
            sure += evidence.p[name] < LEVEL and (cell.claims != "above" or evidence.difference > 0)
            found.append(effect[:3])
        value, low, high = np.array(found).T
        truth = cell.truth(size) if cell.truth else np.median(value)
        rows.append((sure / draws, float(np.mean((low <= truth) & (truth <= high)))))
    (false, _), (power, coverage) = rows
    # The interval is of one network alone, and says nothing of what the null's error is about.
    coverage = math.nan if cell.null_error else coverage
    return {"draws": draws, "false_alarms": false, "coverage": coverage, "power": power}


def main(arguments: list[str] | None = None) -> None:
    """Judge the cells and write the table; a cell that was not asked for keeps its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000, help="how often data are drawn, with and without the effect")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--only", default="", help="cells whose name holds this word")
    given = parser.parse_args(arguments)
    chosen = [at for at, cell in enumerate(CELLS) if given.only in cell.name]
    lines = pd.read_csv(TABLE, index_col="cell").to_dict("index") if TABLE.is_file() else {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for at, found in zip(chosen, pool.map(partial(judged_at, draws=given.draws), chosen), strict=True):
            cell = CELLS[at]
            lines[cell.name] = {**lines.get(cell.name, {}), "n": cell.n, **found}
            print(f"{cell.name}: " + ", ".join(f"{name} {value:.5g}" for name, value in found.items()), flush=True)
    kept = {cell.name: lines[cell.name] for cell in CELLS if cell.name in lines}
    pd.DataFrame.from_dict(kept, orient="index").rename_axis("cell").to_csv(TABLE, float_format="%.4g")


def judged_at(place: int, draws: int) -> dict[str, float]:
    """Judge the cell at a place of `CELLS`, in a process of its own."""
    return judged(CELLS[place], draws)


if __name__ == "__main__":
    main()
