"""What an experiment can find: the smallest correlation that its n shows four times out of five.

    python book/power.py [--draws 1000]

Data of known correlation pass through the functions and the rule that judge the experiment (as in `calibration`), at
sizes that close in on the one that is found so often: of normal values, and of skewed ones, where the rule is slower to
believe. The program prints both for every question of `data/predictions.toml`, beside what was written down there.
"""

from __future__ import annotations

import argparse
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from calibration import LEVEL, related
from verdicts import Evidence

from coupling_lib.metrics.statistics import correlation_over, partial_over

PREDICTIONS = Path(__file__).parents[1] / "data" / "predictions.toml"
POWER = 0.8
SHAPES = {"normal": "smallest", "skewed": "smallest_skewed"}
"""Shapes of values, and the key under which a question has the size for each."""
_HALVINGS = 7


def found(size: float, n: int, given: int, shape: str, draws: int, level: float) -> float:
    """Give the share of draws of which the rule says that the correlation differs from 0, in its own direction."""
    rng, sure = np.random.default_rng([n, given, round(1 / level)]), 0
    for _ in range(draws):
        x, y = related(shape, np.arange(n))(rng, size)
        over = partial(partial_over, given=rng.normal(size=(n, given))) if given else correlation_over
        evidence = Evidence.of(over(x, y), "above", fisher=True)
        sure += evidence.p["differs"] < level and evidence.difference > 0
    return sure / draws


def smallest(n: int, given: int, shape: str, draws: int, level: float = LEVEL) -> float:
    """Give the smallest correlation, `given` variables held fixed, that n independent models show so often."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = found(middle, n, given, shape, draws, level) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def experiments(path: Path = PREDICTIONS) -> dict[str, dict[str, Any]]:
    """Read what was predicted, by experiment."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["experiment"]


def main(arguments: list[str] | None = None) -> None:
    """Print the smallest effect of every question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="how often data of each size are drawn")
    draws, known = parser.parse_args(arguments).draws, {}
    for name, experiment in experiments().items():
        for question in experiment["question"]:
            for shape, column in SHAPES.items():
                kind = experiment["n"], question["given"], shape, draws, question["level"]
                known[kind] = known[kind] if kind in known else smallest(*kind)
                said = f"{known[kind]:.2f}, written down {question[column]}"
                print(f"{name}, {question['name']}, {shape}: {said}", flush=True)


if __name__ == "__main__":
    main()
