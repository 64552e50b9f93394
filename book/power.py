"""Power of an experiment: the smallest effect that its n shows four times out of five.

    python book/power.py [--draws 1000]

Data of known effect pass through the functions and the rule that judge the experiment (as in `calibration`), at
sizes that close in on the one that is found so often: of normal values, and of skewed ones, where the rule is slower to
believe. The program prints both for every question of `data/predictions.toml`, beside what was written down there.
"""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from calibration import LEVEL, related
from calibration import SHAPES as DRAWN
from claims import experiments
from verdicts import Evidence

from companion.tables.inference import Effect, effect_of
from companion.tables.statistics import correlation_over, partial_over

POWER = 0.8
SHAPES = {"normal": "smallest", "skewed": "smallest_skewed"}
"""Shapes of values, and the key under which a question has the size for each."""
_HALVINGS = 9


class Design(NamedTuple):
    """Settings that decide the power of a question."""

    n: int
    given: int
    level: float = LEVEL
    statistic: str = "correlation"

    @classmethod
    def of(cls, experiment: dict[str, Any], question: dict[str, Any]) -> Design:
        """Read the design from the registered predictions."""
        n, statistic = question.get("n", experiment["n"]), question.get("statistic", "correlation")
        return cls(n, question["given"], question["level"], statistic)

    def effect(self, rng: np.random.Generator, shape: str, size: float) -> Effect:
        """Draw data of an effect's size, of a mean in standard deviations, and estimate it."""
        if self.statistic != "correlation":
            values = DRAWN[shape](rng, self.n)
            centre = np.median(DRAWN[shape](np.random.default_rng(0), 100_000)) if self.statistic == "median" else 0.0
            return effect_of(values - centre + size, self.statistic)
        x, y = related(shape, rng, np.arange(self.n), size=size)
        if self.given:
            return partial_over(x, y, rng.normal(size=(self.n, self.given)))
        return correlation_over(x, y)


def power_of(size: float, design: Design, shape: str, draws: int) -> float:
    """Return the share of draws in which the rule finds the effect to differ from 0, in its own direction."""
    rng, sure = np.random.default_rng([design.n, design.given, round(1 / design.level)]), 0
    for _ in range(draws):
        effect = design.effect(rng, shape, size)
        evidence = Evidence.of(effect, "above", fisher=design.statistic == "correlation")
        sure += evidence.p["differs"] < design.level and evidence.difference > 0
    return sure / draws


@cache  # several questions have one design
def smallest(design: Design, shape: str, draws: int) -> float:
    """Return the smallest effect that is found so often; of a mean in standard deviations."""
    low, high = 0.0, 1.0 if design.statistic == "correlation" else 8.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = power_of(middle, design, shape, draws) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def main(arguments: list[str] | None = None) -> None:
    """Print the smallest effect of every question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="how often data of each size are drawn")
    draws = parser.parse_args(arguments).draws
    for name, experiment in experiments().items():
        for question in experiment["question"]:
            for shape, column in SHAPES.items():
                size = smallest(Design.of(experiment, question), shape, draws) * question.get("spread", 1.0)
                print(f"{name}, {question['name']}, {shape}: {size:.2g}, written down {question[column]}", flush=True)


if __name__ == "__main__":
    main()
