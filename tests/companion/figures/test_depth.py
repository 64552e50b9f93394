"""Coupling across depth: what is taken, against loops written out; what is drawn is what was taken, on one scale."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex

from companion.figures import depth, style
from companion.figures.labels import SYMBOLS
from companion.figures.show import frame
from companion.tables.arrays import each_network, side_by_side
from coupling_lib.datasets.parts import SHARED
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.datasets.summaries import Chance
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.variants import VARIANTS
from tests.companion.figures import made
from tests.companion.figures.made import make_depth

NAME, NULL = "normalized_miscoupling", Chance(0.95, 9e-6)


def networks(n):
    return made.networks(n, lambda place: make_depth((0.06, 0.4, 0.2)[place], seed=place + 1))


BOTH = networks(2)
STATES = dict(each_network(BOTH))
"""An untrained model, about as coupled as chance, and a trained one."""


def models(n):
    """Several models, each before and after training."""
    return depth.take_models({f"model {i}": networks(2) for i in range(n)}, NAME, 4, NULL)


def models_matrices(n):
    """Matrices of several models, of which one lacks a block."""
    names = ["nano-llama", *(f"organisation/model {i}" for i in range(n + 3))]
    found = {name: make_depth(0.4, seed=i) for i, name in enumerate(names)}
    found["nano-llama"] = found["nano-llama"].isel(block_1=slice(3), block_2=slice(3))
    return depth.take_matrices_of(found, [0, 2, 3], 4)


CASES = {
    "draw_matrices of models": (depth.draw_matrices, models_matrices),
    "draw_graph beyond": (
        depth.draw_graph, lambda n: depth.take_graph(networks(n), NAME, 4, NULL), {"beyond": True},
    ),
    "draw_models in rows": (depth.draw_models, lambda n: models(n + 4)),
}  # fmt: skip


def test_every_drawable_variant_is_measured():
    assert set(SYMBOLS) < set(VARIANTS)


def test_map_is_mean_over_prompts_without_diagonal():
    table = frame(depth.take_map(BOTH, NAME, 3, NULL))
    assert len(table) == 2 * 6 * 5
    row = table[(table.network == "trained") & (table.block_jacobian == 2) & (table.block_vectors == 5)]
    expected = np.mean([STATES["trained"][NAME].values[prompt, 0, 1, 4] for prompt in range(5)])
    assert row.coupling.item() == pytest.approx(1 - expected, abs=1e-12)
    assert not (table.block_jacobian == table.block_vectors).any()
    depth.take_map(BOTH, NAME, 3, NULL)
    assert np.isfinite(BOTH[NAME].values).all() and BOTH.block_1.values.tolist() == list(range(6))


def test_graph_edge_is_mean_of_both_directions():
    table = frame(depth.take_graph(BOTH, NAME, 4, NULL)).set_index(["network", "block_a", "block_b"]).coupling
    values = STATES["untrained"][NAME].values[:, 1]
    assert len(table) == 2 * 15
    assert table["untrained", 1, 6] == pytest.approx(1 - (values[:, 0, 5].mean() + values[:, 5, 0].mean()) / 2)


def test_distribution_has_every_prompt_at_every_distance():
    values = STATES["trained"][NAME].values[:, 0]
    taken = depth.take_distribution(BOTH, NAME, 3, NULL)
    for prompt in range(5):
        for apart in range(1, 6):
            expected = [1 - values[prompt, i, j] for i in range(6) for j in range(6) if abs(i - j) == apart]
            got = taken.by_distance.sel(network="trained", distance=apart)[prompt]
            assert got == pytest.approx(np.mean(expected), abs=1e-12)
    assert len(frame(taken)) == 2 * 5 * (1 + 5) + 2 * 5
    # The diagonal is 0, 30 pairs are left.
    assert taken.all_pairs.sel(network="trained")[2] == pytest.approx(1 - values[2].sum() / 30)
    assert np.allclose(taken["mean"], taken.by_distance.mean("prompt"))
    assert ((taken.low < taken["mean"]) & (taken["mean"] < taken.high)).all()


def test_matrices_are_absolute_relative_to_largest_singular_value():
    taken = depth.take_matrices(BOTH, blocks=[1, 3], k=3)
    trained = taken.sel(network="trained")
    expected = abs(STATES["trained"].matrix.values[1, 3, 2, 0]) / STATES["trained"].singular_values.values[0, 1, 0]
    assert trained.sel(block_jacobian=2, block_vectors=4, row=3, column=1) == pytest.approx(expected)
    assert trained.sel(block_jacobian=2, block_vectors=2, row=1, column=1) == pytest.approx(1.0)
    assert taken.column.values.tolist() == [1, 2, 3]
    assert np.array_equal(depth.take_matrices(BOTH.assign(matrix=-BOTH.matrix), [1, 3], 3), taken)
    message = "the first prompt here is not that of the coupling matrices"
    for other in (BOTH.isel(prompt=[1, 0]), BOTH.assign(matrix=BOTH.matrix.expand_dims(prompt=BOTH.prompt))):
        with pytest.raises(ParameterError, match=message):
            depth.take_matrices(other, [1, 3], 3)


def test_summary_has_rows_for_networks_and_chance():
    table = depth.take_summary(BOTH, NAME, 4, NULL)
    assert list(table.index) == ["untrained", "trained", "by chance"]
    values = STATES["trained"][NAME].sel(k=4).values
    each = 1 - values.sum(axis=(1, 2)) / 30
    near = 1 - np.mean([values[:, i, j] for i in range(6) for j in range(6) if abs(i - j) == 1])
    low, high = (float(end) for end in mean_interval(each)[1:3])
    assert table.loc["trained"].tolist() == pytest.approx([each.mean(), low, high, near])
    chance = table.loc["by chance"]
    assert chance["all pairs"] == chance["neighbours"] == pytest.approx(0.05) and np.isnan(chance["low"])
    numbers = depth.numbers_of(BOTH, {"all pairs": 0.002, "neighbours": 0.003}, NAME, 4, NULL)
    named = [numbers[f"coupling-trained{end}"] for end in ("", "-low", "-high")]
    assert named == pytest.approx(table.loc["trained"].tolist()[:3])
    assert numbers["neighbours-untrained"] == table.loc["untrained", "neighbours"]
    assert (numbers["coupling-null"], numbers["coupling-null-error"]) == pytest.approx((0.05, 9e-6))
    assert numbers["on-diagonal-chance"] == pytest.approx(1 - 0.95**2)
    assert numbers["on-diagonal-trained"] == pytest.approx(1 - (1 - each.mean()) ** 2)
    assert (numbers["null-spread"], numbers["neighbours-spread"]) == (0.002, 0.003)
    assert (numbers["prompts"], numbers["local"]) == pytest.approx((5, near - each.mean()))


def test_models_hold_pairs_and_coupling_by_distance():
    table = frame(depth.take_models({"a": BOTH, "b": BOTH}, NAME, 3, NULL))
    assert len(table) == 2 * 2 * (30 + 5)
    row = table[(table.model == "b") & (table.network == "trained") & (table.block_jacobian == 2)].iloc[-1]
    values = STATES["trained"][NAME].values[:, 0]
    assert row.block_vectors == 6 and row.coupling == pytest.approx(1 - values[:, 1, 5].mean())
    far = table[(table.model == "b") & (table.network == "trained") & (table.distance == 5)].iloc[0]
    assert far["mean"] == pytest.approx(1 - (values[:, 0, 5] + values[:, 5, 0]).mean() / 2)


def test_unmeasured_variant_k_and_single_block_are_refused():
    with pytest.raises(ParameterError, match="variant is 'no_such'"):
        depth.take_map(BOTH, "no_such", 3, NULL)
    with pytest.raises(ParameterError, match="k is 5; measured were 3, 4"):
        depth.take_map(BOTH, NAME, 5, NULL)
    with pytest.raises(ParameterError, match="k is 9; matrices were measured up to 4"):
        depth.take_matrices(BOTH, [0], 9)
    with pytest.raises(ParameterError, match="1 block"):
        depth.take_map(BOTH.isel(block_1=[0], block_2=[0]), NAME, 3, NULL)


def test_matrix_colour_scale_is_of_different_blocks():
    taken = depth.take_matrices(BOTH, [0, 2, 3], 4)
    left, right = depth.draw_matrices(taken).axes[:2]
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "3", "4"]
    assert (left.get_ylabel(), left.get_title()) == ("block $l$  (Jacobian)", "Untrained")
    image = right.images[0].get_array().filled(np.nan)
    assert image.shape == (3 * 5 - 1, 3 * 5 - 1)
    expected = taken.sel(network="trained", block_jacobian=3, block_vectors=4).transpose("row", "column")
    assert np.allclose(image[5:9, 10:14], expected)
    assert np.isnan(image[4]).all() and np.isnan(image[:, 9]).all()
    grids = [grid.transpose("block_jacobian", "block_vectors", ...).values for grid in taken]
    largest = max(grid[i, j].max() for grid in grids for i in range(3) for j in range(3) if i != j)
    assert {axes.images[0].get_clim() for axes in depth.draw_matrices(taken).axes[:2]} == {(0, largest)}


def test_matrices_of_models_are_sorted_by_size():
    short = BOTH.sel(network=["trained"]).isel(block_1=slice(3), block_2=slice(3))
    given = {"a folder/mine": BOTH, "gpt2": BOTH, "nano-llama": short, "b": BOTH, "c": BOTH}
    taken = depth.take_matrices_of(given, [0, 2, 3], 4)
    assert taken.network.values.tolist() == ["nano-llama", "gpt2", "a folder/mine", "b", "c"]
    trained = depth.take_matrices(BOTH.sel(network=["trained"]), [0, 2, 3], 4).sel(network="trained")
    xr.testing.assert_allclose(taken.sel(network="gpt2", drop=True), trained.drop_vars("network"))
    assert taken.sel(network="nano-llama", block_vectors=4).isnull().all()
    figure = depth.draw_matrices(taken)
    assert [axes.get_title() for axes in figure.axes[:5]] == ["nano-llama", "gpt2", "mine", "b", "c"]
    named = [bool(axes.get_ylabel()) for axes in figure.axes[:5]]
    assert named == [True, False, False, True, False]


def test_map_image_and_scale_leave_out_diagonal():
    figure = depth.draw_map(depth.take_map(BOTH, NAME, 4, null=0.99))
    image = figure.axes[1].images[0]
    values = image.get_array()
    assert np.ma.getmaskarray(values).diagonal().all() and np.ma.getmaskarray(values).sum() == 6
    off = [1 - d[NAME].sel(k=4).mean("prompt").values[~np.eye(6, dtype=bool)] for d in STATES.values()]
    np.testing.assert_allclose(np.ma.compressed(values), off[1], rtol=1e-12)
    assert image.get_clim() == pytest.approx((min(np.min(off), 0.01), np.max(off)))
    assert figure.axes[0].images[0].get_clim() == image.get_clim()
    assert to_hex(figure.axes[1].get_facecolor()) == style.colour("mask")
    bar = figure.axes[-1]
    assert not bar.xaxis_inverted() and bar.texts[-1].get_text() == "by chance"
    assert list(bar.lines[-1].get_xdata()) == pytest.approx([0.01, 0.01]) and bar.get_xlabel().startswith("coupling")


def test_edge_width_is_proportional_to_coupling():
    taken = depth.take_graph(BOTH, NAME, 4, null=0.95)
    figure = depth.draw_graph(taken)
    table = frame(taken)
    widths = [sorted(line.get_linewidth() for line in axes.lines) for axes in figure.axes[:2]]
    expected = [
        sorted(2.8 * table.coupling[table.network == name] / table.coupling.max()) for name in BOTH.network.values
    ]
    assert np.allclose(np.concatenate(widths), np.concatenate(expected))
    sample = figure.legends[0].get_lines()[0]
    assert sample.get_linewidth() == pytest.approx(2.8 * 0.05 / table.coupling.max())
    assert figure.legends[0].get_texts()[0].get_text() == "0.05 (by chance)"
    # Nodes stand clockwise from the top and count from 1.
    nodes = figure.axes[0].collections[0].get_offsets()
    assert np.allclose(nodes[[0, 3]], [[0, 1], [0, -1]], atol=1e-12) and (nodes[1:3, 0] > 0).all()
    assert [text.get_text() for text in figure.axes[0].texts] == list("123456")
    figure = depth.draw_graph(taken, beyond=True)
    for axes, name in zip(figure.axes[:2], BOTH.network.values, strict=True):
        assert len(axes.lines) == (taken.sel(network=name) > 1 - 0.95).sum()
    top = f"+{taken.max().item() - 0.05:.2f}"
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == top


def test_distribution_draws_prompts_median_and_chance():
    taken = depth.take_distribution(BOTH, NAME, 4, null=0.95)
    figure = depth.draw_distribution(taken)
    left, right = figure.axes
    shown = taken.all_pairs.sel(network="trained").values
    assert np.allclose(sorted(left.collections[1].get_offsets()[:, 1]), sorted(shown))
    medians = [line.get_ydata()[0] for line in left.lines if np.ptp(line.get_xdata()) == pytest.approx(0.16)]
    assert medians[1] == pytest.approx(np.median(shown))
    assert any(np.allclose(line.get_ydata(), 0.05) for line in right.lines)
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["untrained", "trained", "by chance"]
    graph = depth.draw_graph(depth.take_graph(BOTH, NAME, 4, null=0.95))
    for position, name in enumerate(BOTH.network.values):
        assert figure.axes[1].lines[position].get_color() == style.colour(name)
        assert to_hex(graph.axes[position].collections[0].get_edgecolor()[0]) == style.colour(name)


def test_models_share_one_scale_beside_untrained_and_chance():
    other = BOTH.isel(block_1=slice(4), block_2=slice(4), distance=slice(4))
    figure = depth.draw_models(depth.take_models({"nano-llama": BOTH, "a folder/second": other}, NAME, 4, null=0.97))
    first, second, curves = figure.axes[:3]
    assert [axes.get_title() for axes in (first, second)] == ["nano-llama", "second"]
    assert first.images[0].get_clim() == second.images[0].get_clim()
    assert second.images[0].get_array().shape == (4, 4)
    lines = {line.get_label(): line for line in curves.lines}
    assert lines["nano-llama"].get_color() == style.family_style("nano-llama")[0]
    assert len(lines["second"].get_xdata()) == 3 and np.allclose(lines["by chance"].get_ydata(), 0.03)
    expected = 1 - STATES["trained"].by_distance.sel(variant=NAME, k=4).mean("prompt").values[1:]
    assert np.allclose(lines["nano-llama"].get_ydata(), expected)
    dotted = [line for line in curves.lines if line.get_linestyle() == ":" and len(line.get_xdata())]
    blank = 1 - STATES["untrained"].by_distance.sel(variant=NAME, k=4).mean("prompt").values[1:]
    assert np.allclose(dotted[0].get_ydata(), blank)


def test_conjugation_null_is_drawn_at_trained_and_traceless():
    both = side_by_side(**STATES, **{SHARED: STATES["trained"]})
    values = np.random.default_rng(0).uniform(0.8, 0.9, (2, 2, 2, 1, 5))  # part, kind, span, k, prompt
    coords = {"part": ["whole", "traceless"], "kind": ["measured", "conjugated"], "k": [4]}
    coords |= {"span": ["all pairs", "neighbours"]}
    nulls = xr.Dataset({"normalised": (("part", "kind", "span", "k", "prompt"), values)}, coords)
    taken = depth.take_distribution(both, NAME, 4, NULL, nulls)
    wanted = [np.nan, 1 - values[0, 1, 0, 0].mean(), 1 - values[1, 1, 0, 0].mean()]
    np.testing.assert_allclose(taken.conjugated, wanted)
    left = depth.draw_distribution(taken).axes[0]
    dotted = [line for line in left.lines if line.get_zorder() == 4]
    assert [line.get_ydata()[0] for line in dotted] == pytest.approx(wanted[1:])
    assert [line.get_xdata().mean() for line in dotted] == [1, 2]
    assert [text.get_text() for text in left.texts] == ["conjugated"]
    for none in (
        depth.take_distribution(both, "mismatch", 4, NULL, nulls),
        depth.take_distribution(both, NAME, 4, NULL),
    ):
        assert "conjugated" not in none and not depth.draw_distribution(none).axes[0].texts
