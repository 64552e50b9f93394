"""Tables behind the figures of precision, against loops written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from coupling_lib.figures import precision_data

from .precision_example import PROMPTS, K, L, make_precision

OFF = [(i, j) for i in range(L) for j in range(L) if i != j]


@pytest.fixture(scope="module")
def ds():
    return make_precision()


def test_value_table_holds_relative_errors_against_the_reference(ds):
    table = precision_data.value_table(ds)
    assert len(table) == 2 * PROMPTS * L * K and set(table.precision) == {"int8", "nf4"}
    row = table[(table.precision == "nf4") & (table.prompt == 2) & (table.block == 4) & (table["rank"] == 3)]
    values = ds.singular_values.values[:, 1, 3, 2]
    assert row.relative_error.item() == pytest.approx(abs(values[2] / values[0] - 1))


def test_angle_table_holds_the_angles_of_both_sides(ds):
    table = precision_data.angle_table(ds)
    row = table[(table.precision == "int8") & (table.vectors == "V") & (table.prompt == 1) & (table.block == 5)]
    assert row.degrees.tolist() == pytest.approx(ds.angle.values[1, 0, 1, 0, 4].tolist())


def test_share_kept_is_the_mean_squared_cosine(ds):
    wanted = np.mean(np.cos(np.deg2rad(ds.angle.values[2, 0, 0, 1, 3])) ** 2)
    found = precision_data.kept_share(ds).sel(precision="nf4", side="U").isel(example=1, block=3)
    assert float(found) == pytest.approx(wanted)


def test_pair_table_sets_the_coupling_of_different_blocks_beside_the_references(ds):
    table = precision_data.pair_table(ds)
    assert len(table) == 2 * len(OFF) and not (table.block_jacobian == table.block_vectors).any()
    row = table[(table.precision == "nf4") & (table.block_jacobian == 2) & (table.block_vectors == 5)]
    values = 1 - ds.normalized_miscoupling.values[:, :, 1, 4].mean(axis=1)
    assert (row.reference.item(), row.coupling.item()) == pytest.approx((values[0], values[2]))


def test_coupling_table_has_means_and_paired_differences_with_intervals(ds):
    table = precision_data.coupling_table(ds).set_index("precision")
    values = 1 - ds.normalized_miscoupling.values
    means = np.array([[np.mean([prompt[i, j] for i, j in OFF]) for prompt in one] for one in values])
    assert table.coupling.tolist() == pytest.approx(means.mean(axis=1).tolist())
    difference = means[2] - means[0]
    nf4 = table.loc["nf4"]
    assert nf4.difference == pytest.approx(difference.mean())
    expected = scipy.stats.t.interval(0.95, 3, difference.mean(), scipy.stats.sem(difference))
    assert (nf4.difference_low, nf4.difference_high) == pytest.approx(expected)
    assert nf4.difference_high - nf4.difference_low < 0.2 * (nf4.high - nf4.low)  # what prompts share is taken out
    pairs = [[one[:, i, j].mean() for i, j in OFF] for one in values]
    assert nf4.correlation == pytest.approx(np.corrcoef(pairs[0], pairs[2])[0, 1])


def test_source_table_leaves_a_block_with_itself_out_and_shows_gaps_as_gaps(ds):
    table = precision_data.source_table(ds).set_index(["quantity", "precision", "source"])
    errors = ds.coupling_error.sel(precision="nf4", source="weights").values
    wanted = np.median([one[i, j] for one in errors for i, j in OFF])
    assert table.loc[("coupling_error", "nf4", "weights"), "median"] == pytest.approx(wanted)
    gap = ds.copy()
    gap["angle"] = gap.angle.where(gap.source != "float16 arithmetic")
    gaps = precision_data.source_table(gap).set_index(["quantity", "source"])["median"]
    assert gaps.loc["angle", "float16 arithmetic"].isna().all() and gaps.loc["angle", "weights"].notna().all()


def test_summary_says_what_share_of_the_coupling_beyond_chance_is_lost(ds):
    summary = precision_data.summary_table(ds, null=0.95)
    table = precision_data.coupling_table(ds).set_index("precision")
    excess = table.coupling["float32"] - 0.05
    assert summary.loc["nf4", "lost %"] == pytest.approx(-100 * table.difference["nf4"] / excess)
    assert summary.loc["float32", "kept %"] == pytest.approx(100, abs=1e-6)
    errors = np.abs(ds.singular_values.values[2] / ds.singular_values.values[0] - 1)
    assert summary.loc["nf4", "values %"] == pytest.approx(100 * np.median(errors))


def test_quotable_names_each_number_of_the_summary_once(ds):
    summary = precision_data.summary_table(ds, null=0.95)
    found = precision_data.quotable(summary)
    assert len(found) == summary.size
    assert found["difference-nf4-low"] == summary.loc["nf4", "difference_low"]
    assert found["lost-int8"] == summary.loc["int8", "lost %"]


def test_one_prompt_has_no_interval(ds):
    table = precision_data.coupling_table(ds.isel(prompt=[0]))
    assert table.coupling.notna().all() and table.difference_low.isna().all()
