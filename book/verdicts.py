r"""The rule that turns measured effects into verdicts.

Each claim holds one family of readings, each a statement about one effect: that it lies above a value (or below it, or
away from it, or within a margin around it). The value is 0, or a null that has an error of its own. With the effect
$e$, the null $e_0$, their standard errors $s$ and $s_0$ and $n$ independent values,

$$t = \frac{e - e_0}{\sqrt{s^2 + s_0^2}}$$

is compared with Student's t, and with Hall's transformation of it where values are skewed: the less sure of the two
counts (`companion.tables.inference`). A correlation, its null and its margin are taken on Fisher's scale,
$\operatorname{artanh} r$. The probabilities behind one verdict, of one claim in one kind of models, are corrected
together (Holm), so that no other claim changes them, and 5 % of the corrected ones decides. In one network a reading is

- **negligible** if the effect is shown to be smaller than the margin, the smallest effect that matters, whatever its
  sign (two one-sided tests);
- else **for** the claim if the effect differs from the null in the direction that is claimed, and **against** it if it
  differs in the other direction;
- else **undecided**, with the effect for which this n has 80 % power.

A reading within a margin is for the claim if the effect is shown to be smaller, and against it if it is shown to be
larger. The quantifier of a claim, which follows from the sentence that is quoted, sets how many outcomes it takes:

- *every*: one that is against it contradicts it; it is reproduced if all are for it;
- *typical*: more than half of all outcomes, with none that is shown to be otherwise;
- *some*: one that is for it reproduces it; it takes all to contradict it.

Then the verdict is

- *reproduced*: so many are for it;
- *contradicted*: so many are against it or negligible, and none is for it; *negligible* where none is against it;
- *depends on the definition*: some reading is for it, another is against it or negligible;
- *depends on the training step*: the same, where those readings are one definition at several steps of training. A
  reading says so itself: `condition` names in what it differs from its sisters, the definition apart;
- *depends on the model*: no reading is so split from another, and in some reading the networks are;
- *inconclusive*: anything else;
- *not measured here*: no reading has numbers.

How often a verdict is *reproduced*, *contradicted* or split without any effect is simulated by `calibration`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from companion.tables.inference import Effect, detectable, tail

CONDITIONS = ("training step",)
"""Conditions in which the readings of one definition may differ."""

REPRODUCED, DEPENDS = "reproduced", "depends on the definition"
ON_MODEL = "depends on the model"
CONTRADICTED, INCONCLUSIVE, MISSING = "contradicted", "inconclusive", "not measured here"
NEGLIGIBLE = "negligible"
ON_CONDITION = {condition: f"depends on the {condition}" for condition in CONDITIONS}
VERDICTS = (REPRODUCED, DEPENDS, *ON_CONDITION.values(), ON_MODEL, CONTRADICTED, NEGLIGIBLE, INCONCLUSIVE, MISSING)
"""All verdicts."""

FOR, AGAINST, UNDECIDED = "for", "against", "undecided"
"""Verdict of one reading in one model, where it is not negligible."""

EVERY, TYPICAL, SOME = QUANTIFIERS = ("every", "typical", "some")
"""Quantifiers of claims."""

DIRECTIONS = ("above", "below", "other", "within")
"""Claims of a reading on its effect: above or below the null, other than it, within a margin around it."""

LEVEL = 0.05


@dataclass
class Evidence:
    """Measured effect for one reading of a claim, and the probabilities that decide it."""

    value: float
    error: float
    """Standard error of the value; of a correlation, on Fisher's scale."""
    n: int
    claims: str
    null: float = 0.0
    null_error: float = 0.0
    margin: float = math.nan
    """Smallest effect that matters, in the effect's unit; NaN where none is stated."""
    limit: float = math.inf
    """Largest value that the effect can have: 1 for a correlation."""
    fisher: bool = False
    """Whether the effect is a correlation."""
    skew: float = 0.0
    """Skewness of the n values whose mean is the effect."""
    freedom: float = math.nan
    """Degrees of freedom of the error; n - 1 where it is NaN."""
    size: Evidence | None = None
    """The effect in the unit of the margin, where that is another unit."""
    corrected: dict[str, float] = field(default_factory=dict)
    """The probabilities, corrected within the verdict; `correct` fills it."""
    family: int = 1
    """Number of readings in the correction."""

    @classmethod
    def of(cls, effect: Effect, claims: str, **more: float) -> Evidence:
        """Build the evidence from an effect."""
        return cls(effect.value, effect.error, effect.n, claims, skew=effect.skew, freedom=effect.freedom, **more)

    @property
    def difference(self) -> float:
        """Effect minus null, of a correlation on Fisher's scale."""
        return self._scaled(self.value) - self._scaled(self.null)

    @property
    def spread(self) -> float:
        """Standard error of the difference, the null's own included."""
        return math.hypot(self.error, self.null_error)

    @functools.cached_property
    def p(self) -> dict[str, float]:
        """Probabilities by hypothesis: `differs`, and with a margin `small` (less than it) and `large` (more)."""
        found = {"differs": min(1.0, 2 * min(self._beyond(0.0, 1), self._beyond(0.0, -1)))}
        if self.size is not None:
            found["small"] = self.size.p["small"]
        elif not math.isnan(self.margin):
            margin = self._scaled(self.margin)
            # Both are two-sided as well: at 5 % the 95 % interval lies on one side of the margin as a whole.
            found["small"] = min(1.0, 2 * max(self._beyond(-margin, 1), self._beyond(margin, -1)))
            if self.claims == "within":
                found["large"] = min(1.0, 2 * min(self._beyond(margin, 1), self._beyond(-margin, -1)))
                del found["differs"]
        return found

    @property
    def detectable(self) -> float:
        """Effect of either sign that this n and this spread find four times out of five, at the level of its family."""
        far = detectable(self.spread, self._freedom, self._lean, LEVEL / self.family)
        return math.tanh(far) if self.fisher else far

    @property
    def outcome(self) -> str:
        """The verdict of the reading, once its probabilities are corrected."""
        sure = {name for name, p in self.corrected.items() if p < LEVEL}
        if self.claims == "within":
            return FOR if "small" in sure else AGAINST if "large" in sure else UNDECIDED
        if "small" in sure:
            return NEGLIGIBLE
        if "differs" not in sure:
            return UNDECIDED
        agrees = {"above": self.difference > 0, "below": self.difference < 0, "other": True}[self.claims]
        return FOR if agrees else AGAINST

    def _beyond(self, bound: float, side: int) -> float:
        """Probability, if the truth is the bound, of a difference so far above it (side 1) or below it (-1)."""
        distance = side * (self.difference - bound)
        if self.spread == 0:
            return float(distance <= 0)
        return tail(distance / self.spread, self._freedom, side * self._lean)

    @property
    def _lean(self) -> float:
        """Skewness of the difference; what the null's error adds is not skewed."""
        return self.skew * (self.error / self.spread) ** 3 / self.n**0.5 if self.spread else 0.0

    @property
    def _freedom(self) -> float:
        return max(1.0, self.n - 1 if math.isnan(self.freedom) else self.freedom)

    def _scaled(self, value: float) -> float:
        return float(np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12))) if self.fisher else value


