"""Numbers of public decoders that do not ship: kept line by line, and read back under the names that they had."""

import numpy as np
import pytest

from companion.tables import decoders
from companion.tables.inference import effect_of
from coupling_lib.models import registry

EFFECT = effect_of([0.1, 0.2, 0.4])
ENDS = {f"-{end}": getattr(EFFECT, end) for end in ("low", "high", "error", "n", "skew")}
NULLS = {"nulls-coupling-null": 0.052, "nulls-coupling-null-least": 0.05, "nulls.model": "gemma3-270m"}


@pytest.fixture
def table(tmp_path):
    """A function that writes one decoder's numbers: an effect under a name, and others."""

    def write(kind, name, others):
        numbers = {name + end: value for end, value in ({"": EFFECT.value} | ENDS).items()} | others
        decoders.replace_rows(decoders.rows_of("gemma3-270m", kind, numbers), tmp_path / "decoders.csv")
        return tmp_path / "decoders.csv", numbers

    return write


def test_numbers_are_read_back_under_their_names(table):
    file, numbers = table("nulls", "nulls-stricter-coupled", NULLS)
    found = decoders.numbers_of("gemma3-270m", "nulls", file)
    assert found.pop("nulls.model") == numbers.pop("nulls.model") and found == pytest.approx(numbers, rel=1e-5)
    assert decoders.numbers_of("gemma3-270m", "depth", file) == {} == decoders.numbers_of("x", "nulls", file)
    assert decoders.numbers_of("gemma3-270m", "nulls", file.with_name("none.csv")) == {}
    assert len(decoders.decoders(file)) == 4
    other = decoders.rows_of("qwen2.5-coder-0.5b", "nulls", {"nulls-k": 10})
    assert decoders.replace_rows(decoders.rows_of("gemma3-270m", "nulls", {"nulls-k": 12}) + other, file) == 2
    assert decoders.numbers_of("gemma3-270m", "nulls", file) == {"nulls-k": 12}
    assert decoders.decoders(file)["model"].tolist() == ["gemma3-270m", "qwen2.5-coder-0.5b"]


BY_CHANCE = {"tokens-between-self-by-chance": 0.03, "tokens-between-self-traceless-part-conjugated": 0.02}
QUESTIONS = {
    "whole beyond conjugation": ("nulls", "nulls-stricter-coupled", NULLS, 0),
    "left and right": ("spectra", "spectra-aligned", {"spectra-alignment-null": 0.03}, 0.03),
    "self-coupling": ("spectra", "tokens-shared-coupled-between-self", BY_CHANCE, 0.03),  # the larger of two nulls
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_is_answered_by_effect_over_null(question, table):
    *numbers, null = QUESTIONS[question]
    answers = decoders.answers(decoders.decoders(table(*numbers)[0]))
    assert list(answers) == [(question, "gemma3-270m")] and all(registry.lookup(name) for name in decoders.MODELS)
    effect = answers[question, "gemma3-270m"]
    expected = (*np.subtract(EFFECT[:3], null), EFFECT.error, 3, EFFECT.skew)
    np.testing.assert_allclose(effect[:6], expected, rtol=1e-5)
