"""Nulls of the shipped tables: cleared of the luck of few draws, and everything else as it was."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest
import torch

from coupling_lib.errors import ParameterError
from coupling_lib.metrics.nulls import closed_form_null, gaussian_miscoupling
from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.paths import DATA
from workflow import derived_nulls

SUITE = pd.read_csv(DATA / "suite.csv", comment="#")
GRID = pd.read_csv(DATA / "vit_grid.csv")
TABLES = {
    "suite": SUITE,
    "regulariser": pd.read_csv(DATA / "regulariser.csv", comment="#"),
}
D, KS = 32, (3, 5, 10)
# Beyond the measured head a recorded null took the spectrum for flat.
S = torch.stack([torch.arange(1, D + 1, dtype=torch.float64).clamp(max=10) ** -a for a in (0.3, 0.5)])


def null_columns(table: pd.DataFrame) -> list[str]:
    return [name for name in table if name.endswith("_null")]


def columns_at(kind: str, table: pd.DataFrame, variant: str) -> list[tuple[str, np.ndarray]]:
    """Null columns of a variant with the K of each row."""
    if kind == "grid":
        found = [name for name in table if name.endswith(f".{variant}_null")]
        return [(name, np.full(len(table), int(name.split(".")[1][1:]))) for name in found]
    return [
        (f"{variant}_k{label}_null", table["k_tenth"].values if label == "tenth" else np.full(len(table), int(label)))
        for label in ("5", "10", "tenth")
    ]


@pytest.mark.parametrize(("kind", "table"), [*TABLES.items(), ("grid", GRID)])
def test_the_main_reading_s_null_is_the_closed_form_whatever_the_row(kind, table):
    for name, ks in columns_at(kind, table, "normalized_miscoupling"):
        for k in np.unique(ks):
            values = table.loc[ks == k, name]
            gaussian, root = gaussian_miscoupling(int(k)), np.sqrt(1 - 1 / k)
            # The spectrum moves it by no more than this.
            assert abs(values - gaussian).max() < 0.003 / k, (name, k)
            assert values.max() < root and np.ptp(values) < 0.003 / k


@pytest.mark.parametrize(("kind", "table"), [*TABLES.items(), ("grid", GRID)])
def test_nulls_that_know_no_spectrum_depend_on_width_and_k_alone(kind, table):
    for variant in ("basis_uu", "basis_vv", "basis_uv", "basis_vu", "released_diag"):
        for name, ks in columns_at(kind, table, variant):
            for _, values in table[name].groupby([table["width"], ks]):
                assert np.ptp(values) == 0, name
            width, k = int(table["width"].iloc[0]), int(ks[0])
            root = closed_form_null(variant, torch.ones(width, dtype=torch.float64), width, k).item()
            assert 0 < root - table[name].iloc[0] < 0.02 * root, name


@pytest.mark.parametrize(("kind", "table"), [*TABLES.items(), ("grid", GRID)])
def test_readings_of_one_distribution_have_one_null_and_the_raw_one_has_none(kind, table):
    for name, twin in derived_nulls.TWINS.items():
        for (one, _), (other, _) in zip(columns_at(kind, table, name), columns_at(kind, table, twin), strict=True):
            assert (table[one] == table[other]).all()
    variants = {name.split(".")[-1].removesuffix("_null") for name in null_columns(table)}
    if kind != "grid":
        variants = {name.rsplit("_k", 1)[0] for name in null_columns(table)}
    assert variants == set(VARIANTS) - {"miscoupling"}
    assert table[null_columns(table)].notna().all(axis=None)


def test_the_replay_is_what_the_old_simulation_recorded():
    """The row of nano-neox after 10,000 steps held 0.952798 at K = 10 before; any spectrum like its own shows why."""
    flat = torch.ones(1, 96, dtype=torch.float64)
    found = derived_nulls.replayed(flat, (5, 10), 20)
    assert found["basis_uu", 10] == pytest.approx(3.0578, abs=1e-4)
    assert found["basis_vu", 5] == pytest.approx(2.1196, abs=1e-4)
    assert found["released_diag", 10] == pytest.approx(3.09264, abs=1e-5)


def test_derived_nulls_are_the_exact_ones_within_a_thousandth():
    recorded = derived_nulls.replayed(S, KS, 20)
    found = derived_nulls.derived(recorded, D, KS, 20, more=3000)
    names = [name for name in VARIANTS if name != derived_nulls.LEFT_OUT]
    exact = derived_nulls.exact(S, D, KS, names, more=3000)
    assert set(found) == set(exact)
    for key, (value, _) in exact.items():
        assert found[key] == pytest.approx(value, rel=0.03 if key[0] == derived_nulls.CYCLIC else 1e-3), key
    luck = {key[0]: abs(recorded[key] / value - 1) for key, (value, _) in exact.items() if key[1] == 5}
    assert luck["normalized_miscoupling"] > 0.005


def test_a_table_keeps_everything_but_its_nulls_and_is_not_derived_twice(tmp_path):
    recorded = derived_nulls.replayed(S, (3, 5, 10), 20)
    nulls = {f"{name}_k{k}_null": recorded[name, int(k)] for name in VARIANTS for k in ("5", "10")}
    nulls |= {f"{name}_ktenth_null": recorded[name, 3] for name in VARIANTS}
    row = {"model": 'a "name", with a comma', "width": D, "k_tenth": 3, "miscoupling_k5": 0.123456789, **nulls}
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        file.write("# what it is\n")
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)
    derived_nulls.main(["suite", str(table)])
    text = table.read_text().splitlines()
    assert text[0] == "# what it is" and "derived, not retrained" in text[1]
    found = pd.read_csv(table, comment="#").iloc[0]
    assert found.model == row["model"] and "0.123456789" in text[-1]
    assert set(found.index) == set(row) - {f"miscoupling_k{k}_null" for k in ("5", "10", "tenth")}
    assert found["normalized_miscoupling_k10_null"] == pytest.approx(gaussian_miscoupling(10), abs=3e-4)
    with pytest.raises(ParameterError, match="has no null of 'miscoupling', so that its nulls are derived already"):
        derived_nulls.main(["suite", str(table)])


def test_the_errors_that_were_found_are_small_and_written_down_for_every_reading():
    errors = pd.read_csv(DATA / "null_errors.csv")
    assert set(errors.variant) == set(VARIANTS) - {"miscoupling"} and set(errors.table) == {"suite", "grid"}
    main = errors[errors.variant == "normalized_miscoupling"]
    assert main.error.max() < 5e-4 and main[main.k == 10].error.max() < 1e-4
    mismatches = errors[errors.variant.isin([*derived_nulls.SHIFTED, *derived_nulls.TWINS])]
    assert mismatches.error.max() < 2e-3
