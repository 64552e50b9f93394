r"""The rule that turns measured effects into verdicts.

Each claim has one or more readings, each a statement about one effect: that it lies above a value (or below it, or away
from it, or within a margin around it). The value is 0, or a null that has an error of its own. With the effect $e$, the
null $e_0$, their standard errors $s$ and $s_0$ and $n$ independent values,

$$t = \frac{e - e_0}{\sqrt{s^2 + s_0^2}}$$

is compared with Student's t, and with Hall's transformation of it where values are skewed: the less sure of the two
counts (`companion.tables.inference`). A correlation, its null and its margin are taken on Fisher's scale,
$\operatorname{artanh} r$. How often this is wrong is measured by `calibration`. All probabilities of the page are
corrected together (Benjamini and Hochberg), and 5 % of the corrected ones decides:

- a reading is **for** the claim if the effect differs from the null in the direction that is claimed;
- it is **against** it if it differs in the other direction, or if it is shown to be smaller than a margin stated
  beforehand, however sure its sign (two one-sided tests);
- else it is **undecided**, and what this n could have seen is said: the effect that is found four times out of five.

Of several models a reading is for (against) the claim if it is so in each of them; if it is for it in one and against
it in another, the models differ. Then the verdict is

- *reproduced*: all readings are for it;
- *contradicted*: all readings are against it;
- *depends on the definition*: some reading is for it, another against it;
- *depends on the training step*: the same, where those readings are one definition at several steps of training. A
  reading says so itself: `condition` names in what it differs from its sisters, the definition apart. If any reading
  that is for or against names no condition or another one, definitions differ as well, and the former verdict stands;
- *depends on the model*: no reading is so split from another, and in some reading the models differ;
- *inconclusive*: anything else;
- *not measured here*: no reading has numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from companion.tables.inference import Effect, tail

CONDITIONS = ("training step",)
"""In what the readings of one definition may differ."""

REPRODUCED, DEPENDS = "reproduced", "depends on the definition"
ON_MODEL = "depends on the model"
CONTRADICTED, INCONCLUSIVE, MISSING = "contradicted", "inconclusive", "not measured here"
ON_CONDITION = {condition: f"depends on the {condition}" for condition in CONDITIONS}
VERDICTS = (REPRODUCED, DEPENDS, *ON_CONDITION.values(), ON_MODEL, CONTRADICTED, INCONCLUSIVE, MISSING)
"""All verdicts."""

FOR, AGAINST, UNDECIDED = "for", "against", "undecided"
"""What one reading says in one model."""
DIFFERENT = "the models differ"
"""What one reading says in several models of which one is for the claim and another against it."""

DIRECTIONS = ("above", "below", "other", "within")
"""What a reading claims of its effect: above or below the null, other than it, within a margin around it."""

LEVEL = 0.05


@dataclass
class Evidence:
    """What was measured for one reading of a claim, and the probabilities that decide it."""

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
    """Skewness of the n values that the effect is the mean of."""
    freedom: float = math.nan
    """Degrees of freedom of the error; n - 1 where it is NaN."""
    corrected: dict[str, float] = field(default_factory=dict)
    """The probabilities, corrected for all of the page; `correct` fills it."""

    @classmethod
    def of(cls, effect: Effect, claims: str, **more: float) -> Evidence:
        """Take the evidence from an effect."""
        return cls(effect.value, effect.error, effect.n, claims, skew=effect.skew, freedom=effect.freedom, **more)

    @property
    def difference(self) -> float:
        """Effect minus null, of a correlation on Fisher's scale."""
        return self._scaled(self.value) - self._scaled(self.null)

    @property
    def spread(self) -> float:
        """Standard error of the difference, the null's own included."""
        return math.hypot(self.error, self.null_error)

    @property
    def p(self) -> dict[str, float]:
        """Probabilities by hypothesis: `differs`, and with a margin `small` (less than it) and `large` (more)."""
        found = {"differs": min(1.0, 2 * min(self._beyond(0.0, 1), self._beyond(0.0, -1)))}
        if not math.isnan(self.margin):
            margin = self._scaled(self.margin)
            # Both are two-sided as well: at 5 % the 95 % interval lies on one side of the margin as a whole.
            found["small"] = min(1.0, 2 * max(self._beyond(-margin, 1), self._beyond(margin, -1)))
            if self.claims == "within":
                found["large"] = min(1.0, 2 * min(self._beyond(margin, 1), self._beyond(-margin, -1)))
                del found["differs"]
        return found

    @property
    def detectable(self) -> float:
        """Effect that this n and this spread find four times out of five, at the uncorrected level."""
        far = float((student.ppf(1 - LEVEL / 2, self._freedom) + student.ppf(0.8, self._freedom)) * self.spread)
        return math.tanh(far) if self.fisher else far

    @property
    def outcome(self) -> str:
        """What the reading says, once its probabilities are corrected."""
        sure = {name for name, p in self.corrected.items() if p < LEVEL}
        if self.claims == "within":
            return FOR if "small" in sure else AGAINST if "large" in sure else UNDECIDED
        if "small" in sure:
            return AGAINST
        if "differs" not in sure:
            return UNDECIDED
        agrees = {"above": self.difference > 0, "below": self.difference < 0, "other": True}[self.claims]
        return FOR if agrees else AGAINST

    def _beyond(self, bound: float, side: int) -> float:
        """Probability, if the truth is the bound, of a difference so far above it (side 1) or below it (-1)."""
        distance = side * (self.difference - bound)
        if self.spread == 0:
            return float(distance <= 0)
        # What the null's error adds is not skewed.
        lean = side * self.skew * (self.error / self.spread) ** 3 / self.n**0.5
        return tail(distance / self.spread, self._freedom, lean)

    @property
    def _freedom(self) -> float:
        return max(1.0, self.n - 1 if math.isnan(self.freedom) else self.freedom)

    def _scaled(self, value: float) -> float:
        return float(np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12))) if self.fisher else value


def correct(all_evidence: Iterable[Evidence]) -> None:
    """Correct every probability of a page for the number of them, in place."""
    slots = [(evidence, name, p) for evidence in all_evidence for name, p in evidence.p.items()]
    if slots:
        adjusted = false_discovery_control([p for *_, p in slots])
        for (evidence, name, _), value in zip(slots, adjusted, strict=True):
            evidence.corrected[name] = float(value)


def across(outcomes: Sequence[str]) -> str:
    """Join what one reading says in several models; a model that is undecided leaves open what the others say."""
    if {FOR, AGAINST} <= set(outcomes):
        return DIFFERENT
    return outcomes[0] if len(set(outcomes)) == 1 else UNDECIDED


def verdict(readings: Sequence[str], conditions: Sequence[str | None]) -> str:
    """Join the outcomes of readings to a verdict; each may name the condition in which it differs from its sisters."""
    said = set(readings)
    if not said:
        return MISSING
    if {FOR, AGAINST} <= said:
        named = zip(readings, conditions, strict=True)
        differing = {condition for outcome, condition in named if outcome in (FOR, AGAINST)}
        return ON_CONDITION.get(differing.pop(), DEPENDS) if len(differing) == 1 else DEPENDS
    if DIFFERENT in said:
        return ON_MODEL
    return {frozenset([FOR]): REPRODUCED, frozenset([AGAINST]): CONTRADICTED}.get(frozenset(said), INCONCLUSIVE)
