"""The table of trained vision transformers: one reading of it, fits, trends, and what prose quotes."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from refusals import refused

from companion.tables import vit_grid
from companion.tables.vit_grid import Reading
from coupling_lib.errors import ParameterError
from tests.companion.figures.test_vision import GRID, RATES, STATED

CLASS = Reading("class")
FIRST = GRID[GRID.seed == 0].assign(coupling=lambda grid: 1 - grid[CLASS.column])
FITS = vit_grid.fits_by_rate(GRID, CLASS, STATED).set_index("drop_path")


def test_fits_are_over_weight_decays_at_each_rate():
    assert list(FITS.index) == [*(f"{rate:g}" for rate in RATES), "all"]
    part, row = FIRST[FIRST.drop_path == 0.3], FITS.loc["0.3"]
    wanted = scipy.stats.linregress(part.coupling, part.test_accuracy)
    assert (row.models, row.paper, FITS.loc["all"].models) == (8, 0.83, 64) and np.isnan(FITS.loc["0.05"].paper)
    assert (row.r_squared, row.slope) == pytest.approx((wanted.rvalue**2, wanted.slope))


def test_intervals_hold_coupling_and_seeds_are_averaged():
    table = vit_grid.coupling_table(GRID, CLASS)
    assert (table.low < table.coupling).all() and (table.coupling < table.high).all()
    assert np.allclose(table.high - table.coupling, 0.002) and np.allclose(table.random_bases, 0.048)
    table = vit_grid.seeds_table(GRID, CLASS)
    assert len(table) == 16 and (table.seeds == 3).all()
    values = 1 - GRID.loc[(GRID.weight_decay == 0.04) & (GRID.drop_path == 0.2), CLASS.column]
    row = table[(table.token == "class") & (table.drop_path == 0.2)].iloc[0]
    assert (row.coupling, row.low, row.high) == pytest.approx((values.mean(), values.min(), values.max()))


def test_every_cell_may_have_its_own_seed():
    own = GRID.drop_duplicates(["weight_decay", "drop_path"]).assign(seed=lambda grid: range(len(grid)))
    assert vit_grid.first_seed(own).equals(own)
    again = pd.concat([own, own.assign(seed=own["seed"] + 100)], ignore_index=True)
    assert vit_grid.first_seed(again)["seed"].tolist() == own["seed"].tolist()


def test_trends_are_rank_correlations_with_the_rate():
    row = vit_grid.trend_table(GRID, CLASS).set_index("weight_decay").loc[0.1]
    part = FIRST[FIRST.weight_decay == 0.1]
    expected = (scipy.stats.spearmanr(part.drop_path, part.coupling).statistic, part.coupling[part.drop_path == 0])
    assert (row.coupling_rank, row.without) == pytest.approx((expected[0], expected[1].item()))


def test_nearest_reading_is_taken_and_missing_is_refused(tmp_path):
    assert vit_grid.nearest_reading(GRID, 0, 30, "normalized_miscoupling") == Reading("class", 10)
    assert vit_grid.nearest_reading(GRID, -1, 4, "normalized_miscoupling") == Reading("patch", 3)
    lacking = Reading("class", 7, "mismatch")
    refused(ParameterError, "the grid has no column 'class.k7.mismatch'", vit_grid.coupling_table, GRID, lacking)
    refused(ParameterError, r"no grid in none\.csv, .*; make one with", vit_grid.read_grid, tmp_path / "none.csv")
    for content in (b"", b"\x89PNG\xff\xfe\0", b'a,"b', b"model,drop_path\n"):
        (tmp_path / "bad.csv").write_bytes(content)
        message = r"no grid in bad\.csv, which lacks .*weight_decay.*; make one with"
        refused(ParameterError, message, vit_grid.read_grid, tmp_path / "bad.csv")


def test_quoted_numbers_match_tables_and_effects():
    found = vit_grid.numbers_of(GRID, CLASS, "someone/else")
    assert found["models"] == len(GRID) and found["r-squared-0.3"] == FITS.loc["0.3"].r_squared
    assert found["coupling-class-null-error"] < 1e-3 and found["coupling-patch-null-error"] < 1e-3
    assert found["coupling-class-null"] == pytest.approx(0.048) and all(np.isfinite(v) for v in found.values())
    assert "rank-patch-low" in found
    assert found["accuracy-class"] == pytest.approx(FIRST.coupling.corr(FIRST.test_accuracy))
    # Eight rates show strong correlations only, and three seeds no small rise.
    shipped = vit_grid.numbers_of(vit_grid.read_grid(), CLASS, "nano-vit")
    assert shipped["steeper-class-seen"] == pytest.approx(0.878, abs=0.001)
    rise = [shipped[f"rise-class{end}"] for end in ("", "-low", "-high")]
    assert rise == pytest.approx([0.0051, -0.0035, 0.0136], abs=5e-5)


def test_provenance_and_circumstances_name_models_data_and_machine():
    line = vit_grid.grid_provenance(GRID, "make book")
    assert "80 ViTs on digits" in line and "seeds 0, 1, 2" in line and line.endswith("a machine · torch 1 · make book")
    grid = vit_grid.read_grid()
    found = vit_grid.circumstances(grid, "nano-vit", spread=4 / 719)
    assert found == {"grid-epochs": 14.0, "model-epochs": 100.0, "test-pictures": 719.0, "pictures-spread": 4.0}
    assert "model-epochs" not in vit_grid.circumstances(grid, "someone/else", spread=0.0)


def test_models_of_one_rate_count_once():
    settings = [(seed, decay) for seed, decays in enumerate(((1, 2, 3), (2,), (2,))) for decay in decays]
    rows = [
        {"weight_decay": decay, "drop_path": rate, "seed": seed, "coupling": 0.06 + 0.01 * rate + 1e-5 * decay,
         "test_accuracy": 0.96 - 0.02 * rate + 1e-4 * decay + 1e-5 * rate * decay**2}
        for seed, decay in settings
        for rate in (0.0, 0.1, 0.2, 0.3)
    ]  # fmt: skip
    found = vit_grid.of_grid(pd.DataFrame(rows), "class")
    assert found["rank-class"].n == 3 and found["rank-class"].value == pytest.approx(1)
    assert found["accuracy-class"].n == 4 and found["accuracy-class"].value < -0.9
    assert found["within-class"].value == pytest.approx(1, abs=2e-3) and found["steeper-class"].n == 4
