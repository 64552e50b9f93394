"""Numbers of public decoders that do not ship: kept line by line, and read back under the names that they had."""

import numpy as np
import pytest

from companion.tables import decoders
from companion.tables.inference import effect_of
from coupling_lib.models import registry

EFFECT = effect_of([0.1, 0.2, 0.4])
NUMBERS = {
    "nulls-stricter-coupled": EFFECT.value,
    **{f"nulls-stricter-coupled-{end}": getattr(EFFECT, end) for end in ("low", "high", "error", "n", "skew")},
    "nulls-coupling-null": 0.052,
    "nulls-coupling-null-least": 0.05,
    "nulls.model": "gemma3-270m",
}


@pytest.fixture
def table(tmp_path):
    decoders.replace_rows(decoders.rows_of("gemma3-270m", "nulls", NUMBERS), tmp_path / "decoders.csv")
    return tmp_path / "decoders.csv"


def test_numbers_are_read_back_under_their_names(table):
    found = decoders.numbers_of("gemma3-270m", "nulls", table)
    assert found.keys() == NUMBERS.keys() and found.pop("nulls.model") == "gemma3-270m"
    assert all(value == pytest.approx(NUMBERS[name], rel=1e-5) for name, value in found.items())
    assert decoders.numbers_of("gemma3-270m", "depth", table) == {} == decoders.numbers_of("x", "nulls", table)
    assert decoders.numbers_of("gemma3-270m", "nulls", table.with_name("none.csv")) == {}
    assert len(decoders.decoders(table)) == 4
    other = decoders.rows_of("qwen2.5-coder-0.5b", "nulls", {"nulls-k": 10})
    assert decoders.replace_rows(decoders.rows_of("gemma3-270m", "nulls", {"nulls-k": 12}) + other, table) == 2
    assert decoders.numbers_of("gemma3-270m", "nulls", table) == {"nulls-k": 12}
    assert decoders.decoders(table)["model"].tolist() == ["gemma3-270m", "qwen2.5-coder-0.5b"]


def test_question_is_answered_by_effect_of_registered_model(table):
    ((key, effect),) = decoders.answers(decoders.decoders(table)).items()
    assert key == ("whole beyond conjugation", "gemma3-270m") and effect.n == 3
    assert np.allclose(effect[:4], EFFECT[:4], rtol=1e-5) and effect.skew == pytest.approx(EFFECT.skew, rel=1e-5)
    assert all(registry.lookup(name) for name in decoders.MODELS)


@pytest.mark.parametrize(
    ("question", "name", "nulls"),
    [
        ("left and right", "spectra-aligned", {"spectra-alignment-null": 0.03}),
        (
            "self-coupling",
            "tokens-shared-coupled-between-self",
            {"tokens-between-self-by-chance": 0.03, "tokens-between-self-traceless-part-conjugated": 0.02},
        ),
    ],
)
def test_larger_null_is_subtracted_from_the_effect(question, name, nulls, tmp_path):
    ends = ("low", "high", "error", "n", "skew")
    numbers = {name: EFFECT.value} | nulls | {f"{name}-{end}": getattr(EFFECT, end) for end in ends}
    decoders.replace_rows(decoders.rows_of("gemma3-270m", "spectra", numbers), tmp_path / "decoders.csv")
    effect = decoders.answers(decoders.decoders(tmp_path / "decoders.csv"))[question, "gemma3-270m"]
    assert np.allclose(effect[:3], np.subtract(EFFECT[:3], 0.03), rtol=1e-5)
    assert effect.error == pytest.approx(EFFECT.error, rel=1e-5)
