"""Error rates of the rule of the verdicts: the project's own functions, given data without any effect.

    python book/calibration.py [--draws 1000] [--jobs 2]

Each of `KINDS` is a kind of reading, at an n, with groups and a shape of values that the book has. Data without an
effect pass through the functions that the claims use and through the rule of `verdicts`: once a reading at a time
(`book/calibration.csv`), and once with as many readings, networks and the quantifier of every verdict in use
(`book/verdict_errors.csv`). There a verdict is wrong if it is *reproduced* or *contradicted*.
"""

from __future__ import annotations

import argparse
import copy
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import verdicts
from claims import PLACES, at_place, judge_all
from numpy.random import Generator
from numpy.typing import NDArray
from verdicts import LEVEL, Evidence

from companion.tables import correlations, effects
from companion.tables.inference import Effect, effect_of
from companion.tables.regression import lead_over
from companion.tables.statistics import correlation, correlation_over, partial_over
from coupling_lib import paths
from coupling_lib.errors import ParameterError

TABLE, ERRORS = (Path(__file__).with_name(name) for name in ("calibration.csv", "verdict_errors.csv"))
Values = NDArray[np.float64]
Groups = NDArray[np.int64]

SHAPES: dict[str, Callable[[Generator, Any], Values]] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed": lambda rng, size: rng.exponential(size=size) - 1,
}
"""Values of mean 0 and variance 1."""

RATE = np.repeat(np.eye(8)[:, 1:], 8, axis=0)  # seven columns that tell eight rates from each other
FAMILIES = np.repeat(np.arange(11), [1, 4, 2, 4, 1, 4, 2, 3, 1, 5, 1])
LEADERBOARD = np.repeat(np.arange(17), [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 7])
"""Models of figure 1a and of the leaderboard, by the families of their bases."""


def related(shape: str, rng: Generator, groups: Groups, alike: float = 0.0, size: float = 0.0) -> tuple[Values, Values]:
    """Draw two variables whose correlation is `size`; rows of a group are alike."""

    def variable() -> Values:
        shared = SHAPES[shape](rng, groups.max() + 1)[groups]
        return alike**0.5 * shared + (1 - alike) ** 0.5 * SHAPES[shape](rng, len(groups))

    x = variable()
    return x, size * x + (1 - size**2) ** 0.5 * variable()


def _mean(shape: str, rng: Generator, n: int, null_error: float = 0.0, statistic: str = "mean") -> Effect:
    middle = -0.3069 if (shape, statistic) == ("skewed", "median") else 0.0  # log 2 - 1, the median of these values
    return effect_of(SHAPES[shape](rng, n) - middle + null_error * rng.normal(), statistic)


def _related(shape: str, rng: Generator, groups: Groups, over: Callable[..., Effect], alike: float = 0.0) -> Effect:
    return over(*related(shape, rng, groups, alike))


def _given(shape: str, rng: Generator, groups: Groups, given: int, alike: float = 0.0) -> Effect:
    x, y = related(shape, rng, groups, alike)
    held = RATE if given == RATE.shape[1] else SHAPES[shape](rng, (len(x), given))
    lead = held.sum(axis=1)
    return partial_over(x + lead, y + lead, held, groups=groups)


def _lead(shape: str, rng: Generator, groups: Groups, signed: bool = False) -> Effect:
    score, own, other = (related(shape, rng, groups, 0.3)[0] for _ in range(3))
    return lead_over(score + own, score + other, score, groups=groups, signed=signed)


def _phase(shape: str, rng: Generator, models: int = 33, steps: int = 10) -> Effect:
    tokens = np.tile(np.arange(1.0, steps + 1), (models, 1))
    coupling = SHAPES[shape](rng, (models, 1)) + SHAPES[shape](rng, (models, steps))
    table = {"model": np.repeat(np.arange(models), steps), "step": tokens.ravel(), "log_tokens": tokens.ravel()}
    found = correlations.tokens_by_phase(pd.DataFrame(table | {"c": coupling.ravel()}), "c")
    return effects.effect_in(found["falling"])


def _exponential(shape: str, rng: Generator) -> Effect:
    x = SHAPES[shape](rng, len(FAMILIES))
    # A line with noise, and one drawing of the folds, as forty take too long here.
    found = correlations.shape_table({"": (x, x + 0.5 * rng.normal(size=len(x)))}, {"": FAMILIES}, n_seeds=1)
    return effects.effect_in(found.iloc[0], "groups", "gain")


