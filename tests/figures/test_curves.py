"""Shared parts of figures against depth."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from coupling_lib.figures import curves, style


def test_mean_interval_holds_the_mean_and_is_missing_for_a_single_prompt():
    values = np.random.default_rng(0).normal(size=(20, 3))
    summary = curves.mean_interval(values)
    np.testing.assert_allclose(summary.middle, values.mean(axis=0))
    assert (summary.low < summary.middle).all() and (summary.middle < summary.high).all()
    alone = curves.mean_interval(values[:1])
    np.testing.assert_array_equal(alone.middle, values[0])
    assert np.isnan(alone.low).all() and np.isnan(alone.high).all()


def test_quartiles_are_those_of_sorted_values():
    summary = curves.quartiles([[5.0], [1.0], [3.0], [2.0], [4.0]])
    assert [float(part[0]) for part in summary] == [3.0, 2.0, 4.0]


@pytest.mark.parametrize("legend", [0, 1, 3])
def test_panels_fill_the_column_and_leave_room_for_the_legend(legend):
    figure, panels = curves.panel_row(["untrained", "trained"], legend=legend)
    for axes in panels:
        for number in range(max(legend, 1)):
            axes.plot([1, 2], [number, 1], label=f"line {number}")
        curves.block_axis(axes)
    if legend:
        curves.legend_under(figure, panels, columns=1)
    FigureCanvasAgg(figure).draw()
    assert [axes.get_title() for axes in panels] == ["Untrained", "Trained"]
    assert figure.get_figwidth() == style.WIDTH
    label = panels[0].xaxis.label.get_window_extent()
    assert label.y0 >= 0
    if legend:
        box = figure.legends[0].get_window_extent()
        assert box.y0 >= 0 and box.y1 <= label.y0
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"line {i}" for i in range(legend)]


def test_shared_panels_have_one_scale_and_others_their_own():
    for share in (True, False):
        _, panels = curves.panel_row(["a", "b"], share=share)
        panels[0].set_ylim(0, 5)
        assert (panels[1].get_ylim() == (0, 5)) == share


def test_a_band_is_drawn_only_where_there_is_an_interval():
    _, (axes, other) = curves.panel_row(["a", "b"])
    values = np.random.default_rng(1).normal(size=(4, 3))
    curves.draw_band(axes, [1, 2, 3], curves.mean_interval(values), "#000000")
    curves.draw_band(other, [1, 2, 3], curves.mean_interval(values[:1]), "#000000")
    assert (len(axes.collections), len(other.collections)) == (1, 0)


def test_shades_run_from_a_middle_tone_to_the_strongest():
    for theme, sign in (("light", -1), ("dark", 1)):
        with style.theme(theme):
            light = [sum(int(ink[i : i + 2], 16) for i in (1, 3, 5)) for ink in curves.shades(4)]
        assert (sign * np.diff(light) > 0).all()
