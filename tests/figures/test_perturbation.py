"""Figures of perturbations: what is drawn is what was measured."""

import numpy as np
import pytest

from coupling_lib.figures import perturbation, perturbation_data
from coupling_lib.metrics.statistics import mean_interval
from tests.figures.drawn import assert_repeats, assert_text_inside
from tests.figures.linear_cases import make_perturbation

FIGURES = {
    "cosine_by_depth": perturbation.cosine_by_depth,
    "first_and_last": perturbation.first_and_last,
    "amplification_and_error": perturbation.amplification_and_error,
}


def both(names=("untrained", "trained"), count=5):
    return {name: make_perturbation(i, count) for i, name in enumerate(names)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte(figure, theme):
    assert_repeats(lambda: FIGURES[figure](both()), theme)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize(("names", "count"), [(("a model",), 1), (("a", "b"), 5)])
def test_every_figure_takes_one_prompt_and_other_models(figure, names, count):
    assert_text_inside(lambda: FIGURES[figure](both(names, count)))


def test_draws_are_averaged_within_prompts_before_the_interval_is_taken():
    datasets = both()
    table = perturbation_data.level_table(datasets, "cosine").set_index(["network", "carrier", "noise", "level"])
    values = datasets["trained"].cosine.values[:, 1, 0, :, 4].mean(axis=1)
    row = table.loc["trained", "linear", 0.1, 4]
    assert row["mean"] == pytest.approx(values.mean()) and row.high == pytest.approx(float(mean_interval(values).high))


def test_first_and_last_are_the_ends_of_the_blocks_not_the_embedding():
    datasets = both()
    table = perturbation_data.first_and_last_table(datasets)
    assert set(table[table.block == "first"].level) == {1} and set(table[table.block == "last"].level) == {6}
    axes = perturbation.first_and_last(datasets).axes[1]
    labels = [line.get_label() for line in axes.lines]
    drawn = axes.lines[labels.index("last block, network")].get_ydata()
    np.testing.assert_allclose(drawn, datasets["trained"].cosine.values[:, 0, :, :, 6].mean(axis=(0, 2)))


def test_depth_marks_the_first_and_the_last_block():
    axes = perturbation.cosine_by_depth(both()).axes[0]
    assert axes.lines[0].get_markevery() == [1, 6] and list(axes.lines[0].get_xdata()) == list(range(7))


def test_errors_are_those_after_the_last_block_and_amplification_that_of_the_smallest_noise():
    datasets = both()
    table = perturbation_data.amplification_and_error_table(datasets)
    errors = table[(table.quantity == "error") & (table.network == "trained")]
    np.testing.assert_allclose(errors["mean"], datasets["trained"].linear_error.values[..., 6].mean(axis=(0, 2)))
    assert set(errors.level) == {6}
    assert set(table[table.quantity == "amplification"].noise) == {0.1}


def test_summary_takes_embedding_first_and_last_block_of_one_noise_level():
    datasets = both()
    table = perturbation_data.summary_table(datasets, 1.0)
    values = datasets["trained"].cosine.sel(carrier="random", noise=1.0).values.mean(axis=(0, 1))
    row = table.loc["trained", "random"]
    assert row[["embedding", "first block", "last block"]].tolist() == pytest.approx(values[[0, 1, 6]].tolist())
    assert row["low"] < row["last block"] < row["high"]
