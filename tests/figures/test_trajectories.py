"""Figures of trajectories: what is drawn is what was measured, for one model or many, with and without entropy."""

import numpy as np
import pytest

from coupling_lib.figures import style, trajectories, trajectories_data
from tests.figures.drawn import assert_repeats, assert_text_inside
from tests.figures.trajectory_cases import make_trajectories

FIGURES = {
    "scores": lambda networks: trajectories.scores_by_model({"organisation/model": networks}),
    "many scores": lambda networks: trajectories.scores_by_model(
        {f"organisation/a-model-with-a-long-name-{i}": networks for i in range(5)}
    ),
    "profiles": lambda networks: trajectories.profiles(networks, 3),
    "paths": trajectories.principal_components,
}


@pytest.fixture(scope="module")
def networks():
    return {"untrained": make_trajectories(1), "trained": make_trajectories(2)}


def without(networks, *names):
    return {network: dataset.drop_vars(names) for network, dataset in networks.items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte(figure, theme, networks):
    assert_repeats(lambda: FIGURES[figure](networks), theme)


@pytest.mark.parametrize("case", ["all", "no entropy", "no paths", "no expodistance", "one prompt"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_takes_what_there_is_and_keeps_its_text_inside(figure, case, networks):
    cases = {
        "all": networks,
        "no entropy": without(networks, "entropy", "entropy_normed"),
        "no paths": without(networks, "path", "path_share", "path_token"),
        "no expodistance": {n: ds.assign(expodistance=ds.expodistance * np.nan) for n, ds in networks.items()},
        "one prompt": {n: ds.isel(prompt=[0]) for n, ds in networks.items()},
    }
    named = "x" if "scores" in figure else ""
    assert_text_inside(lambda: FIGURES[figure](cases[case]), tick_labels=named)


def test_every_prompt_is_a_dot_in_the_colour_of_its_network(networks):
    figure = trajectories.scores_by_model({"model": networks})
    for axes, score in zip(figure.axes, trajectories_data.SCORES, strict=True):
        for dots, (network, dataset) in zip(axes.collections, networks.items(), strict=True):
            np.testing.assert_allclose(dots.get_offsets()[:, 1], dataset[score])
            assert style.matplotlib.colors.to_hex(dots.get_facecolor()[0]) == style.colour(network)


def test_the_reference_of_unrelated_steps_is_the_root_of_the_depth(networks):
    axes = trajectories.scores_by_model({"model": networks}).axes[0]
    heights = [line.get_ydata()[0] for line in axes.lines]
    assert any(height == pytest.approx(np.sqrt(6)) for height in heights) and 1 in heights


def test_profiles_are_medians_over_prompts_and_steps_are_relative_to_their_mean(networks):
    table = trajectories_data.profile_table(networks)
    dataset = networks["trained"]
    lengths = dataset.step_length.values
    relative = lengths / lengths.mean(axis=1, keepdims=True)
    chosen = table[(table.network == "trained") & (table.quantity == "relative_step")]
    np.testing.assert_allclose(chosen["median"], np.median(relative, axis=0))
    assert chosen.depth.tolist() == [1, 2, 3, 4, 5, 6]
    chosen = table[(table.network == "trained") & (table.quantity == "entropy")]
    np.testing.assert_allclose(chosen["low"], np.quantile(dataset.entropy, 0.25, axis=0))
    assert chosen.depth.tolist() == list(range(7))


def test_a_missing_entropy_leaves_its_panel_out_and_the_caption_says_why(networks):
    bare = without(networks, "entropy", "entropy_normed")
    for dataset in bare.values():
        dataset.attrs["entropy_missing"] = "Thing has no unembedding"
    assert len(trajectories.profiles(networks, 3).axes) == 4
    assert len(trajectories.profiles(bare, 3).axes) == 3
    assert trajectories_data.profile_caption(bare).endswith("Entropy is left out: Thing has no unembedding.")
    assert "softmax(W x)" in trajectories_data.profile_caption(networks)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_last_token_has_the_colour_of_the_text_and_panels_show_their_part_of_the_depth(theme, networks):
    with style.theme(theme):
        figure = trajectories.principal_components(networks)
        ink = style.colour("text")
    path = networks["untrained"].path.values
    for axes, levels in zip(figure.axes[:3], trajectories_data.path_ranges(6).values(), strict=True):
        (last,) = [line for line in axes.lines if line.get_color() == ink and line.get_linestyle() == "-"][:1]
        np.testing.assert_allclose(np.transpose(last.get_data()), path[list(levels), -1])
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        "all blocks", "shallow: blocks 1-3", "deep: blocks 4-6",
    ]  # fmt: skip


def test_path_table_gives_every_token_at_every_level_and_nothing_where_there_are_no_paths(networks):
    table = trajectories_data.path_table(networks)
    assert len(table) == 2 * 7 * 4
    row = table[(table.network == "trained") & (table.token == 3) & (table.level == 5)].iloc[0]
    assert row.text == " the"
    assert [row.component_1, row.component_2] == pytest.approx(networks["trained"].path.values[5, 2].tolist())
    empty = trajectories_data.path_table(without(networks, "path", "path_share", "path_token"))
    assert empty.empty and list(empty.columns) == list(table.columns)


def test_readings_table_has_a_line_per_formula_and_a_column_per_choice_of_states(networks):
    dataset = networks["trained"]
    table = trajectories_data.readings_table(dataset)
    assert table.index.tolist() == ["line_shape_score", "expodistance"] and table.columns.tolist() == [
        "default",
        "both",
    ]
    assert table.loc["expodistance", "both"] == pytest.approx(np.median(dataset.readings.values[:, 1, 1]))


def test_summary_and_quoted_numbers_are_medians_with_quartiles(networks):
    low, middle, high = np.quantile(networks["trained"].line_shape_score, (0.25, 0.5, 0.75))
    summary = trajectories_data.summary_table({"model": networks})
    line = summary.loc["model", "trained", "line-shape score"]
    assert line[["low", "median", "high"]].tolist() == pytest.approx([low, middle, high])
    quoted = trajectories_data.quoted(networks)
    assert quoted["line-shape-score-trained"] == pytest.approx(middle)
    assert quoted["line-shape-score-trained-high"] == pytest.approx(high)
    assert len(quoted) == 2 * 3 * 3
