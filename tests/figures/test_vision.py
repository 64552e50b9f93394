"""Figures of the grid of vision transformers: what is drawn is what the table holds, in both themes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from coupling_lib.errors import ParameterError
from coupling_lib.figures import vision, vision_data
from coupling_lib.figures.vision_data import Reading
from tests.figures.drawn import assert_repeats, assert_text_inside

DECAYS, RATES = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2), (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
STATED = {0.0: 0.35, 0.3: 0.83}
CLASS, PATCH = Reading("class"), Reading("patch")


@pytest.fixture(scope="module")
def grid():
    rng = np.random.default_rng(0)
    rows = [
        {"model": f"wd{decay}-sd{rate}-seed{seed}", "weight_decay": decay, "drop_path": rate, "seed": seed}
        for decay in DECAYS
        for rate in RATES
        for seed in (range(3) if decay == 0.04 else [0])
    ]
    table = pd.DataFrame(rows).assign(
        data="digits", blocks=12, width=36, heads=3, patch=2, epochs=14, steps=224, batch=64, images=12,
        machine="a machine", versions="torch 1",
    )  # fmt: skip
    noise = rng.normal(size=(2, len(table)))
    for token in ("class", "patch"):
        for k in (3, 10):
            coupling = 0.06 + 0.05 * table.drop_path + 0.004 * noise[0]
            name = f"{token}.k{k}.normalized_miscoupling"
            table[name] = 1 - coupling
            table[f"{name}_low"], table[f"{name}_high"] = 1 - coupling - 0.002, 1 - coupling + 0.003
            table[f"{name}_null"], table[f"{name}_untrained"] = 0.952, 0.947
    table["test_accuracy"] = 0.96 + 2 * 0.004 * noise[0] + 0.004 * noise[1]
    table["train_accuracy"] = 0.99
    return table


FIGURES = {
    "accuracy_against_coupling": lambda g: vision.accuracy_against_coupling(g, CLASS, STATED),
    "coupling_against_rate": lambda g: vision.coupling_against_rate(g, [CLASS, PATCH]),
    "coupling_by_decay": lambda g: vision.coupling_by_decay(g, CLASS),
    "accuracy_by_rate": lambda g: vision.accuracy_by_rate(g, CLASS),
}


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_repeats_byte_for_byte_and_keeps_its_text_inside(figure, grid):
    for theme in ("light", "dark"):
        assert_repeats(lambda: FIGURES[figure](grid), theme)
        assert_text_inside(lambda: FIGURES[figure](grid), theme)


def test_fits_are_over_weight_decays_of_one_seed_at_each_rate(grid):
    fits = vision_data.fits_by_rate(grid, CLASS, STATED).set_index("drop_path")
    assert list(fits.index) == [*(f"{rate:g}" for rate in RATES), "all"]
    part = grid[(grid.drop_path == 0.3) & (grid.seed == 0)]
    wanted = scipy.stats.linregress(1 - part[CLASS.column], part.test_accuracy)
    row = fits.loc["0.3"]
    assert (row.models, row.paper) == (8, 0.83) and np.isnan(fits.loc["0.05"].paper)
    assert (row.r_squared, row.slope) == pytest.approx((wanted.rvalue**2, wanted.slope))
    assert fits.loc["all"].models == 64


def test_intervals_of_a_coupling_are_those_of_the_mismatch_turned_round(grid):
    table = vision_data.coupling_table(grid, CLASS)
    assert (table.low < table.coupling).all() and (table.coupling < table.high).all()
    assert np.allclose(table.high - table.coupling, 0.002) and np.allclose(table.random_bases, 0.048)


def test_the_row_of_several_seeds_is_averaged_over_them(grid):
    table = vision_data.seeds_table(grid, [CLASS, PATCH])
    assert len(table) == 16 and (table.seeds == 3).all()
    part = grid[(grid.weight_decay == 0.04) & (grid.drop_path == 0.2)]
    row = table[(table.token == "class") & (table.drop_path == 0.2)].iloc[0]
    values = 1 - part[CLASS.column]
    assert (row.coupling, row.low, row.high) == pytest.approx((values.mean(), values.min(), values.max()))


def test_trends_are_rank_correlations_with_the_rate(grid):
    trends = vision_data.trend_table(grid, CLASS).set_index("weight_decay")
    part = grid[(grid.weight_decay == 0.1) & (grid.seed == 0)]
    wanted = scipy.stats.spearmanr(part.drop_path, 1 - part[CLASS.column]).statistic
    assert trends.loc[0.1].coupling_rank == pytest.approx(wanted)
    assert trends.loc[0.1].without == pytest.approx(float(1 - part[part.drop_path == 0][CLASS.column].iloc[0]))


def test_the_scatter_draws_every_model_of_its_rates_once(grid):
    figure = vision.accuracy_against_coupling(grid, CLASS, STATED)
    dots = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", None, "|", "_")]
    assert sum(len(line.get_xdata()) for line in dots if line.get_linestyle() == "None") == 4 * 8
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0].startswith("rate 0:") and labels[0].endswith("paper 0.35") and "paper" not in labels[1]


def test_a_reading_is_the_nearest_k_of_the_table_and_unknown_ones_are_refused(grid):
    assert vision_data.nearest_reading(grid, 0, 30, "normalized_miscoupling") == Reading("class", 10)
    assert vision_data.nearest_reading(grid, -1, 4, "normalized_miscoupling") == Reading("patch", 3)
    with pytest.raises(ParameterError, match="the grid has no column 'class.k7.mismatch'"):
        vision_data.coupling_table(grid, Reading("class", 7, "mismatch"))


def test_quoted_numbers_have_unique_names_and_come_from_the_tables(grid):
    fits = vision_data.fits_by_rate(grid, CLASS, STATED)
    found = vision_data.quoted(grid, CLASS, [CLASS, PATCH], fits)
    assert found["models"] == len(grid) and found["r-squared-0.3"] == fits.set_index("drop_path").loc["0.3"].r_squared
    assert found["coupling-class-null-error"] < 1e-3
    assert found["coupling-class-null"] == pytest.approx(0.048) and all(np.isfinite(v) for v in found.values())


def test_a_missing_table_is_said_in_one_line(tmp_path):
    with pytest.raises(ParameterError, match=r"there is no none\.csv; make it with"):
        vision_data.read_grid(tmp_path / "none.csv")


def test_provenance_names_models_data_and_machine(grid):
    line = vision_data.grid_provenance(grid, "make book")
    assert "80 ViTs on digits" in line and "seeds 0, 1, 2" in line and line.endswith("a machine · torch 1 · make book")


def test_the_circumstances_are_those_of_the_grid_and_of_the_model_beside_it():
    grid = vision_data.read_grid()
    found = vision_data.circumstances(grid, "nano-vit", spread=4 / 719)
    assert found == {"grid-epochs": 14.0, "model-epochs": 100.0, "test-pictures": 719.0, "pictures-spread": 4.0}
    assert "model-epochs" not in vision_data.circumstances(grid, "someone/else", spread=0.0)