def _three_seeds(shape: str, rng: Generator) -> Effect:
    return effect_of([correlation(*related(shape, rng, np.arange(8))).value for _ in range(3)])


@dataclass(frozen=True)
class Kind:
    """A kind of reading: its effects, and the draws of an effect without any true effect."""

    effects: str
    draw: Callable[[str, Generator], Effect]
    known: Mapping[str, Any] = field(default_factory=dict)
    often: float = 1
    """Return the factor on the number of draws: above 1 for cheap kinds, below 1 for expensive ones."""


_R = {"fisher": True, "limit": 1.0}
KINDS = {
    "mean of 200": Kind(r"prompts-many-(shared-)?instruction.*", partial(_mean, n=200), often=5),
    "mean": Kind(r"(prompts-many-product|prompts-step-by-step|spectra|perturbation|dynamics|vision-pairs).*",
                 partial(_mean, n=12), often=5),
    "mean, the null has an error": Kind(
        r"(depth|nulls|readings|emergence)-.*|prompts-many-(shared-)?(self|context)-coupling.*",
        partial(_mean, n=12, null_error=0.3), {"null_error": 0.3}, 5),
    "mean within a margin": Kind(
        r"prompts-many-(shared-)?four-bits|precision-change-.*", partial(_mean, n=12), {"null": -1.0}, 5),
    "median": Kind(r"prompts-many-.*-(straighter|exponential|even)|trajectories-change-.*",
                   partial(_mean, n=24, statistic="median"), often=5),
    "mean of rank correlations": Kind(r"vision-rank-.*", _three_seeds),
    "rank correlation": Kind(r"prompts-many-(shared-)?(difficulty|length).*",
                             partial(_related, groups=np.arange(36), over=correlation), _R),
    "correlation": Kind(r"generalization-(sign|variant|quality-(?!.*(partial|within))).*|vision-photographs-"
                        r"(shared-)?(accuracy|rate)",
                        partial(_related, groups=np.arange(26), over=correlation_over), _R, 5),
    "partial correlation": Kind(r"generalization-quality-.*(partial|within).*",
                                partial(_given, groups=np.arange(26), given=1), _R),
    "correlation within rates": Kind(r"vision-photographs-.*", partial(_given, groups=np.arange(64), given=7), _R),
    "correlation over families": Kind(r"generalization-gsm8k-r", partial(
        _related, groups=LEADERBOARD, alike=0.3, over=partial(correlation_over, groups=LEADERBOARD)), _R, 5),
    "partial correlation over families": Kind(r"generalization-figure-1a-partial-.*", partial(
        _given, groups=FAMILIES, given=1, alike=0.3), _R),
    "lead of one R², over families": Kind(r"generalization-figure-1a-gain-.*", partial(_lead, groups=FAMILIES)),
    "lead of one R²": Kind(r"generalization-suite-gain-.*", partial(_lead, groups=np.arange(32), signed=True)),
    "exponential against a line": Kind(r"generalization-figure-1a-cv-gain", _exponential, often=0.2),
    "coupling and tokens": Kind(r"generalization-tokens-.*", _phase, _R),
}  # fmt: skip
"""Every kind of reading that decides a verdict."""


def kind_of(effect: str) -> str:
    """Return the kind of a reading."""
    for name, kind in KINDS.items():
        if re.fullmatch(kind.effects, effect):
            return name
    raise ParameterError(f"the effect {effect!r} is of no kind of book/calibration.py, so that its errors are unknown")


def drawn(kind: str, shape: str, claims: str, draws: int) -> list[Evidence]:
    """Draw evidence of one kind without an effect, sorted from surely against a claim to surely for it."""
    one, rng = KINDS[kind], np.random.default_rng(zlib.crc32(f"{kind}; {shape}".encode()))
    margin = {"margin": 1.0} if claims == "within" else {}
    found = [Evidence.of(one.draw(shape, rng), claims, **one.known, **margin) for _ in range(round(draws * one.often))]
    side = -1 if claims == "below" else 1
    return sorted(found, key=lambda e: side * np.sign(e.difference) * (1 - e.p.get("differs", e.p.get("small", 1.0))))


