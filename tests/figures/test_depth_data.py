"""Tables and arrays behind the depth figures, against loops written out."""

import numpy as np
import pytest
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.figures import depth_data
from coupling_lib.metrics.variants import VARIANTS

NAME = "normalized_miscoupling"


def test_every_mismatch_that_can_be_drawn_is_one_that_is_measured():
    assert set(depth_data.MISMATCHES) < set(VARIANTS)


def test_mismatch_table_holds_the_mean_over_prompts_of_every_pair_of_different_blocks(datasets):
    table = depth_data.mismatch_table(datasets, NAME, k=3)
    assert len(table) == 2 * 6 * 5
    row = table[(table.network == "trained") & (table.block_jacobian == 2) & (table.block_vectors == 5)]
    expected = np.mean([datasets["trained"][NAME].values[prompt, 0, 1, 4] for prompt in range(5)])
    assert row[NAME].item() == pytest.approx(expected, abs=1e-12)
    assert not (table.block_jacobian == table.block_vectors).any()


def test_adjacency_is_one_minus_the_mean_of_both_directions(datasets):
    table = depth_data.adjacency_table(datasets, NAME, k=4).set_index(["network", "block_a", "block_b"]).coupling
    values = datasets["untrained"][NAME].values[:, 1]
    assert len(table) == 2 * 15
    assert table["untrained", 1, 6] == pytest.approx(1 - (values[:, 0, 5].mean() + values[:, 5, 0].mean()) / 2)


def test_distances_average_over_pairs_equally_far_apart_in_both_directions(datasets):
    values = datasets["trained"][NAME].values[:, 0]
    for prompt in range(5):
        for apart in range(1, 6):
            expected = [1 - values[prompt, i, j] for i in range(6) for j in range(6) if abs(i - j) == apart]
            got = depth_data.distance_couplings(datasets["trained"], NAME, k=3)[prompt, apart - 1]
            assert got == pytest.approx(np.mean(expected), abs=1e-12)


def test_an_array_of_couplings_is_averaged_over_distances_like_a_measurement(datasets):
    coupling = 1 - depth_data.pair_mismatches(datasets["trained"], NAME, k=3)
    wanted = depth_data.distance_couplings(datasets["trained"], NAME, k=3)
    assert np.allclose(depth_data.coupling_by_distance(coupling), wanted)


def test_distribution_table_has_a_line_per_prompt_and_distance_and_one_for_all_pairs(datasets):
    table = depth_data.distribution_table(datasets, NAME, k=3)
    assert len(table) == 2 * 5 * (1 + 5)
    overall = table[(table.network == "trained") & (table.distance == "all")].set_index("prompt").coupling
    values = datasets["trained"][NAME].values[2, 0]
    assert overall[3] == pytest.approx(1 - values.sum() / 30)  # the diagonal is 0, 30 pairs are left


def test_matrices_are_relative_to_the_jacobians_largest_singular_value_and_have_no_sign(datasets):
    flipped = {"trained": datasets["trained"].assign(matrix=-datasets["trained"]["matrix"])}
    table = depth_data.matrix_table(datasets, blocks=[1, 3], k=3)
    trained = table[table.network == "trained"].set_index(["block_jacobian", "block_vectors", "row"])
    expected = abs(datasets["trained"].matrix.values[1, 3, 2, 0]) / datasets["trained"].singular_values.values[0, 1, 0]
    assert trained.loc[(2, 4, 3), "column_1"] == pytest.approx(expected)
    assert trained.loc[(2, 2, 1), "column_1"] == pytest.approx(1.0)
    assert list(table.columns[-3:]) == ["column_1", "column_2", "column_3"]
    signless = depth_data.matrix_table(flipped, blocks=[1, 3], k=3).drop(columns="network")
    assert np.array_equal(signless, table[table.network == "trained"].drop(columns="network"))


def summary(mean: float) -> xr.Dataset:
    values = np.array([[mean, mean + 0.01], [mean + 0.1, mean + 0.11]])  # pairs, k
    variables = {
        name: (("pairs", "k"), values + shift) for name, shift in (("mean", 0), ("low", -0.02), ("high", 0.03))
    }
    return xr.Dataset(variables, {"pairs": ["all pairs", "neighbours"], "k": [3, 4]})


def test_summary_table_has_a_line_per_network_and_one_for_chance():
    table = depth_data.summary_table({"untrained": summary(0.05), "trained": summary(0.2)}, k=4, null=0.95)
    assert list(table.index) == ["untrained", "trained", "random bases"]
    assert table.loc["trained"].tolist() == pytest.approx([0.21, 0.19, 0.24, 0.31])
    chance = table.loc["random bases"]
    assert chance["all pairs"] == chance["neighbours"] == pytest.approx(0.05) and np.isnan(chance["low"])


def test_models_table_names_model_network_and_distance_of_every_pair(datasets):
    table = depth_data.models_table({"a": datasets, "b": datasets}, NAME, k=3)
    assert len(table) == 2 * 2 * 30
    row = table[(table.model == "b") & (table.network == "trained") & (table.block_jacobian == 2)].iloc[-1]
    expected = 1 - datasets["trained"][NAME].values[:, 0, 1, 5].mean()
    assert (row.block_vectors, row.distance) == (6, 4) and row.coupling == pytest.approx(expected)


@pytest.mark.parametrize(
    ("variant", "k", "message"),
    [
        ("miscoupling", 3, "variant is 'miscoupling'"),
        ("no_such", 3, "variant is 'no_such'"),
        (NAME, 5, "k is 5; measured were 3, 4"),
    ],
)
def test_what_was_not_measured_or_has_no_coupling_is_refused(datasets, variant, k, message):
    with pytest.raises(ParameterError, match=message):
        depth_data.pair_mismatches(datasets["trained"], variant, k)


def test_more_singular_vectors_than_measured_and_a_lone_block_are_refused(datasets):
    with pytest.raises(ParameterError, match="k is 9; matrices were measured up to 4"):
        depth_data.relative_matrices(datasets["trained"], [0], 9)
    lone = datasets["trained"].isel(block_1=[0], block_2=[0])
    with pytest.raises(ParameterError, match="1 block"):
        depth_data.pair_mismatches(lone, NAME, 3)


def test_the_measurement_itself_is_left_as_it_was(datasets):
    depth_data.pair_mismatches(datasets["trained"], NAME, 3)
    assert np.isfinite(datasets["trained"][NAME].values).all()
