"""Figures of rival readings: what is drawn is what was compared, in both themes."""

from __future__ import annotations

import numpy as np
import pytest

from coupling_lib.figures import readings, style
from coupling_lib.metrics.variants import VARIANTS
from tests.figures.drawn import assert_repeats, assert_text_inside

from .readings_example import make_agreement, make_by_block, make_choices, make_means

FIGURES = {
    "values_by_k": lambda: readings.values_by_k(make_means()),
    "beyond_chance": lambda: readings.beyond_chance(make_means(), 10),
    "agreement_matrix": lambda: readings.agreement_matrix(make_agreement()),
    "choices_figure": lambda: readings.choices_figure(make_choices()),
    "boundary_figure": lambda: readings.boundary_figure(make_by_block(), 0.95),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte_and_keeps_its_text_inside(figure, theme):
    assert_repeats(FIGURES[figure], theme)
    assert_text_inside(FIGURES[figure], theme, tick_labels="y")


def test_each_variant_has_a_panel_of_its_own_with_both_networks_and_their_nulls():
    means = make_means()
    panels = [axes for axes in readings.values_by_k(means).axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == list(VARIANTS)
    chosen = means.sel(variant="released_trace")
    drawn = [line.get_ydata() for line in panels[list(VARIANTS).index("released_trace")].lines]
    for wanted in (*chosen["mean"].values, *chosen["null"].values):
        assert any(np.array_equal(line, wanted) for line in drawn)


def test_beyond_chance_shows_shares_in_per_cent_with_intervals_and_the_other_ks_small():
    means = make_means()
    axes = readings.beyond_chance(means, 10).axes[0]
    trained = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 17][1]
    np.testing.assert_allclose(trained.get_xdata(), 100 * means.share.sel(network="trained", k=10))
    assert sum(line.get_marker() == "." for line in axes.lines) == 2 * 2
    assert [label.get_text() for label in axes.get_yticklabels()] == list(VARIANTS)


def test_agreement_is_written_in_every_cell_in_an_ink_that_stands_out_from_it():
    agreement = make_agreement()
    for theme in ("light", "dark"):
        with style.theme(theme):
            axes = readings.agreement_matrix(agreement).axes[0]
            page, text = style.colour("page"), style.colour("text")
        cells = axes.texts
        assert len(cells) == 17**2 and cells[0].get_text() == "1"
        assert cells[0].get_color() == page  # full ink is as far from the page as can be
        low = int(agreement["mean"].values.argmin())
        assert cells[low].get_color() == text and cells[low].get_text().startswith("−")


def test_choices_show_each_value_its_interval_its_chance_and_its_number():
    choices = make_choices()
    axes = readings.choices_figure(choices).axes[0]
    dots = [line.get_xdata() for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 3]
    for values, network in zip(dots, ("untrained", "trained"), strict=True):
        np.testing.assert_allclose(values, choices[choices.network == network].coupling)
    written = {text.get_text() for text in axes.texts}
    assert {"coupling", "last block", "−0.900", "0.300", "0.060"} <= written
    ticks = np.concatenate([c.get_offsets()[:, 0] for c in axes.collections if len(c.get_offsets()) == 3])
    np.testing.assert_allclose(sorted(ticks), sorted(choices.null))


def test_boundaries_are_told_apart_by_line_and_networks_by_colour():
    by_block = make_by_block()
    axes = readings.boundary_figure(by_block, 0.95).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    own, after = lines["trained, the block's own output"], lines["trained, after the final norm"]
    np.testing.assert_allclose(own.get_ydata(), by_block["mean"].sel(network="trained", boundary="block"))
    assert own.get_color() == after.get_color() == style.colour(style.TRAINED)
    assert own.get_linestyle() != after.get_linestyle()
    np.testing.assert_allclose(lines["random bases"].get_ydata(), 0.05)


def test_a_number_is_shortened_without_losing_its_sign_or_showing_a_negative_zero():
    assert [readings._short(value) for value in (1, 0.999, 0.256, -0.256, -0.001, -1)] == [
        "1", "1", ".26", "−.26", ".00", "−1",
    ]  # fmt: skip