class Form(NamedTuple):
    """The shape of a verdict: its quantifier, and of each reading its kind, its direction and its networks."""

    quantifier: str
    readings: tuple[tuple[str, str, int], ...]

    @property
    def name(self) -> str:
        """Name of the shape in the table."""
        counted = Counter(self.readings).items()
        several = [f"{n} x {kind}, {claims}, {networks}" for (kind, claims, networks), n in counted]
        return f"{self.quantifier}: " + "; ".join(several)


def in_use(results: Path = paths.RESULTS) -> dict[Form, list[str]]:
    """Collect the shapes of all verdicts, and the claims that have each."""
    forms: dict[Form, list[str]] = {}
    for claim, found in judge_all(results):
        for place in PLACES:
            several = Counter(one.reading for one in at_place(claim, found, place) or [] if one.decides)
            tests = [(claim["test"][at], n) for at, n in several.items()]
            readings = sorted((kind_of(test["effect"]), test["claims"], n) for test, n in tests)
            if readings:
                forms.setdefault(Form(claim["quantifier"], tuple(readings)), []).append(f"{claim['id']} ({place})")
    return forms


def error(form: Form, pools: Mapping[tuple[str, str], Sequence[Evidence]], draws: int, alike: bool) -> float:
    """Compute how often data without an effect are reproduced or contradicted; alike, all readings see the same."""
    rng, wrong = np.random.default_rng(zlib.crc32(form.name.encode())), 0
    for _ in range(draws):
        at, outcomes = rng.random(), []
        for kind, claims, networks in form.readings:
            pool = pools[kind, claims]
            places = [at] * networks if alike else rng.random(networks)
            outcomes.append([copy.copy(pool[int(place * len(pool))]) for place in places])
        verdicts.correct([evidence for one in outcomes for evidence in one])
        judged = [[evidence.outcome for evidence in one] for one in outcomes]
        found = verdicts.verdict(judged, [None] * len(judged), form.quantifier)
        wrong += found in (verdicts.REPRODUCED, verdicts.CONTRADICTED)
    return wrong / draws


def errors_of(form: Form, pools: Mapping[str, Mapping[tuple[str, str], Sequence[Evidence]]], draws: int) -> dict:
    """Compute a verdict's errors with readings apart and alike, the worse of normal and skewed values."""
    apart, alike = (max(error(form, pools[shape], draws, one) for shape in SHAPES) for one in (False, True))
    return {"independent": apart, "correlated": alike, "error": max(apart, alike)}


def false_alarms_of_few(n: int, draws: int = 4000) -> float:
    """Compute the false alarms of the mean of so few skewed values that their interval cannot allow for the skew."""
    rng = np.random.default_rng(n)
    return _alarms([Evidence.of(_mean("skewed", rng, n), "above") for _ in range(draws)])


def main(arguments: list[str] | None = None) -> None:
    """Write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="how often data are drawn")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    given = parser.parse_args(arguments)
    forms = in_use()
    wanted = sorted({(kind, claims) for form in forms for kind, claims, _ in form.readings})
    todo = [(kind, shape, claims) for shape in SHAPES for kind, claims in wanted]
    with ProcessPoolExecutor(given.jobs) as workers:
        found = dict(zip(todo, workers.map(drawn, *zip(*todo, strict=True), repeat(given.draws)), strict=True))
        lines = [
            {"reading": kind, "claims": claims, "values": shape, "draws": len(pool), "false_alarms": _alarms(pool)}
            for (kind, shape, claims), pool in found.items()
        ]
        pd.DataFrame(lines).sort_values(["reading", "claims", "values"]).to_csv(TABLE, index=False, float_format="%.4g")
        pools = {shape: {(kind, claims): found[kind, shape, claims] for kind, claims in wanted} for shape in SHAPES}
        rows = workers.map(partial(errors_of, pools=pools, draws=3 * given.draws), forms)
        table = [
            {"shape": form.name, **row, "verdicts": ", ".join(forms[form])}
            for form, row in zip(forms, rows, strict=True)
        ]
    pd.DataFrame(table).to_csv(ERRORS, index=False, float_format="%.4g")


def _alarms(pool: Sequence[Evidence]) -> float:
    return float(
        np.mean([min(p for name, p in e.p.items() if name == "differs" or e.claims == "within") < LEVEL for e in pool])
    )


if __name__ == "__main__":
    main()
