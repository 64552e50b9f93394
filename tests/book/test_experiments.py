"""Predictions beside outcomes: nothing is judged before its time, and then by the rule."""

import numpy as np
from claims import experiments
from experiments import KINDS, _written, outcomes

from companion.tables import regularised
from tests.companion.tables.test_quality_table import READING, made_up

EXPERIMENT = experiments()["quality"] | {"readings": [READING]}


def test_predictions_stand_beside_outcomes_once_all_is_measured():
    state, text = _written(EXPERIMENT, "quality", made_up(0.9, -0.9, n=25))
    assert state.endswith(": 25 of 26 models are measured, and no question is answered yet.")
    assert "**25 of 26 models are measured.**" in text
    assert text.count("not judged yet") == len(EXPERIMENT["question"]) and "p\u00a0=" not in text
    state, text = _written(EXPERIMENT, "quality", made_up(0.9, -0.9))
    assert state.endswith(": 26 of 26 models are measured, and 6 of 6 questions are answered.")
    assert all(word in text for word in ("question and estimand", "expected", "smallest that is seen", "outcome"))
    assert "not judged yet" not in text and "26 of 26" in text


def test_questions_get_the_registered_conclusion_of_their_outcome():
    asked = {question["name"]: question for question in EXPERIMENT["question"]}
    found = outcomes(EXPERIMENT, "quality", made_up(0.9, -0.9))
    assert set(found) == set(asked)
    for name, side in (("early", "above"), ("end", "below")):
        (line,), answer = found[name]
        assert line.endswith(f", {side}") and answer == asked[name][f"if_{side}"]
    lines, conclusion = found["equal steps"]
    assert len(lines) == 4 and all(line.startswith("coupling, step ") for line in lines)
    assert conclusion == f"Readings or steps disagree. {asked['equal steps']['if_neither']}"
    _, conclusion = outcomes(EXPERIMENT, "quality", made_up(0.9, 0.0))["equal steps"]
    assert conclusion == "Readings or steps disagree. Some are above, and none has the other sign."


def test_where_nothing_is_related_nothing_is_shown():
    shown = [outcomes(EXPERIMENT, "quality", made_up(0.0, 0.0, seed=seed))["end"][0] for seed in range(20)]
    assert np.mean([line.endswith(", neither") for (line,) in shown]) >= 0.9


def test_an_experiment_counts_what_is_independent_in_it():
    rows = regularised.regularised()
    state, text = _written(experiments()["cause"], "cause", rows)
    assert "6 of 6 seeds are measured, and 10 of 10 questions are answered." in state
    assert "**6 of 6 seeds are measured.**" in text and "not judged yet" not in text
    state, text = _written(experiments()["cause"], "cause", rows[rows["seed"] < 5])
    assert "5 of 6 seeds are measured, and no question is answered yet." in state and "p\u00a0=" not in text


def test_decoders_show_what_is_known_and_signs():
    decoders = experiments()["decoders"], "decoders", KINDS["decoders"].rows()
    _, text = _written(*decoders)
    (line,) = (line for line in text.splitlines() if "own lens**" in line)
    assert "not judged yet" in line and "The reason above was wrong" in line and text.count("[is nearer]") == 1
    assert "smallest that is seen: 3.1 (nat), or 2.2 if values are skewed" in line
    lines, _ = outcomes(*decoders)["four bits"]
    (gemma,) = (line for line in lines if line.startswith("gemma3-270m"))
    assert gemma.startswith("gemma3-270m: -0.0030 (-0.0050 to -0.0010)") and gemma.endswith(", below")