def correct(family: Sequence[Evidence]) -> None:
    """Correct the probabilities behind one verdict for the number of its readings, in place (Holm)."""
    slots = [(evidence, name, p) for evidence in family for name, p in evidence.p.items()]
    ps = np.array([p for *_, p in slots], dtype=float)
    order = np.argsort(ps)
    for evidence in family:
        evidence.corrected, evidence.family = {}, len(family)
    # Of one reading's hypotheses (no effect; one that matters) at most one is true: Shaffer's restriction of Holm's.
    left = np.minimum(len(family), len(ps) - np.arange(len(ps)))
    for place, value in zip(order, np.maximum.accumulate(np.minimum(1.0, ps[order] * left)), strict=True):
        evidence, name, _ = slots[place]
        evidence.corrected[name] = float(value)


def verdict(readings: Sequence[Sequence[str]], conditions: Sequence[str | None], quantifier: str) -> str:
    """Join outcomes, a list of one per network for each reading, to a verdict; readings may name a condition."""
    outcomes = [outcome for one in readings for outcome in one]
    yes, no, little = (outcomes.count(outcome) for outcome in (FOR, AGAINST, NEGLIGIBLE))
    if not outcomes:
        return MISSING
    if quantifier == EVERY and no:
        return CONTRADICTED
    if quantifier == SOME and yes:
        return REPRODUCED
    if yes and no + little:
        return _split(readings, conditions)
    enough = len(outcomes) // 2 + 1 if quantifier == TYPICAL else len(outcomes)
    if yes >= enough:
        return REPRODUCED
    if no + little >= enough:
        return CONTRADICTED if no else NEGLIGIBLE
    return INCONCLUSIVE


def _split(readings: Sequence[Sequence[str]], conditions: Sequence[str | None]) -> str:
    """Return the verdict on dependence: on a condition that differs between readings, or else on the networks."""
    sides = [{outcome == FOR for outcome in one if outcome != UNDECIDED} for one in readings]
    if {True} in sides and {False} in sides:
        differing = {condition for condition, side in zip(conditions, sides, strict=True) if side}
        return ON_CONDITION.get(differing.pop(), DEPENDS) if len(differing) == 1 else DEPENDS
    return ON_MODEL
