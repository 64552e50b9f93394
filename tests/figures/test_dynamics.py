"""Figures of linear dynamics: what is drawn is what was measured."""

import numpy as np
import pytest

from coupling_lib.figures import dynamics, dynamics_data
from coupling_lib.metrics.statistics import mean_interval
from tests.figures.drawn import assert_repeats, assert_text_inside
from tests.figures.linear_cases import make_dynamics

FIGURES = {
    "carried_states": dynamics.carried_states,
    "carried_lengths": lambda d: dynamics.carried_states(d, "norm ratio"),
    "readings": dynamics.readings,
    "remainders": dynamics.remainders,
    "growth": dynamics.growth,
    "growth_of_directions": dynamics.growth_of_directions,
    "left_and_right": dynamics.left_and_right,
}


def both(names=("untrained", "trained"), count=5):
    return {name: make_dynamics(i, count) for i, name in enumerate(names)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte(figure, theme):
    assert_repeats(lambda: FIGURES[figure](both()), theme)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize(("names", "count"), [(("a model",), 1), (("a", "b", "c"), 5)])
def test_every_figure_takes_one_prompt_and_any_number_of_models(figure, names, count):
    assert_text_inside(lambda: FIGURES[figure](both(names, count)))


def test_carried_states_go_from_the_first_level_and_to_the_last_beside_random_bases():
    datasets = both()
    left, right = dynamics.carried_states(datasets).axes
    values = datasets["trained"].carried_cosine.values
    np.testing.assert_allclose(left.lines[1].get_ydata(), values[:, 0].mean(axis=0))
    np.testing.assert_allclose(right.lines[1].get_ydata(), values[:, :, -1].mean(axis=0))
    np.testing.assert_allclose(left.lines[3].get_ydata(), datasets["trained"].null_cosine.values.mean(axis=0))
    assert list(left.lines[0].get_xdata()) == [0, 1, 2, 3, 4, 5, 6]


def test_readings_keep_their_names_and_intervals():
    datasets = both()
    table = dynamics_data.reading_table(datasets).set_index(["network", "quantity", "reading"])
    values = datasets["trained"].end_cosine.sel(reading="released").values
    row = table.loc["trained", "cosine", "released"]
    assert row["mean"] == pytest.approx(values.mean()) and row.low == pytest.approx(float(mean_interval(values).low))
    labels = [label.get_text() for label in dynamics.readings(datasets).axes[0].get_yticklabels()]
    assert labels == ["embedding", "product", "released", "product with final norm", "affine"]


def test_linear_parts_count_blocks_from_one_and_shares_start_at_the_embedding():
    datasets = both()
    table = dynamics_data.remainder_table(datasets).set_index(["network", "quantity", "level"])["mean"]
    ratio, share = datasets["trained"].linear_norm_ratio.values, datasets["trained"].contribution.values
    assert table["trained", "linear part", 1] == pytest.approx(ratio[:, 0].mean())
    assert table["trained", "share of last state", 0] == pytest.approx(share[:, 0].mean())
    assert table["trained", "share of last state"].sum() == pytest.approx(1)


def test_growth_is_drawn_as_factors_and_kept_as_logarithms():
    datasets = both()
    axes = dynamics.growth(datasets, direction=2).axes[1]
    for line, kind in zip(axes.lines, dynamics_data.GROWTH, strict=True):
        median = np.median(datasets["trained"][f"growth_{kind}"].values[:, :, 1], axis=0)
        np.testing.assert_allclose(line.get_ydata(), np.exp(median))
    table = dynamics_data.growth_table(datasets)
    assert len(table) == 2 * 5 * 3 * 7 and table["median"].min() < 0


def test_growth_of_directions_compares_factors_per_block():
    datasets = both()
    left = dynamics.growth_of_directions(datasets).axes[0]
    predicted, measured = left.lines[1].get_data()
    final = {
        kind: np.median(datasets["trained"][f"growth_{kind}"].values[:, -1], axis=0)
        for kind in ("singular", "response")
    }
    np.testing.assert_allclose(predicted, np.exp(final["singular"] / 6))
    np.testing.assert_allclose(measured, np.exp(final["response"] / 6))


def test_left_right_cosines_keep_their_sign():
    datasets = both()
    table = dynamics_data.left_right_table(datasets).set_index(["network", "block", "rank"]).cosine
    values = datasets["trained"].left_right_cosine.values
    assert table["trained", 6, 4] == pytest.approx(values[:, 5, 3].mean())
    assert table.min() < 0 < table.max()


def test_summary_is_made_of_means_over_prompts_and_a_median_growth():
    datasets = both()
    table, trained = dynamics_data.summary_table(datasets), datasets["trained"]
    assert table.loc["trained", "product"] == pytest.approx(trained.end_cosine.values[:, 1].mean())
    assert table.loc["trained", "released"] == pytest.approx(trained.end_cosine.values[:, 2].mean())
    assert table.loc["trained", "random"] == pytest.approx(trained.null_cosine.values[:, -1].mean())
    assert table.loc["trained", "share"] == pytest.approx(trained.contribution.values[:, 0].mean())
    wanted = np.exp(np.median(trained.growth_response.values[:, -1, 0]) / 6)
    assert table.loc["trained", "growth"] == pytest.approx(wanted)
