"""Prompt figures: what is drawn is what was measured, against loops written out and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.figures import prompts, prompts_data
from coupling_lib.measures.random_bases import Chance
from tests.figures.drawn import assert_repeats, assert_text_inside

NAME, K, BLOCKS = "normalized_miscoupling", 3, 4
VERSIONS = ("alone", "step by step", "control sentence")


def make_prompts(strength: float, seed: int, n_questions: int = 6, n_others: int = 5) -> xr.Dataset:
    """Questions in three versions, shuffled, and prompts of another set without counted steps."""
    rng = np.random.default_rng(seed)
    lines = [(f"q{i}", version, "sums", 2.0 + i % 3) for i in range(n_questions) for version in VERSIONS]
    lines += [(f"s{i}", "alone", "stories", np.nan) for i in range(n_others)]
    lines = [lines[i] for i in np.random.default_rng(9).permutation(len(lines))]
    values = 1 - strength + 0.05 * rng.standard_normal((len(lines), 1, BLOCKS, BLOCKS))
    values[:, :, range(BLOCKS), range(BLOCKS)] = 0
    question, version, dataset, steps = (list(column) for column in zip(*lines, strict=True))
    notes = {
        "id": [f"{q}/{v}" for q, v in zip(question, version, strict=True)],
        "question": question,
        "version": version,
        "dataset": dataset,
        "steps": steps,
        "n_tokens": rng.integers(10, 60, len(lines)),
    }
    return xr.Dataset(
        {NAME: (("prompt", "k", "block_1", "block_2"), values)},
        coords={"k": [K]} | {name: ("prompt", column) for name, column in notes.items()},
        attrs={"control": "It rained.", "control_tokens": 3, "instruction_tokens": 4, "words_as_tokens": 0},
    )


@pytest.fixture
def datasets():
    return {"untrained": make_prompts(0.05, seed=1), "trained": make_prompts(0.3, seed=2)}


FIGURES = {
    "scatter": lambda d: prompts.prompt_scatter(d, NAME, K, null=Chance(0.95, 9e-6)),
    "versions": lambda d: prompts.version_profiles(d, NAME, K, null=Chance(0.95, 9e-6)),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte_and_keeps_its_text_inside(figure, count, theme, datasets):
    some = dict(list(datasets.items())[-count:])
    assert_repeats(lambda: FIGURES[figure](some), theme)
    assert_text_inside(lambda: FIGURES[figure](some), theme)


def test_a_blocks_coupling_is_the_mean_over_both_directions_with_all_others(datasets):
    found = prompts_data.block_couplings(datasets["trained"], NAME, K)
    values = datasets["trained"][NAME].values[:, 0]
    for prompt in (0, 7):
        for block in range(BLOCKS):
            others = [other for other in range(BLOCKS) if other != block]
            pairs = [1 - v for o in others for v in (values[prompt, block, o], values[prompt, o, block])]
            assert found[prompt, block] == pytest.approx(np.mean(pairs))


def test_prompt_table_holds_every_prompt_once_per_network(datasets):
    table = prompts_data.prompt_table(datasets, NAME, K)
    assert len(table) == 2 * (6 * 3 + 5) and len(prompts_data.prompts_alone(table)) == 2 * 11
    data = datasets["trained"]
    line = table[(table.network == "trained") & (table.id == data.id.values[4])].iloc[0]
    assert line.coupling == pytest.approx(1 - data[NAME].values[4, 0].sum() / (BLOCKS * (BLOCKS - 1)))
    assert line.tokens == data.n_tokens.values[4]


def test_correlations_are_spearmans_over_prompts_alone(datasets):
    table = prompts_data.prompt_table(datasets, NAME, K)
    alone = prompts_data.prompts_alone(table[table.network == "trained"])
    found = prompts_data.correlations(table, "trained")
    assert found["length"].r == pytest.approx(scipy.stats.spearmanr(alone.tokens, alone.coupling).statistic)
    counted = alone[alone.steps.notna()]
    assert found["steps"].n == 6
    assert found["steps"].r == pytest.approx(scipy.stats.spearmanr(counted.steps, counted.coupling).statistic)
    means = alone.groupby("dataset")[["tokens", "coupling"]].transform("mean")
    within = scipy.stats.spearmanr(alone.tokens - means.tokens, alone.coupling - means.coupling).statistic
    assert found["length within sets"].r == pytest.approx(within)
    listed = prompts_data.correlation_table(table).set_index(["network", "quantity"])
    assert listed.loc[("trained", "length in tokens"), "spearman"] == found["length"].r


def test_a_difference_between_sets_is_no_correlation_within_them(datasets):
    data = datasets["trained"].copy(deep=True)
    stories = data["dataset"].values == "stories"
    data[NAME].values[stories] *= 0.5
    data["n_tokens"].values[:] = np.where(stories, 20, 50) + data["n_tokens"].values % 7
    found = prompts_data.correlations(prompts_data.prompt_table({"trained": data}, NAME, K), "trained")
    assert found["length"].high < 0 and found["length within sets"].low < 0 < found["length within sets"].high


def test_what_does_not_vary_or_is_too_few_has_no_coefficient_and_is_drawn_all_the_same(datasets):
    few = datasets["trained"].isel(prompt=np.isin(datasets["trained"].question.values, ["q0", "q1"]))
    few["n_tokens"].values[:] = 16
    found = prompts_data.correlations(prompts_data.prompt_table({"trained": few}, NAME, K), "trained")
    assert set(found.values()) == {None}
    figure = prompts.prompt_scatter({"trained": few}, NAME, K)
    assert figure.axes[0].texts[0].get_text() == "trained: too few prompts"


def test_versions_are_paired_by_question(datasets):
    data = datasets["trained"]
    found = prompts_data.version_couplings(data, NAME, K)
    assert set(found) == set(VERSIONS) and found["alone"].shape == (6, BLOCKS)
    couplings = prompts_data.block_couplings(data, NAME, K)
    order = [q for q, v in zip(data.question.values, data.version.values, strict=True) if v == data.version.values[0]]
    order = [question for question in order if question.startswith("q")]
    for version, values in found.items():
        for question, row in zip(order, values, strict=True):
            place = data.id.values.tolist().index(f"{question}/{version}")
            np.testing.assert_array_equal(row, couplings[place])


def test_summary_gives_paired_differences_with_intervals_and_names_them_for_the_book(datasets):
    summary = prompts_data.summary_table(datasets, NAME, K, null=0.95)
    found = prompts_data.version_couplings(datasets["trained"], NAME, K)
    difference = (found["step by step"] - found["alone"]).mean(axis=1)
    line = summary.loc["trained"]
    assert line["step by step"] == pytest.approx(found["step by step"].mean())
    assert line["step by step difference"] == pytest.approx(difference.mean())
    assert line["step by step difference low"] < difference.mean() < line["step by step difference high"]
    book = prompts_data.remembered(prompts_data.prompt_table(datasets, NAME, K), summary, 1e-5)
    assert book["prompts-step-by-step-difference-trained-low"] == line["step by step difference low"]
    assert book["prompts-null-error"] == 1e-5
    assert book["prompts-null"] == pytest.approx(0.05) and "prompts-length-untrained-high" in book


def test_profiles_show_the_mean_over_questions_and_its_paired_difference(datasets):
    figure = prompts.version_profiles(datasets, NAME, K, null=0.95)
    found = prompts_data.version_couplings(datasets["trained"], NAME, K)
    above, below = figure.axes[1], figure.axes[3]
    for line, (version, values) in zip(above.lines, found.items(), strict=False):
        assert np.allclose(line.get_ydata(), values.mean(axis=0)), version
        assert line.get_xdata().tolist() == [1, 2, 3, 4]
    changed = [version for version in found if version != "alone"]
    for line, version in zip(below.lines, changed, strict=False):
        assert np.allclose(line.get_ydata(), (found[version] - found["alone"]).mean(axis=0))
    table = prompts_data.version_table(datasets, NAME, K)
    assert len(table) == 2 * 3 * 6 * BLOCKS


def test_without_versions_there_is_nothing_to_compare(datasets):
    alone = datasets["trained"].isel(prompt=datasets["trained"].version.values == "alone")
    with pytest.raises(ParameterError, match="no prompt was measured in several versions"):
        prompts_data.version_couplings(alone, NAME, K)


def test_caption_names_the_control_and_the_stand_in_for_tokens(datasets):
    data = datasets["trained"]
    assert "adds 4 tokens, the control sentence (“It rained.”) 3." in prompts_data.versions_caption(data)
    data.attrs["words_as_tokens"] = 1
    assert "each word stands for one token" in prompts_data.versions_caption(data)
