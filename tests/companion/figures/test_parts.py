"""Parts that figures share: panels, bands, dots, legends, grids of matrices, axes of blocks, steps and logarithms."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import parts, style
from companion.tables.arrays import quartiles
from coupling_lib.datasets.summaries import Chance, interval
from tests.companion.figures.drawn import titles, words


@pytest.fixture
def axes():
    return Figure(figsize=(4, 3)).subplots()


def test_square_panels_stand_in_rows():
    figure, row = parts.panels(list("abcde"), 1.0, square=True)
    places = [axes.get_subplotspec() for axes in row]
    assert [(place.rowspan.start, place.colspan.start) for place in places] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert figure.axes == row and titles(row) == list("abcde")
    parts.pair_axes(row, [1, 2])
    assert [bool(axes.get_ylabel()) for axes in row] == [True, False, False, True, False]
    _, (axes,) = parts.panels(["llama3-70b"], 1, square=True)
    parts.pair_axes([axes], np.arange(80) + 1)
    assert words(axes.get_yticklabels()) == [str(block) for block in range(1, 81, 7)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("block $l'$  (singular vectors)", "block $l$  (Jacobian)")


def test_panel_title_is_shortened_to_fit():
    name = "a-model-with-a-long-name"
    assert [parts.head(name, columns) for columns in (2, 10)] == [name, "a-model-…"]
    assert parts.head(f"organisation/{name}", 3) == "a-model-with-a-long…"
    assert parts.head("untrained", 2) == "Untrained"


def test_band_is_drawn_only_with_an_interval():
    values = xr.DataArray(np.random.default_rng(1).normal(size=(4, 3)), dims=("prompt", "block"))
    values = values.assign_coords(block=[1, 2, 3])
    _, row = parts.panels(["a", "b", "c"], 3)
    for axes, summary in zip(row, (interval(values), interval(values[:1]), quartiles(values)), strict=True):
        parts.band(axes, summary, "block", "#000000")
    assert [len(axes.collections) for axes in row] == [1, 0, 1]
    drawn = [axes.lines[0].get_ydata() for axes in row]
    assert_allclose(drawn, [values.mean("prompt"), values[0], values.median("prompt")])


def test_strip_shows_prompts_quartiles_and_median(axes):
    values = np.array([5.0, 1.0, 3.0, np.nan, 2.0, 4.0])
    parts.strip(axes, 2, values, "#000000")
    assert [line.get_ydata().tolist() for line in axes.lines] == [[2.0, 4.0], [3.0, 3.0]]
    dots = axes.collections[0].get_offsets()
    assert np.ma.compressed(dots[:, 1]).tolist() == [5.0, 1.0, 3.0, 2.0, 4.0]
    assert (abs(dots[:, 0] - 2) <= 0.16).all()
    parts.strip(axes, 3, values[3:4], "#000000", width=0.4)
    assert len(axes.lines) == 2


def test_chance_line_is_one_minus_the_null(axes):
    axes.plot([0.2, 0.3])
    parts.chance(axes, Chance(0.95, 2e-5))
    line = axes.lines[1]
    assert line.get_ydata() == approx([0.05, 0.05]) and axes.get_ylim()[0] == 0
    assert line.get_label() == "by chance 0.050"


@pytest.mark.parametrize(("theme", "sign"), [("light", -1), ("dark", 1)])
def test_shades_become_monotonically_stronger(theme, sign):
    with style.theme(theme):
        light = [sum(bytes.fromhex(ink[1:])) for ink in parts.shades(4)]
    assert (sign * np.diff(light) > 0).all()


def test_step_axis_is_logarithmic_with_zero_apart(axes):
    zero, *places = parts.step_axis(axes, [0, 10, 100, 1000])
    assert places == approx([1, 2, 3]) and zero < 1 - 0.3
    assert words(axes.get_xticklabels()) == ["0", "10", "100", "1k"]
    assert len(axes.lines) == 3  # the break: a gap between two strokes
    assert all(zero < np.mean(line.get_xdata()) < 1 for line in axes.lines)
    unbroken = axes.figure.add_subplot()
    assert parts.step_axis(unbroken, [128, 143000]) == approx(np.log10([128, 143000]))
    assert not unbroken.lines


def test_thinned_steps_keep_first_and_last():
    for count in range(1, 160):
        chosen = parts.thinned(count)
        assert (chosen[0], chosen[-1]) == (0, count - 1) and len(chosen) <= 10
        assert chosen == sorted(set(chosen))


def test_steps_are_written_short():
    assert [*map(parts.short_step, (999, 1500, 10000, 143000))] == ["999", "1.5k", "10k", "143k"]


@pytest.mark.parametrize(("values", "fewest"), [([1.0, 1.5], 2), ([1.0, 80.0], 3), ([1e-3, 1e3], 3)])
def test_logarithmic_axis_has_plain_number_labels(axes, values, fewest):
    axes.plot(values)
    parts.log_axis(axes)
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    inside = words(label for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high)
    assert axes.get_yscale() == "log" and len(inside) >= fewest
    assert all(float(text) > 0 and "10^" not in text for text in inside)


def test_a_panel_without_a_positive_value_stays_linear(axes):
    axes.plot([np.nan, np.nan])
    parts.log_axis(axes)
    assert axes.get_yscale() == "linear"
