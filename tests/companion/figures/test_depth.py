"""Coupling across depth: what is taken, against NumPy; what is drawn is what was taken, on one scale."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex
from numpy.testing import assert_allclose, assert_array_equal
from pytest import approx

from companion.figures import depth, style
from companion.figures.show import frame
from companion.tables.arrays import each_network, side_by_side
from coupling_lib.datasets.parts import SHARED
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.datasets.summaries import Chance
from coupling_lib.errors import ParameterError
from tests.companion.figures import made
from tests.companion.figures.drawn import by_label, heights, titles, words
from tests.companion.figures.made import case, make_depth

NAME, NULL = "normalized_miscoupling", Chance(0.95, 9e-6)


def networks(n):
    return made.networks(n, lambda place: make_depth((0.06, 0.4, 0.2)[place], seed=place + 1))


BOTH = networks(2)
"""An untrained model, about as coupled as chance, and a trained one."""
STATES = dict(each_network(BOTH))
VALUES = STATES["trained"][NAME].values
APART = abs(np.subtract.outer(range(6), range(6)))


def models_matrices(n):
    """Matrices of several models, of which one lacks a block."""
    found = {f"organisation/model {i}": make_depth(0.4, seed=i) for i in range(1, n + 4)}
    return depth.take_matrices_of(found | {"nano-llama": make_depth(0.4, seed=0, n_blocks=3)}, [0, 2, 3], 4)


CASES = {
    "draw_matrices of models": (depth.draw_matrices, models_matrices),
    "draw_graph beyond": case(depth, "graph", networks, NAME, 4, NULL, beyond=True),
    "draw_models in rows": case(depth, "models", lambda n: {f"model {i}": BOTH for i in range(n + 4)}, NAME, 4, NULL),
}


def test_map_is_mean_over_prompts_without_diagonal():
    before = BOTH.copy(deep=True)
    table = frame(depth.take_map(BOTH, NAME, 3, NULL))
    xr.testing.assert_identical(BOTH, before)
    assert len(table) == 2 * 6 * 5 and not (table.block_jacobian == table.block_vectors).any()
    row = table[(table.network == "trained") & (table.block_jacobian == 2) & (table.block_vectors == 5)]
    assert row.coupling.item() == approx(1 - VALUES[:, 0, 1, 4].mean(), abs=1e-12)
    *panels, bar = depth.draw_map(depth.take_map(BOTH, NAME, 4, null=0.99)).axes
    images = [axes.images[0].get_array() for axes in panels]
    off = [1 - d[NAME].sel(k=4).mean("prompt").values[APART > 0] for d in STATES.values()]
    assert_array_equal(np.ma.getmaskarray(images[1]), APART == 0)
    assert_allclose([np.ma.compressed(image) for image in images], off, rtol=1e-12)
    low, high = panels[0].images[0].get_clim()
    assert panels[1].images[0].get_clim() == (low, high) == approx((min(np.min(off), 0.01), np.max(off)))
    assert to_hex(panels[1].get_facecolor()) == style.colour("mask")
    assert not bar.xaxis_inverted() and bar.texts[-1].get_text() == "by chance"
    assert list(bar.lines[-1].get_xdata()) == approx([0.01, 0.01]) and bar.get_xlabel().startswith("coupling")


def test_matrices_are_absolute_relative_to_largest_singular_value():
    taken = depth.take_matrices(BOTH, [0, 2, 3], 3)
    grids = taken.transpose("network", "block_jacobian", "block_vectors", "row", "column").values
    for grid, one in zip(grids, STATES.values(), strict=True):
        relative = abs(one.matrix.values) / one.singular_values.values[0, :, :1, None, None]
        assert_allclose(grid, relative[np.ix_([0, 2, 3], [0, 2, 3])][..., :3, :3])
    assert taken.column.values.tolist() == [1, 2, 3]
    assert_array_equal(depth.take_matrices(BOTH.assign(matrix=-BOTH.matrix), [0, 2, 3], 3), taken)
    left, right = depth.draw_matrices(taken).axes[:2]
    assert words(left.get_xticklabels()) == ["1", "3", "4"]
    assert (left.get_ylabel(), left.get_title()) == ("block $l$  (Jacobian)", "Untrained")
    image = right.images[0].get_array().filled(np.nan)
    assert image.shape == (3 * 4 - 1, 3 * 4 - 1) and np.isnan([image[3], image[:, 7]]).all()
    assert_allclose(image[4:7, 8:11], grids[1, 1, 2])
    # The diagonal does not set the scale.
    assert {axes.images[0].get_clim() for axes in (left, right)} == {(0, grids[:, ~np.eye(3, dtype=bool)].max())}


def test_summary_has_rows_for_networks_and_chance():
    table = depth.take_summary(BOTH, NAME, 4, NULL)
    assert list(table.index) == ["untrained", "trained", "by chance"]
    each, near = 1 - VALUES[:, 1].sum(axis=(1, 2)) / 30, 1 - VALUES[:, 1, APART == 1].mean()
    _, low, high = map(float, mean_interval(each))
    assert table.loc["trained"].tolist() == approx([each.mean(), low, high, near])
    assert table.loc["by chance"].tolist() == approx([0.05, np.nan, np.nan, 0.05], nan_ok=True)
    numbers = depth.numbers_of(BOTH, {"all pairs": 0.002, "neighbours": 0.003}, NAME, 4, NULL)
    wanted = {"coupling-trained": each.mean(), "coupling-trained-low": low, "coupling-trained-high": high}
    wanted |= {"neighbours-untrained": table.loc["untrained", "neighbours"], "local": near - each.mean()}
    wanted |= {"on-diagonal-chance": 1 - 0.95**2, "on-diagonal-trained": 1 - (1 - each.mean()) ** 2}
    wanted |= {"coupling-null": 0.05, "coupling-null-error": 9e-6, "null-spread": 0.002, "neighbours-spread": 0.003}
    assert numbers["prompts"] == 5 and {name: numbers[name] for name in wanted} == approx(wanted)


SEVERAL = BOTH.assign(matrix=BOTH.matrix.expand_dims(prompt=BOTH.prompt))
OTHER_PROMPT = "the first prompt here is not that of the coupling matrices"
REFUSALS = {
    "variant": ("variant is 'no_such'", lambda: depth.take_map(BOTH, "no_such", 3, NULL)),
    "k": ("k is 5; measured were 3, 4", lambda: depth.take_map(BOTH, NAME, 5, NULL)),
    "k of matrices": ("k is 9; matrices were measured up to 4", lambda: depth.take_matrices(BOTH, [0], 9)),
    "block": ("1 block", lambda: depth.take_map(BOTH.isel(block_1=[0], block_2=[0]), NAME, 3, NULL)),
    "other prompt": (OTHER_PROMPT, lambda: depth.take_matrices(BOTH.isel(prompt=[1, 0]), [1, 3], 3)),
    "several prompts": (OTHER_PROMPT, lambda: depth.take_matrices(SEVERAL, [1, 3], 3)),
}


@pytest.mark.parametrize(("message", "call"), REFUSALS.values(), ids=REFUSALS)
def test_what_was_not_measured_is_refused(message, call):
    with pytest.raises(ParameterError, match=message):
        call()


def test_matrices_of_models_are_sorted_by_size():
    short = BOTH.sel(network=["trained"]).isel(block_1=slice(3), block_2=slice(3))
    given = {"a folder/mine": BOTH, "gpt2": BOTH, "nano-llama": short, "b": BOTH, "c": BOTH}
    taken = depth.take_matrices_of(given, [0, 2, 3], 4)
    assert taken.network.values.tolist() == ["nano-llama", "gpt2", "a folder/mine", "b", "c"]
    trained = depth.take_matrices(BOTH.sel(network=["trained"]), [0, 2, 3], 4).sel(network="trained")
    xr.testing.assert_allclose(taken.sel(network="gpt2", drop=True), trained.drop_vars("network"))
    assert taken.sel(network="nano-llama", block_vectors=4).isnull().all()
    panels = depth.draw_matrices(taken).axes[:5]
    assert titles(panels) == ["nano-llama", "gpt2", "mine", "b", "c"]
    assert [bool(axes.get_ylabel()) for axes in panels] == [True, False, False, True, False]


def test_graph_edge_is_mean_of_both_directions():
    taken = depth.take_graph(BOTH, NAME, 4, null=0.95)
    table = frame(taken)
    untrained = STATES["untrained"][NAME].values[:, 1]
    edges = table.set_index(["network", "block_a", "block_b"]).coupling
    assert len(table) == 2 * 15 and edges["untrained", 1, 6] == approx(1 - untrained[:, APART == 5].mean())
    figure = depth.draw_graph(taken)
    sample, per_coupling = figure.legends[0].get_lines()[0], 2.8 / table.coupling.max()
    assert sample.get_linewidth() == approx(0.05 * per_coupling)
    assert words(figure.legends[0].get_texts())[0] == "0.05 (by chance)"
    beyond = depth.draw_graph(taken, beyond=True)
    assert words(beyond.legends[0].get_texts())[-1] == f"+{taken.max().item() - 0.05:.2f}"
    for place, (name, own) in enumerate(table.groupby("network", sort=False)):
        widths = [line.get_linewidth() for line in figure.axes[place].lines]
        assert_allclose(sorted(widths), sorted(own.coupling * per_coupling))
        assert len(beyond.axes[place].lines) == (own.coupling > 1 - 0.95).sum()
        assert to_hex(figure.axes[place].collections[0].get_edgecolor()[0]) == style.colour(name)
    # Nodes stand clockwise from the top and count from 1.
    nodes = figure.axes[0].collections[0].get_offsets()
    assert_allclose(nodes[[0, 3]], [[0, 1], [0, -1]], atol=1e-12)
    assert (nodes[1:3, 0] > 0).all() and words(figure.axes[0].texts) == list("123456")


def test_distribution_has_every_prompt_at_every_distance():
    taken, values = depth.take_distribution(BOTH, NAME, 3, null=0.95), VALUES[:, 0]
    trained, shown = taken.sel(network="trained"), 1 - values.sum(axis=(1, 2)) / 30  # the diagonal is 0
    each = np.stack([1 - values[:, APART == apart].mean(axis=1) for apart in range(1, 6)])
    assert_allclose(trained.by_distance.transpose("distance", "prompt"), each, rtol=0, atol=1e-12)
    assert_allclose(trained.all_pairs, shown)
    assert len(frame(taken)) == 2 * 5 * (1 + 5) + 2 * 5
    assert_allclose(taken["mean"], taken.by_distance.mean("prompt"))
    assert ((taken.low < taken["mean"]) & (taken["mean"] < taken.high)).all()
    left, right = depth.draw_distribution(taken).axes
    assert_allclose(sorted(left.collections[1].get_offsets()[:, 1]), sorted(shown))
    medians = [line.get_ydata()[0] for line in left.lines if np.ptp(line.get_xdata()) == approx(0.16)]
    assert medians[1] == approx(np.median(shown))
    assert_allclose(heights(right)["by chance"], 0.05)
    assert words(right.get_legend().get_texts()) == ["untrained", "trained", "by chance"]
    assert [line.get_color() for line in right.lines[:2]] == [style.colour(name) for name in STATES]


def test_models_share_one_scale_beside_untrained_and_chance():
    other = BOTH.isel(block_1=slice(4), block_2=slice(4), distance=slice(4))
    taken = depth.take_models({"nano-llama": BOTH, "a folder/second": other}, NAME, 4, null=0.97)
    assert len(frame(taken)) == 2 * (30 + 5) + 2 * (12 + 3)
    first, second, curves = depth.draw_models(taken).axes[:3]
    assert titles([first, second]) == ["nano-llama", "second"]
    assert first.images[0].get_clim() == second.images[0].get_clim()
    assert_allclose(np.ma.compressed(first.images[0].get_array()), 1 - VALUES[:, 1].mean(axis=0)[APART > 0])
    assert second.images[0].get_array().shape == (4, 4)
    drawn = heights(curves)
    assert by_label(curves)["nano-llama"].get_color() == style.family_style("nano-llama")[0]
    dotted = [line.get_ydata() for line in curves.lines if line.get_linestyle() == ":" and len(line.get_xdata())]
    for line, one in ((dotted[0], STATES["untrained"]), (drawn["nano-llama"], STATES["trained"])):
        values = one[NAME].values[:, 1]
        assert_allclose(line, [1 - values[:, APART == apart].mean() for apart in range(1, 6)])
    assert len(drawn["second"]) == 3
    assert_allclose(drawn["by chance"], 0.03)


def test_conjugation_null_is_drawn_at_trained_and_traceless():
    both = side_by_side(**STATES, **{SHARED: STATES["trained"]})
    values = np.random.default_rng(0).uniform(0.8, 0.9, (2, 2, 2, 1, 5))  # part, kind, span, k, prompt
    coords = {"part": ["whole", "traceless"], "kind": ["measured", "conjugated"], "k": [4]}
    coords |= {"span": ["all pairs", "neighbours"]}
    nulls = xr.Dataset({"normalised": (("part", "kind", "span", "k", "prompt"), values)}, coords)
    taken = depth.take_distribution(both, NAME, 4, NULL, nulls)
    wanted = [np.nan, *(1 - values[:, 1, 0, 0].mean(axis=-1))]
    assert_allclose(taken.conjugated, wanted)
    left = depth.draw_distribution(taken).axes[0]
    dotted = [line for line in left.lines if line.get_zorder() == 4]
    assert_allclose([(np.mean(line.get_xdata()), line.get_ydata()[0]) for line in dotted], [*enumerate(wanted)][1:])
    assert words(left.texts) == ["conjugated"]
    for given in (("mismatch", 4, NULL, nulls), (NAME, 4, NULL)):
        none = depth.take_distribution(both, *given)
        assert "conjugated" not in none and not depth.draw_distribution(none).axes[0].texts
