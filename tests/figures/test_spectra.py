"""Figures of spectra: what is drawn is what was measured."""

import numpy as np
import pytest

from coupling_lib.figures import spectra, spectra_data, style
from coupling_lib.metrics.statistics import mean_interval
from tests.figures.drawn import assert_repeats, assert_text_inside
from tests.figures.linear_cases import make_fits, make_null, make_spectra

FIGURES = {
    "top_values": lambda c: spectra.top_values(c["both"]),
    "inverse_top_value": lambda c: spectra.inverse_top_value(c["both"], c["fits"]),
    "whole_spectrum": lambda c: spectra.whole_spectrum(c["both"]),
    "left_and_right": lambda c: spectra.left_and_right(c["both"], c["nulls"]),
}


def cases(names=("untrained", "trained"), count=5):
    return {
        "both": {name: make_spectra(1 + i, i, count) for i, name in enumerate(names)},
        "fits": {name: make_fits(i, count) for i, name in enumerate(names)},
        "nulls": {name: make_null(i) for i, name in enumerate(names)},
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte(figure, theme):
    assert_repeats(lambda: FIGURES[figure](cases()), theme)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize(("names", "count"), [(("a model",), 1), (("a", "b", "c"), 5)])
def test_every_figure_takes_one_prompt_and_any_number_of_models(figure, names, count):
    assert_text_inside(lambda: FIGURES[figure](cases(names, count)))


def test_top_values_are_medians_per_rank_with_the_first_ten_in_the_networks_colour():
    both = cases()["both"]
    axes = spectra.top_values(both).axes[1]
    values = both["trained"].singular_values.values
    assert len(axes.lines) == 12
    for rank, line in enumerate(axes.lines):
        np.testing.assert_allclose(line.get_ydata(), np.median(values[:, :, rank], axis=0))
        assert (line.get_color() == style.colour("trained")) == (rank < 10)
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3, 4, 5, 6]


def test_inverse_is_the_mean_with_its_interval_and_the_line_spans_the_blocks_of_the_fit():
    case = cases()
    table = spectra_data.inverse_table(case["both"], case["fits"])
    rows = table[table.network == "trained"]
    inverse = 1 / case["both"]["trained"].singular_values.values[:, :, 0]
    np.testing.assert_allclose(rows["mean"], inverse.mean(axis=0))
    np.testing.assert_allclose(rows.low, mean_interval(inverse).low)
    assert rows.line.isna().tolist() == [True, True, False, False, False, False]
    fit = case["fits"]["trained"]
    np.testing.assert_allclose(rows.line.values[4], float(fit.intercept.mean() + 5 * fit.slope.mean()))
    texts = [text.get_text() for text in spectra.inverse_top_value(case["both"], case["fits"]).axes[1].texts]
    assert texts[0].startswith("from block 3: slope") and f"R^2={float(fit.r_squared.mean()):.2f}" in texts[0]


def test_whole_spectrum_holds_all_singular_values_of_the_named_blocks():
    both = cases()["both"]
    table = spectra_data.whole_table(both)
    assert len(table) == 2 * 2 * 24 and set(table.block) == {1, 5}
    row = table[(table.network == "untrained") & (table.block == 5) & (table["rank"] == 24)]
    values = both["untrained"].spectrum.values[:, 1, 23]
    assert row[["median", "low", "high"]].values[0].tolist() == pytest.approx(
        np.quantile(values, (0.5, 0.25, 0.75)).tolist()
    )


def test_alignment_stands_beside_its_null_and_coupling_is_one_minus_the_mismatch():
    case = cases()
    table = spectra_data.alignment_table(case["both"], case["nulls"])
    rows = table[(table.network == "trained") & (table.quantity == "exchanged coupling")]
    np.testing.assert_allclose(rows["mean"], 1 - case["both"]["trained"].exchanged_miscoupling.values.mean(axis=0))
    np.testing.assert_allclose(rows.null, 1 - case["nulls"]["trained"].exchanged_miscoupling.values.mean(axis=0))
    assert (table[table.quantity == "alignment"].null == 0.16).all()
    assert table[table.quantity == "stable rank"].null.isna().all()


def test_summary_gives_means_and_intervals_that_hold_them():
    case = cases()
    table = spectra_data.summary_table(case["both"], case["fits"], case["nulls"])
    assert table.index.tolist() == ["untrained", "trained", "random bases"]
    assert table.loc["trained", "stable rank"] == pytest.approx(case["both"]["trained"].stable_rank.values.mean())
    assert table.loc["trained", "R2"] == pytest.approx(case["fits"]["trained"].r_squared.values.mean())
    assert table.loc["trained", "low"] < table.loc["trained", "alignment"] < table.loc["trained", "high"]
    assert table.loc["random bases", "alignment"] == 0.16
