"""Predictions: each is about a claim, says what follows from every outcome, and what its n can see is simulated."""

import claims
import power
import pytest

from companion.tables.statistics import correlation_over

CLAIMS = {words for claim in claims.read_claims() for words in (claim["claim"], *claim.get("former", ()))}
MANY = 60


def questions(least_long=None):
    """Every question with its experiment; thorough are those about so many rows or more."""
    for name, experiment in power.experiments().items():
        for question in experiment["question"]:
            long = least_long and power.Design.of(experiment, question).n >= least_long
            marks = [pytest.mark.thorough] if long else []
            yield pytest.param(experiment, question, id=f"{name}, {question['name']}", marks=marks)


@pytest.mark.parametrize(("experiment", "question"), questions())
def test_a_prediction_is_complete(experiment, question):
    assert question["claim"] in {*CLAIMS, ""} and question["margin"] > 0
    assert (question["unit"] == "correlation") == ("statistic" not in question) == ("spread" not in question)
    assert all(len(question[name]) > 30 for name in ("estimand", "if_above", "if_below", "if_neither"))
    assert question["claims"] in ("above", "below", "other", "within")
    assert any(word in question["expected"] for word in ("above", "below", "neither"))
    assert experiment["judged"] and experiment["readings"] and 0 < question["level"] <= power.LEVEL


# Leaving out one of many rows at a time takes long.
@pytest.mark.parametrize(("experiment", "question"), questions(least_long=MANY))
def test_registered_smallest_effect_has_eighty_percent_power(experiment, question):
    design = power.Design.of(experiment, question)
    for shape, column in power.SHAPES.items():
        draws = 250  # their standard error is 0.025
        share = power.power_of(question[column] / question.get("spread", 1.0), design, shape, draws)
        assert share == pytest.approx(power.POWER, abs=0.1), shape


@pytest.mark.thorough
def test_level_holds_and_power_grows_with_n():
    for design in (power.Design(26, 0), *(power.Design(26, 0, statistic=name) for name in ("mean", "median"))):
        assert power.power_of(0.0, design, "normal", 200) < 0.07  # one direction of two
        assert power.smallest(design._replace(n=60), "normal", 60) < power.smallest(design, "normal", 60)
    assert correlation_over([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]).value == pytest.approx(0.8)
