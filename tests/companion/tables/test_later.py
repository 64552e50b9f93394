"""Whether coupling rises again: what is asked of the long runs, on courses whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from companion.tables import later, phases
from companion.training.later import STEPS
from coupling_lib.measures.random_bases import null_spreads

COURSES = {"long-neox": (0.05, 0.35, 0.20, 0.10, 0.08, 0.15), "long-llama": (0.05, 0.30, 0.22, 0.09, 0.12, 0.20)}


def table(courses: dict[str, tuple[float, ...]] = COURSES, prompts: int = 6) -> pd.DataFrame:
    """Two models at six steps; prompts differ in level alone, and the traceless part is half of the whole."""
    rows = [
        {"model": model, "step": step, "coupling": value, "shared": value / 2}
        for model, course in courses.items()
        for step, value in zip((0, *STEPS[1:10:2]), course, strict=True)
    ]
    made = pd.DataFrame(rows)
    parts = {f"{part}_p{i}": made[part] + i / 100 for i in range(prompts) for part in ("coupling", "shared")}
    parts |= {reading: 1 - made[part] for part, reading in phases.READINGS.items()}
    parts |= dict.fromkeys(later.REPORTED[3:], made["step"] / 7.0) | {"million_tokens": 4096e-6 * made["step"]}
    parts |= {"tokens": 4096 * made["step"], "normalized_miscoupling_k10_null": 0.95}
    return made.assign(**parts, blocks=6, parameters=200_000)


TABLE = table()


def test_each_model_starts_where_the_other_is_lowest():
    found, rises = later.answers(TABLE), "coupling rises again"
    # long-neox is lowest a step later than long-llama, whose own lowest point would show a rise of .11.
    neox, llama = f"long-neox, from step {STEPS[5]:,}", f"long-llama, from step {STEPS[7]:,}"
    keys = ((rises, neox), (rises, llama), ("the shared part rises again", llama))
    assert [found[key].value for key in keys] == pytest.approx([0.15 - 0.10, 0.20 - 0.12, 0.04])
    own = phases.finished(phases.phases()).pivot(index="model", columns="step", values="coupling")
    scatter, effect = np.std(own[1642] - own[516], ddof=1), found[rises, neox]
    assert effect.error == pytest.approx(scatter, rel=1e-6) and effect.freedom == 5
    assert effect.high - effect.value == pytest.approx(2.5706 * scatter, rel=1e-3)


def test_coupling_that_falls_throughout_rises_by_zero():
    falling = table({model: (0.05, 0.35, 0.20, 0.15, 0.10, 0.08) for model in COURSES})
    assert {effect.value for effect in later.answers(falling).values()} == {0.0}
    # What lies before the peak is no lowest step after it.
    assert later.lowest_step(falling.query("model == 'long-neox'"), "coupling") == STEPS[9]


def test_numbers_are_of_peak_lowest_and_last_step():
    found, prompts = later.numbers_of(TABLE), np.std(np.arange(6) / 100, ddof=1) / 6**0.5
    expected = {
        "long-neox-peak-step": STEPS[1], "long-neox-lowest-step": STEPS[7],
        "long-neox-last-coupling": 0.15, "long-neox-before-coupling": 0.08, "long-llama-shared-change": 0.04,
        "long-neox-beyond": 0.15 + 0.025 - 0.05,  # prompts lie up to .05 above the course, so .025 in the mean
        "long-neox-beyond-error": np.hypot(null_spreads(10, 6)["all pairs"], prompts),
    }  # fmt: skip
    assert {name: found[f"later-{name}"] for name in expected} == pytest.approx(expected)
    assert later.numbers_of(TABLE.query("model == 'long-neox'")) == {}


def test_shipped_models_fall_to_level_of_chance():
    shipped = later.later()
    assert shipped.groupby("model").size().to_dict() == dict.fromkeys(COURSES, 13)
    for model, own in shipped.groupby("model"):
        last = own.iloc[-1]
        assert later.lowest_step(own, "coupling") == last["step"] == STEPS[-1]
        assert own["coupling"].max() > 5 * (1 - last["normalized_miscoupling_k10_null"]), model
        near = [last[f"pair_{i + a}_{i + 1 - a}"] for i in range(5) for a in (0, 1)]
        assert last["near"] == pytest.approx(np.mean(near))
        assert abs(last["coupling"] - last.filter(like="pair_").mean()) < 1e-6
        assert later.beyond_chance(last).low < 0 < later.beyond_chance(last).high < 0.02


def test_clocks_count_tokens_and_tokens_per_parameter():
    own = phases.phases().query("model == 'nano-neox'")
    found, last = later.clocks(own), own.sort_values("step").iloc[-1]
    # 2,097,152 tokens at each of 143,000 steps are the 300 billion that the makers state.
    assert found["pythia-12b-last-million-tokens"] == pytest.approx(299_892.736)
    assert found["pythia-12b-first-million-tokens"] == pytest.approx(268.4, abs=0.1)
    assert found["nano-neox-last-per-parameter"] == pytest.approx(last["tokens"] / last["parameters"])
    # In all, nothing here saw what Pythia has seen at its first point; for each parameter the ranges are one another's.
    assert found["nano-neox-last-million-tokens"] < found["pythia-6-9b-first-million-tokens"]
    # As their names say.
    assert [round(n / 1e9, digits) for n, digits in zip(later.PYTHIA.values(), (1, 0), strict=True)] == [6.9, 12]
    assert found["pythia-6-9b-last-per-parameter"] == pytest.approx(43.73, abs=0.005)
    ends = [found[f"{name}-{end}-per-parameter"] for name in ("nano-neox", "pythia-12b") for end in ("first", "last")]
    assert np.round(ends, 2).tolist() == [0.03, 27.49, 0.02, 25.32]
