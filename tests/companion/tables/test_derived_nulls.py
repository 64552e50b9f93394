"""Nulls of the shipped tables, some derived afterwards as `data/tables.toml` says: what holds for all of them."""

import numpy as np
import pandas as pd
import pytest
import torch

from coupling_lib.datasets.parts import VARIANTS_OF_PARTS
from coupling_lib.metrics.nulls import gaussian_miscoupling
from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.paths import DATA

FILES = {"suite": "suite.csv", "grid": "vit_grid.csv"}
TABLES = {kind: pd.read_csv(DATA / file, comment="#") for kind, file in FILES.items()}
each_table = pytest.mark.parametrize(("kind", "table"), TABLES.items(), ids=TABLES)
# Of each of these the null has the distribution of another one's: it is the same reading with the vectors exchanged.
TWINS = {"released_norm_vju": "released_norm", "released_trace_vju": "released_trace"}


def columns_at(kind: str, table: pd.DataFrame, variant: str) -> list[tuple[str, np.ndarray]]:
    """Null columns of a variant with the K of each row."""
    if kind == "grid":
        found = [name for name in table if name.endswith(f".{variant}_null")]
        return [(name, np.full(len(table), int(name.split(".")[1][1:]))) for name in found]
    ks = {"5": np.full(len(table), 5), "10": np.full(len(table), 10), "tenth": table["k_tenth"].values}
    return [(f"{variant}_k{label}_null", values) for label, values in ks.items()]


@each_table
def test_null_of_main_reading_is_closed_form(kind, table):
    for name, ks in columns_at(kind, table, "normalized_miscoupling"):
        for k in np.unique(ks):
            values = table.loc[ks == k, name]
            # The spectrum moves it by no more than this.
            assert abs(values - gaussian_miscoupling(int(k))).max() < 0.003 / k, (name, k)
            assert values.max() < np.sqrt(1 - 1 / k) and np.ptp(values) < 0.003 / k


@each_table
def test_nulls_without_spectrum_depend_on_width_and_k(kind, table):
    for variant in ("basis_uu", "basis_vv", "basis_uv", "basis_vu", "released_diag"):
        for name, ks in columns_at(kind, table, variant):
            assert (table[name].groupby([table["width"], ks]).agg(np.ptp) == 0).all(), name
            width, k = int(table["width"].iloc[0]), int(ks[0])
            root = VARIANTS[variant].null(torch.ones(width, dtype=torch.float64), width, k).sqrt().item()
            assert 0 < root - table[name].iloc[0] < 0.02 * root, name


@each_table
def test_readings_of_one_distribution_share_a_null(kind, table):
    for name, twin in TWINS.items():
        for (one, _), (other, _) in zip(columns_at(kind, table, name), columns_at(kind, table, twin), strict=True):
            assert (table[one] == table[other]).all()
    nulls = [name for name in table if name.endswith("_null")]
    named = {"suite": lambda name: name.rsplit("_k", 1)[0], "grid": lambda name: name.split(".")[-1][: -len("_null")]}
    parts = {f"shared_{name}" for name in VARIANTS_OF_PARTS}
    expected = {"suite": set(VARIANTS) | parts, "grid": set(VARIANTS) - {"miscoupling"}}
    assert {named[kind](name) for name in nulls} == expected[kind]
    assert table[nulls].notna().all(axis=None)


def test_null_errors_are_small_for_every_reading():
    errors = pd.read_csv(DATA / "null_errors.csv")
    assert set(errors.variant) == set(VARIANTS) - {"miscoupling"} and set(errors.table) == {"grid"}
    main = errors[errors.variant == "normalized_miscoupling"]
    assert main.error.max() < 5e-4 and main[main.k == 10].error.max() < 1e-4
    assert errors[errors.variant != "old_off_over_diagonal"].error.max() < 2e-3
