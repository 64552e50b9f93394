"""Shared axes: steps of training with a place for step 0, logarithms with readable numbers."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from coupling_lib.figures.axes import log_axis, short_step, step_axis, thinned


def panel():
    return Figure(figsize=(4, 3)).subplots()


def test_steps_stand_at_their_logarithms_and_step_0_apart_to_their_left():
    axes = panel()
    places = step_axis(axes, [0, 10, 100, 1000])
    assert places[1:] == pytest.approx([1, 2, 3])
    assert places[0] < 1 - 0.3
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "10", "100", "1k"]
    assert len(axes.lines) == 3  # the break: a gap between two strokes
    assert all(places[0] < np.mean(line.get_xdata()) < places[1] for line in axes.lines)


def test_without_step_0_the_axis_has_no_break():
    axes = panel()
    assert step_axis(axes, [128, 143000]) == pytest.approx(np.log10([128, 143000]))
    assert not axes.lines


def test_many_steps_are_labelled_in_part_with_the_first_and_the_last():
    for count in range(1, 160):
        chosen = thinned(count)
        assert chosen[0] == 0 and chosen[-1] == count - 1 and len(chosen) <= 10
        assert chosen == sorted(set(chosen))


@pytest.mark.parametrize(("step", "text"), [(999, "999"), (1500, "1.5k"), (10000, "10k"), (143000, "143k")])
def test_steps_are_written_short(step, text):
    assert short_step(step) == text


@pytest.mark.parametrize(("values", "fewest"), [([1.0, 1.5], 2), ([1.0, 80.0], 3), ([1e-3, 1e3], 3)])
def test_logarithmic_axes_have_plain_numbers_at_narrow_and_at_wide_ranges(values, fewest):
    axes = panel()
    axes.plot(values)
    log_axis(axes)
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    inside = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert axes.get_yscale() == "log" and len(inside) >= fewest
    assert all(float(text) > 0 and "10^" not in text for text in inside)


def test_a_panel_without_a_positive_value_stays_linear():
    axes = panel()
    axes.plot([np.nan, np.nan])
    log_axis(axes)
    assert axes.get_yscale() == "linear"
