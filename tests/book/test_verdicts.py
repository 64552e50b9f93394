"""The rule of the verdicts: what it says of effects whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import verdicts
from verdicts import AGAINST, FOR, NEGLIGIBLE, UNDECIDED, Evidence

from companion.tables import regularised
from companion.tables.inference import effect_of, tail
from companion.tables.statistics import correlation_over


def judged(*several: Evidence) -> list[str]:
    verdicts.correct(several)
    return [evidence.outcome for evidence in several]


def test_p_values_are_those_of_t_tests():
    values = np.random.default_rng(0).normal(0.3, 1.0, 12)
    evidence = Evidence(values.mean(), scipy.stats.sem(values), 12, "above", null=0.1)
    assert evidence.p["differs"] == pytest.approx(scipy.stats.ttest_1samp(values, 0.1).pvalue)
    values = np.random.default_rng(1).normal(0.02, 0.3, 40)
    above = scipy.stats.ttest_1samp(values, -0.2, alternative="greater").pvalue
    below = scipy.stats.ttest_1samp(values, 0.2, alternative="less").pvalue
    evidence = Evidence(values.mean(), scipy.stats.sem(values), 40, "within", margin=0.2)
    assert evidence.p["small"] == pytest.approx(2 * max(above, below)) and "differs" not in evidence.p


def test_null_has_its_error_and_size_can_overrule():
    exact, blurred = Evidence(0.1, 0.01, 30, "above"), Evidence(0.1, 0.01, 30, "above", null_error=0.1)
    assert blurred.spread == pytest.approx(math.hypot(0.01, 0.1))
    assert judged(exact) == [FOR] and judged(blurred) == [UNDECIDED]
    assert judged(Evidence(0.1, 0.0, 5, "above"), Evidence(0.0, 0.0, 5, "above")) == [FOR, UNDECIDED]
    size = Evidence(0.0021, 0.0002, 200, "other", margin=0.005)
    close = {"claims": "other", "margin": 0.1, "fisher": True}
    assert judged(Evidence(0.33, 0.07, 200, **close)) == [FOR]
    assert judged(Evidence(0.33, 0.07, 200, size=size, **close)) == [NEGLIGIBLE]


def test_direction_decides_and_no_effect_needs_a_margin():
    decided = {
        ("above", 1.0): FOR, ("above", -1.0): AGAINST, ("above", 0.1): UNDECIDED,
        ("below", -1.0): FOR, ("below", 1.0): AGAINST, ("below", -0.1): UNDECIDED,
        ("other", 1.0): FOR, ("other", -1.0): FOR, ("other", 0.1): UNDECIDED,
    }  # fmt: skip
    assert {(claims, value): judged(Evidence(value, 0.1, 20, claims))[0] for claims, value in decided} == decided
    decided = {(0.001, 0.001): FOR, (0.05, 0.001): AGAINST, (0.0098, 0.001): UNDECIDED, (0.0, 1.0): UNDECIDED}
    assert {key: judged(Evidence(*key, 20, "within", margin=0.01))[0] for key in decided} == decided


@pytest.mark.parametrize("claims", ["above", "below", "other"])
def test_effect_within_the_margin_is_negligible(claims):
    tiny = Evidence(0.002, 0.0002, 50, claims, margin=0.01)
    assert tiny.p["differs"] < 1e-6 and judged(tiny) == [NEGLIGIBLE]
    assert judged(Evidence(-0.002, 0.0002, 50, claims, margin=0.01)) == [NEGLIGIBLE]
    assert judged(Evidence(0.002, 0.0002, 50, "below", margin=0.001)) == [AGAINST]
    assert judged(Evidence(0.002, 0.1, 50, claims, margin=0.01)) == [UNDECIDED]


def test_correlations_are_judged_on_the_fisher_scale():
    x, y = np.random.default_rng(3).normal(size=(2, 14)) + np.random.default_rng(4).normal(size=14)
    effect = correlation_over(x, y)
    evidence = Evidence.of(effect, "above", null=0.2, margin=0.1, fisher=True)
    z, error, freedom = np.arctanh(effect.value) - np.arctanh(0.2), effect.error, effect.freedom
    assert evidence.difference == pytest.approx(z)
    assert evidence.p["differs"] == pytest.approx(2 * scipy.stats.t.sf(abs(z) / error, freedom))
    low, high = ((z - side * np.arctanh(0.1)) / error for side in (-1, 1))
    small = max(scipy.stats.t.cdf(high, freedom), scipy.stats.t.sf(low, freedom))
    assert evidence.p["small"] == pytest.approx(min(1, 2 * small))
    assert 0 < evidence.detectable < 1


@pytest.mark.parametrize("side", [1, -1])
def test_skewed_values_use_the_more_conservative_test(side):
    values = side * (np.random.default_rng(5).exponential(size=12) - 2)
    effect = effect_of(values)
    p = Evidence.of(effect, "other").p["differs"]
    assert p > scipy.stats.ttest_1samp(values, 0).pvalue
    assert (p < 0.05) == (not effect.low <= 0 <= effect.high)
    # With the null's error beside it, less of the whole is skewed.
    half = Evidence.of(effect, "other", null_error=effect.error)
    t, lean = half.difference / half.spread, effect.skew / 8**0.5 / 12**0.5
    assert half.p["differs"] == pytest.approx(2 * tail(abs(t), 11, np.sign(t) * lean))


def test_holm_corrects_by_readings_not_by_hypotheses():
    several = [Evidence(value, 0.1, 25, "above") for value in (0.29, 0.22, 0.4, 0.01)]
    alone = judged(Evidence(0.22, 0.1, 25, "above"))
    outcomes = judged(*several)
    p = sorted(evidence.p["differs"] for evidence in several)
    expected = np.minimum(1, np.maximum.accumulate([p[0] * 4, p[1] * 3, p[2] * 2, p[3]]))
    assert sorted(e.corrected["differs"] for e in several) == pytest.approx(expected)
    assert alone == [FOR] and outcomes == [FOR, UNDECIDED, FOR, UNDECIDED]
    assert {evidence.family for evidence in several} == {4}
    in_family = several[0].detectable
    judged(several[0])
    assert several[0].detectable < in_family
    both = [Evidence(0.5, 0.1, 25, "above", margin=0.1), Evidence(0.001, 0.01, 25, "above", margin=0.1)]
    judged(*both)
    first, second = both[0], both[1]
    p = sorted([*first.p.values(), *second.p.values()])
    expected = np.minimum(1, np.maximum.accumulate([p[0] * 2, p[1] * 2, p[2] * 2, p[3]]))
    assert sorted([*first.corrected.values(), *second.corrected.values()]) == pytest.approx(expected)
    assert [first.outcome, second.outcome] == [FOR, NEGLIGIBLE]


def test_detectable_effect_has_eighty_percent_power():
    n, sigma = 12, 1.0
    size = Evidence(0.0, sigma / np.sqrt(n), n, "above").detectable
    draws = np.random.default_rng(2).normal(size, sigma, (4000, n))
    found = scipy.stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)
    t = scipy.stats.t(n - 1)
    assert size == pytest.approx((t.ppf(0.975) + t.ppf(0.8)) / n**0.5)


@pytest.mark.parametrize("family", [1, 44])
@pytest.mark.parametrize("begin", [0, 300])
def test_detectable_effect_is_significant_despite_skew(begin, family):
    runs = regularised.finished(regularised.regularised())
    effect = regularised.over_sham(runs)[f"encourage0.3-from{begin}-over-sham"]
    assert effect.skew > 2
    spare = scipy.stats.t.ppf(0.8, 5) * effect.error
    size = replace(Evidence.of(effect, "other"), family=family).detectable

    def p(value):
        return Evidence.of(effect._replace(value=value), "other").p["differs"] * family

    # Below the mean, away from the long tail, the test takes more; there it just finds the effect without luck.
    assert p(size) < p(-size) < 0.05 and p(spare - size) == pytest.approx(0.05)
    plain = replace(Evidence.of(effect, "other"), family=family, skew=0.0).detectable
    assert size > 2 * plain and p(plain) < 0.05 < p(-plain)


STEP = "training step"


def test_readings_combine_into_a_verdict_by_the_quantifier():
    readings = {
        ((FOR, None), (FOR, None)): "reproduced",
        ((AGAINST, None),): "contradicted",
        ((NEGLIGIBLE, None), (NEGLIGIBLE, None)): "negligible",
        ((NEGLIGIBLE, None), (AGAINST, None)): "contradicted",
        ((FOR, None), (AGAINST, None), (UNDECIDED, None)): "depends on the definition",
        ((FOR, None), (NEGLIGIBLE, None)): "depends on the definition",
        ((FOR, None), (UNDECIDED, None)): "inconclusive",
        ((AGAINST, None), (UNDECIDED, None)): "inconclusive",
        ((UNDECIDED, None),): "inconclusive",
        (): "not measured here",
        ((FOR, STEP), (FOR, STEP), (AGAINST, STEP)): "depends on the training step",
        # An undecided reading of another definition takes no part in the split.
        ((FOR, STEP), (AGAINST, STEP), (UNDECIDED, None)): "depends on the training step",
        ((FOR, STEP), (AGAINST, STEP), (FOR, None)): "depends on the definition",
        ((FOR, STEP), (AGAINST, None)): "depends on the definition",
        ((FOR, STEP), (UNDECIDED, STEP)): "inconclusive",
    }
    quantified = {  # by every, typical and some
        (FOR, FOR, FOR): ["reproduced", "reproduced", "reproduced"],
        (FOR, FOR, UNDECIDED): ["inconclusive", "reproduced", "reproduced"],
        (FOR, UNDECIDED, UNDECIDED): ["inconclusive", "inconclusive", "reproduced"],
        (FOR, FOR, AGAINST): ["contradicted", "depends on the definition", "reproduced"],
        (UNDECIDED, UNDECIDED, AGAINST): ["contradicted", "inconclusive", "inconclusive"],
        (AGAINST, AGAINST, UNDECIDED): ["contradicted", "contradicted", "inconclusive"],
        (AGAINST, NEGLIGIBLE, AGAINST): ["contradicted", "contradicted", "contradicted"],
        (NEGLIGIBLE, NEGLIGIBLE, UNDECIDED): ["inconclusive", "negligible", "inconclusive"],
        (FOR, NEGLIGIBLE, UNDECIDED): ["depends on the definition", "depends on the definition", "reproduced"],
    }

    def of(readings, quantifier="typical"):
        return verdicts.verdict([[one] for one, _ in readings], [condition for _, condition in readings], quantifier)

    assert {readings: of(readings) for readings in readings} == readings
    assert {*readings.values()} <= {*verdicts.VERDICTS}
    plain = {outcomes: [(one, None) for one in outcomes] for outcomes in quantified}
    assert {outcomes: [of(plain[outcomes], q) for q in verdicts.QUANTIFIERS] for outcomes in quantified} == quantified


def test_disagreement_within_a_reading_depends_on_the_model():
    def of(*readings):
        return verdicts.verdict(readings, [None] * len(readings), "typical")

    assert of([FOR, AGAINST]) == of([FOR, NEGLIGIBLE], [NEGLIGIBLE, UNDECIDED]) == "depends on the model"
    assert of([FOR, FOR], [AGAINST, UNDECIDED]) == "depends on the definition"
    assert of([FOR, FOR, UNDECIDED]) == "reproduced" and of([FOR, UNDECIDED]) == "inconclusive"
