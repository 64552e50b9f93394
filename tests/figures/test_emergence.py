"""Figures of emergence: what is drawn is what was measured, step 0 stands apart, and text stays inside."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex

from coupling_lib.figures import emergence, emergence_data, style
from coupling_lib.metrics.statistics import mean_interval
from tests.figures.drawn import assert_repeats, assert_text_inside
from tests.figures.trajectory_cases import STEPS, make_emergence

NAME, K = "normalized_miscoupling", 4
FIGURES = {
    "coupling": lambda ds: emergence.coupling_over_training(ds, NAME, K),
    "locality": lambda ds: emergence.locality_over_training(ds, NAME, K),
    "graphs": lambda ds: emergence.graphs_over_training(ds, NAME, K),
    "scores": emergence.scores_over_training,
    "profiles": emergence.profiles_over_training,
}
OFF = ~np.eye(6, dtype=bool)


@pytest.fixture(scope="module")
def measured():
    return make_emergence()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte(figure, theme, measured):
    assert_repeats(lambda: FIGURES[figure](measured), theme)


@pytest.mark.parametrize("case", ["all", "two steps", "no step 0", "one prompt", "nothing known", "no score"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_takes_any_steps_and_keeps_its_text_inside(figure, case, measured):
    cases = {
        "all": measured,
        "two steps": measured.isel(step=[0, 3]),
        "no step 0": measured.isel(step=[1, 2, 3]),
        "one prompt": measured.isel(prompt=[0]),
        "nothing known": measured.assign(progress=measured.progress * np.nan).assign_attrs(progress_label=""),
        "no score": measured.assign({n: measured[n] * np.nan for n in ("expodistance", "window_expodistance")}),
    }
    assert_text_inside(lambda: FIGURES[figure](cases[case]))


def test_coupling_is_the_mean_over_pairs_with_a_mean_interval_over_prompts(measured):
    table = emergence_data.coupling_table(measured, NAME, K)
    values = 1 - measured[NAME].sel(k=K).values[:, :, OFF].mean(axis=-1)
    interval = mean_interval(values, axis=1)
    np.testing.assert_allclose(table.coupling, values.mean(axis=1))
    np.testing.assert_allclose(table[["low", "high"]].T, [interval.low, interval.high])
    np.testing.assert_allclose(table.random_bases, 1 - measured["null"].sel(k=K))
    assert table.progress.tolist() == [7, 6, 5, 4]


def test_coupling_figure_shows_that_table_its_null_and_progress_on_the_second_axis(measured):
    figure = emergence.coupling_over_training(measured, NAME, K)
    table = emergence_data.coupling_table(measured, NAME, K)
    left, right = figure.axes
    drawn = {line.get_label(): line for line in left.lines}
    np.testing.assert_allclose(drawn["coupling"].get_ydata(), table.coupling[1:])  # step 0 is joined by dots
    np.testing.assert_allclose(drawn["random bases ± 0.00001"].get_ydata(), table.random_bases)
    assert drawn["untrained (step 0)"].get_ydata() == [table.coupling[0]]
    assert drawn["untrained (step 0)"].get_color() == style.colour(style.UNTRAINED)
    np.testing.assert_allclose(right.lines[0].get_ydata(), table.progress)
    assert right.get_ylabel() == "validation loss (nats per token)"


def test_locality_and_near_and_far_pairs_are_means_over_their_pairs(measured):
    coupling = 1 - measured[NAME].sel(k=K).values
    apart = np.abs(np.subtract.outer(range(6), range(6)))
    table = emergence_data.locality_table(measured, NAME, K)
    for distance in range(1, 6):
        expected = coupling[:, :, apart == distance].mean(axis=(1, 2))
        np.testing.assert_allclose(table[table.distance == distance].coupling, expected)
    pairs = emergence_data.near_and_far_table(measured, NAME, K)
    for name, chosen in {"neighbours": apart == 1, "half the depth or more apart": apart >= 3}.items():
        expected = coupling[:, :, chosen].mean(axis=(1, 2))
        np.testing.assert_allclose(pairs[pairs.pairs == name].coupling, expected)


def test_graphs_are_of_the_first_the_most_coupled_and_the_last_step(measured):
    assert list(emergence_data.graph_steps(measured, NAME, K)) == ["step 0", "step 100", "step 1000"]
    assert list(emergence_data.graph_steps(measured.isel(step=[1, 2]), NAME, K)) == ["step 10", "step 100"]
    figure = emergence.graphs_over_training(measured, NAME, K)
    rims = [to_hex(axes.collections[0].get_edgecolor()[0]) for axes in figure.axes[:3]]
    assert rims == [style.colour(style.UNTRAINED), style.colour(style.TRAINED), style.colour(style.TRAINED)]
    assert set(emergence_data.graph_table(measured, NAME, K).network) == {"step 0", "step 100", "step 1000"}


def test_windows_are_named_by_their_blocks_from_one(measured):
    assert emergence_data.drawn_windows(measured) == {"blocks 1-3": 1, "blocks 2-4": 2, "blocks 4-6": 4}
    single = measured.isel(centre=[0])
    assert emergence_data.drawn_windows(single) == {"blocks 1-3": 1}


def test_scores_are_medians_and_quartiles_over_the_prompts_that_have_one(measured):
    changed = measured.copy(deep=True)
    changed["expodistance"][1, 0] = np.nan
    table = emergence_data.score_table(changed)
    row = table[(table.score == "expodistance") & (table.blocks == "all") & (table.step == 10)].iloc[0]
    left = changed.expodistance.values[1, 1:]
    assert row[["low", "median", "high"]].tolist() == pytest.approx(np.quantile(left, (0.25, 0.5, 0.75)).tolist())
    row = table[(table.score == "line_shape_score") & (table.blocks == "blocks 4-6") & (table.step == 100)].iloc[0]
    assert row["median"] == pytest.approx(np.median(measured.window_line_shape_score.sel(step=100, centre=4)))


def test_profiles_count_levels_from_zero_and_middle_blocks_from_one(measured):
    table = emergence_data.profile_table(measured)
    assert table[table.quantity == "norm"].depth.unique().tolist() == list(range(7))
    assert table[table.quantity == "window_expodistance"].depth.unique().tolist() == [2, 3, 4, 5]
    line = table[(table.quantity == "norm") & (table.step == 100) & (table.depth == 2)].iloc[0]
    assert line["median"] == pytest.approx(np.median(measured.norm.sel(step=100, level=2)))


def test_summary_and_quoted_numbers_agree_with_the_tables(measured):
    summary = emergence_data.summary_table(measured, NAME, K)
    quoted = emergence_data.quoted(measured, NAME, K)
    assert summary.index.tolist() == list(STEPS)
    assert list(summary.columns) == [
        "coupling", "low", "high", "random bases", "line-shape score", "expodistance", "validation loss",
    ]  # fmt: skip
    assert (quoted["peak-step"], quoted["first-step"], quoted["last-step"]) == (100, 0, 1000)
    assert quoted["peak-coupling"] == summary.coupling.max()
    assert quoted["last-line-shape-score"] == summary["line-shape score"].iloc[-1]


def test_figures_never_load_torch():
    code = "import sys; from coupling_lib.figures import emergence, trajectories; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
