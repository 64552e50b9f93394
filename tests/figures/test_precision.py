"""Figures of precision: what is drawn is what was measured, in both themes, for one precision or many."""

from __future__ import annotations

import numpy as np
import pytest

from coupling_lib.figures import precision, precision_data
from tests.figures.drawn import assert_repeats, assert_text_inside

from .precision_example import make_precision

FIGURES = {
    "value_errors": precision.value_errors,
    "vector_errors": precision.vector_errors,
    "pair_scatter": lambda ds: precision.pair_scatter(ds, 0.9),
    "mean_coupling": lambda ds: precision.mean_coupling(ds, 0.1, 0.9),
    "error_sources": precision.error_sources,
}


@pytest.fixture(scope="module")
def ds():
    return make_precision()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte(figure, theme, ds):
    assert_repeats(lambda: FIGURES[figure](ds), theme)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("names", [["nf4"], ["bfloat16", "int8", "nf4", "fp4", "float16"]])
def test_every_figure_takes_one_or_five_precisions_and_keeps_its_text_inside(figure, names, ds):
    many = ds.sel(precision=["float32", *["nf4"] * len(names)]).assign_coords(precision=["float32", *names])
    assert_text_inside(lambda: FIGURES[figure](many))


def test_value_errors_are_medians_over_prompts_and_blocks_or_ranks(ds):
    left, right = precision.value_errors(ds).axes
    errors = precision_data.all_value_errors(ds).sel(precision="nf4")
    lines = {axes: {line.get_label(): line.get_ydata() for line in axes.lines} for axes in (left, right)}
    np.testing.assert_allclose(lines[left]["nf4"], errors.median(("prompt", "block")))
    np.testing.assert_allclose(lines[right]["nf4"], errors.median(("prompt", "rank")))


def test_vector_errors_show_angles_with_both_sides_pooled_and_chance(ds):
    left, right = precision.vector_errors(ds).axes
    lines = {line.get_label(): line.get_ydata() for line in left.lines}
    wanted = ds.angle.sel(precision="int8", source="weights").median(("side", "example", "block"))
    np.testing.assert_allclose(lines["int8"], wanted)
    np.testing.assert_allclose(lines["random spaces"], ds.random_angle)
    kept = 100 * precision_data.kept_share(ds).sel(precision="int8", side="U").mean("example")
    np.testing.assert_allclose(right.lines[0].get_ydata(), kept)


def test_pair_scatter_has_a_panel_per_precision_on_one_scale_with_the_null(ds):
    panels = precision.pair_scatter(ds, 0.9).axes
    assert [axes.get_title() for axes in panels] == ["int8", "nf4"]
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in panels}) == 1
    table = precision_data.pair_table(ds)
    shown = panels[1].collections[0].get_offsets()
    np.testing.assert_allclose(shown, table[table.precision == "nf4"][["reference", "coupling"]])
    assert all(any(np.allclose(line.get_ydata(), 0.1) for line in axes.lines) for axes in panels)


def test_mean_coupling_shows_null_untrained_and_paired_differences(ds):
    left, right = precision.mean_coupling(ds, 0.12, 0.9).axes
    levels = {line.get_label(): line.get_ydata()[0] for line in left.lines}
    assert levels["random bases"] == pytest.approx(0.1) and levels["untrained, float32"] == 0.12
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["int8", "nf4"]
    table = precision_data.coupling_table(ds)
    assert right.lines[1].get_ydata()[0] == pytest.approx(table.difference.iloc[2])


def test_error_sources_leave_out_the_reference_against_itself(ds):
    figure = precision.error_sources(ds)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert len(lines["weights"].get_xdata()) == 2 and len(lines["float16 arithmetic"].get_xdata()) == 3
    table = precision_data.source_table(ds).set_index(["quantity", "precision", "source"])["median"]
    wanted = [table["value_error", name, "weights"] for name in ("int8", "nf4")]
    np.testing.assert_allclose(lines["weights"].get_xdata(), wanted)


def test_a_precision_keeps_its_colour_whatever_it_is_compared_with(ds):
    alone = ds.sel(precision=["float32", "nf4"])
    colours = [
        next(line.get_color() for line in precision.value_errors(one).axes[0].lines if line.get_label() == "nf4")
        for one in (ds, alone)
    ]
    assert colours[0] == colours[1]
