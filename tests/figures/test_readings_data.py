"""Tables behind the figures of rival readings."""

from __future__ import annotations

import pytest

from coupling_lib.figures import readings_data
from coupling_lib.metrics.variants import VARIANTS

from .readings_example import make_agreement, make_by_block, make_choices, make_means


def test_means_table_has_a_line_per_network_variant_and_k():
    means = make_means()
    table = readings_data.means_table(means).set_index(["network", "variant", "k"])
    assert len(table) == 2 * 17 * 3
    chosen = means.sel(network="trained", variant="mismatch", k=30)
    assert table.loc[("trained", "mismatch", 30), "share_high"] == chosen.share_high.item()
    assert table.loc[("trained", "mismatch", 30), "null"] == chosen.null.item()


def test_agreement_table_has_a_line_per_ordered_pair_of_variants():
    table = readings_data.agreement_table(make_agreement()).set_index(["variant", "other"])
    wanted = make_agreement().low.sel(variant="basis_uu", other="mismatch").item()
    assert len(table) == 17**2 and table.loc[("basis_uu", "mismatch"), "low"] == wanted


def test_boundary_table_counts_blocks_from_one():
    table = readings_data.boundary_table(make_by_block())
    assert sorted(set(table.block)) == [1, 2, 3, 4, 5, 6]
    row = table[(table.boundary == "hidden_states") & (table.network == "trained") & (table.block == 6)]
    assert row["mean"].item() == make_by_block()["mean"].values[1, 1, 5]


def test_summary_has_a_line_per_variant_in_two_decimals_without_negative_zeros():
    means = make_means()
    means["share"][1, 3] = -0.001
    table = readings_data.summary_table(means, k=10)
    assert list(table.index) == list(VARIANTS)
    wanted = means["mean"].sel(network="untrained", variant="released_norm", k=10).item()
    assert table.loc["released_norm", "untrained"] == pytest.approx(wanted, abs=0.005)
    assert str(table["beyond chance"].iloc[3]) == "0.0"


def test_quotable_names_values_intervals_chance_agreement_and_choices():
    means, agreement, choices = make_means(), make_agreement(), make_choices()
    found = readings_data.quotable(means, agreement, choices, k=5)
    chosen = means.sel(network="trained", variant="mismatch", k=5)
    assert found["mismatch-trained"] == chosen["mean"].item() and found["mismatch-trained-low"] == chosen.low.item()
    assert found["mismatch-random-bases"] == chosen.null.item()
    assert found["mismatch-beyond-chance"] == chosen.share.item()
    wanted = agreement["mean"].sel(variant="basis_vv", other="normalized_miscoupling").item()
    assert found["agreement-basis_vv"] == wanted
    assert found["choice-2-untrained"] == pytest.approx(0.1) and found["choice-3-trained-null"] == pytest.approx(0.06)
