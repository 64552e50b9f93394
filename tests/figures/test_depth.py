"""Depth figures: what is drawn is what was measured, on one scale, in both themes."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex

from coupling_lib.figures import depth, depth_data, style
from coupling_lib.measures.random_bases import Chance
from tests.figures.drawn import assert_repeats, assert_text_inside

NAME = "normalized_miscoupling"
FIGURES = {
    "matrix_grid": lambda d: depth.matrix_grid(d, [0, 2, 3], 4),
    "mismatch_map": lambda d: depth.mismatch_map(d, NAME, 4, null=Chance(0.95, 9e-6)),
    "adjacency_graph": lambda d: depth.adjacency_graph(d, NAME, 4, null=Chance(0.95, 9e-6)),
    "coupling_distribution": lambda d: depth.coupling_distribution(d, NAME, 4, null=Chance(0.95, 9e-6)),
    "landing_figure": lambda d: depth.landing_figure(d, NAME, 4, null=Chance(0.95, 9e-6)),
    "models_figure": lambda d: depth.models_figure(
        {name: {"trained": one, "untrained": one} for name, one in d.items()}, NAME, 4, null=Chance(0.95, 9e-6)
    ),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte(figure, theme, datasets):
    assert_repeats(lambda: FIGURES[figure](datasets), theme)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("count", [1, 3])
def test_every_figure_takes_one_or_several_models_and_keeps_its_text_inside(figure, count, datasets):
    models = {f"model {i}": datasets["trained"] for i in range(count)}
    assert_text_inside(lambda: FIGURES[figure](models))


def test_matrix_grid_shows_the_relative_matrices_with_gaps_between_them(datasets):
    figure = depth.matrix_grid(datasets, [0, 2, 3], 4)
    expected = depth_data.relative_matrices(datasets["trained"], [0, 2, 3], 4)
    image = figure.axes[1].images[0].get_array().filled(np.nan)
    assert image.shape == (3 * 5 - 1, 3 * 5 - 1)
    assert np.allclose(image[5:9, 10:14], expected[1, 2])
    assert np.isnan(image[4]).all() and np.isnan(image[:, 9]).all()


def test_matrix_grid_has_one_scale_that_ends_at_the_largest_entry_between_different_blocks(datasets):
    figure = depth.matrix_grid(datasets, [0, 2, 3], 4)
    grids = [depth_data.relative_matrices(dataset, [0, 2, 3], 4) for dataset in datasets.values()]
    largest = max(grid[i, j].max() for grid in grids for i in range(3) for j in range(3) if i != j)
    assert {axes.images[0].get_clim() for axes in figure.axes[:2]} == {(0, largest)}


def test_blocks_are_numbered_from_one(datasets):
    axes = depth.matrix_grid(datasets, [0, 2, 3], 4).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "3", "4"]
    assert axes.get_ylabel() == "block $l$  (Jacobian)"
    assert axes.get_title() == "Untrained"


def test_mismatch_map_leaves_the_diagonal_out_of_image_and_scale(datasets):
    figure = depth.mismatch_map(datasets, NAME, 4, null=0.99)
    image = figure.axes[1].images[0]
    values = image.get_array()
    assert np.ma.getmaskarray(values).diagonal().all() and np.ma.getmaskarray(values).sum() == 6
    off = [d[NAME].sel(k=4).mean("prompt").values[~np.eye(6, dtype=bool)] for d in datasets.values()]
    assert image.get_clim() == pytest.approx((np.min(off), max(np.max(off), 0.99)))
    assert figure.axes[0].images[0].get_clim() == image.get_clim()


def test_edges_are_proportional_to_coupling_on_one_scale_across_panels(datasets):
    figure = depth.adjacency_graph(datasets, NAME, 4)
    table = depth_data.adjacency_table(datasets, NAME, 4)
    widths = [sorted(line.get_linewidth() for line in axes.lines) for axes in figure.axes[:2]]
    drawn = np.concatenate(widths)
    expected = [sorted(5 * table.coupling[table.network == name] / table.coupling.max()) for name in datasets]
    assert np.allclose(drawn, np.concatenate(expected))


def test_landing_figure_draws_only_what_exceeds_chance(datasets):
    table = depth_data.adjacency_table(datasets, NAME, 4)
    figure = depth.landing_figure(datasets, NAME, 4, null=0.95)
    for axes, name in zip(figure.axes[:2], datasets, strict=True):
        assert len(axes.lines) == (table.coupling[table.network == name] > 1 - 0.95).sum()


def test_distribution_shows_every_prompt_the_median_and_the_null(datasets):
    figure = depth.coupling_distribution(datasets, NAME, 4, null=0.95)
    left, right = figure.axes
    table = depth_data.distribution_table(datasets, NAME, 4)
    shown = table[(table.network == "trained") & (table.distance == "all")].coupling
    assert np.allclose(sorted(left.collections[1].get_offsets()[:, 1]), sorted(shown))
    medians = [line.get_ydata()[0] for line in left.lines if np.ptp(line.get_xdata()) == pytest.approx(0.16)]
    assert medians[1] == pytest.approx(np.median(shown))
    assert any(np.allclose(line.get_ydata(), 0.05) for line in right.lines)
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["untrained", "trained", "random bases"]


def test_models_side_by_side_share_one_scale_and_show_the_untrained_and_chance(datasets):
    other = {name: one.isel(block_1=slice(4), block_2=slice(4), distance=slice(4)) for name, one in datasets.items()}
    figure = depth.models_figure({"first": datasets, "a folder/second": other}, NAME, 4, null=0.97)
    first, second, curves = figure.axes[0], figure.axes[1], figure.axes[-1]
    assert [axes.get_title() for axes in (first, second)] == ["first", "second"]
    assert first.images[0].get_clim() == second.images[0].get_clim()
    assert second.images[0].get_array().shape == (4, 4)
    lines = {line.get_label(): line for line in curves.lines}
    assert len(lines["second"].get_xdata()) == 3 and np.allclose(lines["random bases"].get_ydata(), 0.03)
    expected = 1 - datasets["trained"].by_distance.sel(variant=NAME, k=4).mean("prompt").values[1:]
    assert np.allclose(lines["first"].get_ydata(), expected)
    dotted = [line for line in curves.lines if line.get_linestyle() == ":" and len(line.get_xdata())]
    blank = 1 - datasets["untrained"].by_distance.sel(variant=NAME, k=4).mean("prompt").values[1:]
    assert np.allclose(dotted[0].get_ydata(), blank)


def test_a_family_keeps_its_colour_among_models(datasets):
    named = {kind: one.assign_attrs(model="nano-llama") for kind, one in datasets.items()}
    curves = depth.models_figure({"x": datasets, "nano-llama": named}, NAME, 4, null=0.95).axes[-1]
    line = next(line for line in curves.lines if line.get_label() == "nano-llama")
    assert line.get_color() == style.family_style("nano-llama")[0]


def test_trained_and_untrained_keep_their_colours_in_every_figure(datasets):
    figure = depth.coupling_distribution(datasets, NAME, 4)
    graph = depth.adjacency_graph(datasets, NAME, 4)
    for position, name in enumerate(datasets):
        assert figure.axes[1].lines[position].get_color() == style.colour(name)
        assert to_hex(graph.axes[position].collections[0].get_edgecolor()[0]) == style.colour(name)


def test_figures_never_load_torch():
    code = "import sys; from coupling_lib.figures import depth, display, style; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
