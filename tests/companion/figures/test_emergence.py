"""Figures of emergence: what is drawn is what was measured, and step 0 stands apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex

from companion.figures import emergence, style
from companion.figures.show import frame
from companion.tables.effects import OtherRuns
from coupling_lib.datasets.statistics import mean_interval
from tests.companion.figures.made import make_depth
from tests.companion.figures.test_trajectories import make_trajectories

NAME, K, STEPS = "normalized_miscoupling", 4, (0, 10, 100, 1000)


def make_emergence(n_blocks: int = 6) -> xr.Dataset:
    """Coupling that is most at the third step, a null of 0.05, a falling loss; trajectories may be of more blocks."""
    parts = []
    for seed, strength in enumerate((0.06, 0.06, 0.6, 0.3)):
        paths = make_trajectories(seed, n_blocks)
        names = ["norm", "line_shape_score", "expodistance", "window_line_shape_score", "window_expodistance"]
        depth = make_depth(strength, seed).drop_vars(["matrix", "by_distance", "variant", "distance"])
        parts.append(
            depth.merge(paths[names]).assign(null=("k", [0.95 - 0.001 * seed] * 2), null_error=("k", [1e-5] * 2))
        )
    ds = xr.concat(parts, dim="step").assign_coords(step=list(STEPS))
    # Nine tenths of the coupling are of shared directions.
    shared = {"shared_normalized_miscoupling": 0.1 + 0.9 * ds[NAME], "shared_null": ds["null"]}
    ds = ds.assign(shared | {"progress": ("step", [7.0, 6.0, 5.0, 4.0])})
    return ds.assign_attrs(window=3, progress_label="validation loss (nats per token)")


TAKE: dict[str, Callable[[xr.Dataset], xr.Dataset | xr.DataArray]] = {
    "draw_coupling": partial(emergence.take_coupling, variant=NAME, k=K),
    "draw_locality": partial(emergence.take_locality, variant=NAME, k=K),
    "draw_graphs": partial(emergence.take_graphs, variant=NAME, k=K),
    "draw_scores": emergence.take_scores,
    "draw_profiles": emergence.take_profiles,
}
MEASURED = make_emergence()
MEASUREMENTS = {
    "": MEASURED,
    "two steps": MEASURED.isel(step=[0, 3]),
    "no step 0": MEASURED.isel(step=[1, 2, 3]),
    "one prompt": MEASURED.isel(prompt=[0]),
    "whole Jacobians alone": MEASURED.drop_vars(["shared_normalized_miscoupling", "shared_null"]),
    "nothing known": MEASURED.assign(progress=MEASURED.progress * float("nan")).assign_attrs(progress_label=""),
    "no score": MEASURED.assign(
        {name: MEASURED[name] * float("nan") for name in ("expodistance", "window_expodistance")}
    ),
}


def _make(name: str, case: str, n: int) -> xr.Dataset | xr.DataArray:
    return TAKE[name](MEASUREMENTS[case])


WIDE = make_emergence(n_blocks=7)
MODELS = {"pythia-12b": MEASURED, "a/small-one": MEASURED.isel(step=[1, 3]), "pythia-70m": MEASURED.isel(prompt=[0])}


def _models(n: int) -> dict[str, xr.Dataset]:
    return emergence.take_models(dict(list(MODELS.items())[:n]), NAME, K)


CASES = {
    f"{name} {case}".rstrip(): (getattr(emergence, name), partial(_make, name, case))
    for name in TAKE
    for case in MEASUREMENTS
    if case
} | {
    "draw_models": (emergence.draw_models, _models),
    "draw_scores five windows": (emergence.draw_scores, lambda n: emergence.take_scores(WIDE, range(1, 6))),
}


OFF = ~np.eye(6, dtype=bool)


def test_coupling_is_drawn_beside_chance_and_progress():
    table = emergence.take_coupling(MEASURED, NAME, K)
    values = 1 - MEASURED[NAME].sel(k=K).values[:, :, OFF].mean(axis=-1)
    interval = mean_interval(values, axis=1)
    np.testing.assert_allclose(table["mean"], values.mean(axis=1))
    np.testing.assert_allclose([table.low, table.high], [interval.low, interval.high])
    np.testing.assert_allclose(table.random_bases, 1 - MEASURED["null"].sel(k=K))
    assert table.progress.values.tolist() == [7, 6, 5, 4]
    figure = emergence.draw_coupling(table)
    left, right = figure.axes
    drawn = {line.get_label(): line for line in left.lines}
    np.testing.assert_allclose(drawn["coupling"].get_ydata(), table["mean"][1:])  # step 0 is joined by dots
    np.testing.assert_allclose(drawn["by chance"].get_ydata(), table.random_bases)
    assert drawn["untrained (step 0)"].get_ydata() == [table["mean"][0]]
    assert drawn["untrained (step 0)"].get_color() == style.colour(style.UNTRAINED)
    np.testing.assert_allclose(right.lines[-1].get_ydata(), table.progress)
    assert right.get_title() == "validation loss (nats per token)"


def test_locality_is_mean_coupling_at_each_distance():
    coupling = 1 - MEASURED[NAME].sel(k=K).values
    apart = np.abs(np.subtract.outer(range(6), range(6)))
    table = emergence.take_locality(MEASURED, NAME, K)
    for distance in range(1, 6):
        expected = coupling[:, :, apart == distance].mean(axis=(1, 2))
        np.testing.assert_allclose(table["mean"].sel(distance=distance), expected)
    far = coupling[:, :, apart >= 3].mean(axis=(1, 2))
    np.testing.assert_allclose(table.far_mean, far)
    right = emergence.draw_locality(table).axes[1]
    drawn = {line.get_label(): line.get_ydata() for line in right.lines}
    np.testing.assert_allclose(drawn["neighbours"], coupling[1:, :, apart == 1].mean(axis=(1, 2)))
    np.testing.assert_allclose(drawn["half the depth or more apart"], far[1:])


def test_graphs_show_first_peak_and_last_step():
    graphs = emergence.take_graphs(MEASURED, NAME, K)
    assert graphs.step.values.tolist() == ["step 0", "step 100", "step 1000"]
    two = emergence.take_graphs(MEASURED.isel(step=[1, 2]), NAME, K)
    assert two.step.values.tolist() == ["step 10", "step 100"]
    figure = emergence.draw_graphs(graphs)
    rims = [to_hex(axes.collections[0].get_edgecolor()[0]) for axes in figure.axes[:3]]
    assert rims == [style.colour(style.UNTRAINED), style.colour(style.TRAINED), style.colour(style.TRAINED)]
    table = frame(graphs)
    assert set(table.step) == {"step 0", "step 100", "step 1000"} and (table.block_a < table.block_b).all()
    edge = table[(table.step == "step 100") & (table.block_a == 2) & (table.block_b == 5)].coupling.item()
    pair = 1 - MEASURED[NAME].sel(k=K, step=100).mean("prompt").values
    assert edge == pytest.approx((pair[1, 4] + pair[4, 1]) / 2)
    graphs = emergence.take_graphs(MEASURED, NAME, K, middle=10)
    assert graphs.step.values.tolist() == ["step 0", "step 10", "step 1000"]
    usual = emergence.take_graphs(MEASURED, NAME, K)
    xr.testing.assert_equal(graphs.isel(step=[0, 2]), usual.isel(step=[0, 2]))
    pair = 1 - MEASURED[NAME].sel(k=K, step=10).mean("prompt").values
    found = graphs.sel(step="step 10", block_a=1, block_b=4)
    assert found.item() == pytest.approx((pair[0, 3] + pair[3, 0]) / 2)


def test_windows_are_named_by_their_blocks():
    scores = emergence.take_scores(MEASURED, [4, 1])
    assert scores.blocks.values.tolist() == ["all", "blocks 4-6", "blocks 1-3"]
    middle = scores["median"].sel(score="line_shape_score", blocks="blocks 4-6", step=100)
    assert middle == pytest.approx(np.median(MEASURED.window_line_shape_score.sel(step=100, centre=4)))
    below = emergence.draw_scores(scores).axes[2]
    assert [text.get_text() for text in below.get_legend().get_texts()] == ["blocks 4-6", "blocks 1-3"]
    scores = emergence.take_scores(MEASURED)
    assert scores.blocks.values.tolist() == ["all", "blocks 1-3", "blocks 2-4", "blocks 4-6"]
    middle = scores["median"].sel(score="expodistance", blocks="blocks 2-4", step=10)
    assert middle == pytest.approx(np.median(MEASURED.window_expodistance.sel(step=10, centre=2)))
    assert emergence.take_scores(MEASURED.isel(centre=[0])).blocks.values.tolist() == ["all", "blocks 1-3"]


def test_models_are_sorted_by_size_with_own_steps():
    small = MEASURED.isel(step=[1, 3])
    found = emergence.take_models({"pythia-12b": MEASURED, "mine": MEASURED, "pythia-70m": small}, NAME, K)
    assert list(found) == ["pythia-70m", "pythia-12b", "mine"]
    expected = emergence.take_coupling(small, NAME, K)
    np.testing.assert_allclose(found["pythia-70m"].middle.sel(quantity="coupling"), expected["mean"])
    lss = found["pythia-12b"].sel(quantity="line_shape_score")
    np.testing.assert_allclose(lss.middle, MEASURED.line_shape_score.median("prompt"))
    left, middle, _ = emergence.draw_models(found).axes
    drawn = {line.get_label(): line for line in left.lines}
    np.testing.assert_allclose(drawn["pythia-70m"].get_ydata(), expected["mean"])
    np.testing.assert_allclose(drawn["pythia-70m"].get_xdata(), np.log10([10, 1000]))
    assert len(drawn["pythia-12b"].get_xdata()) == 4 and middle.get_title() == "line-shape score"


def test_scores_are_quartiles_over_prompts_ignoring_nan():
    changed = MEASURED.copy(deep=True)
    changed["expodistance"][1, 0] = np.nan
    table = frame(emergence.take_scores(changed))
    row = table[(table.score == "expodistance") & (table.blocks == "all") & (table.step == 10)].iloc[0]
    left = changed.expodistance.values[1, 1:]
    assert row[["low", "median", "high"]].tolist() == pytest.approx(np.quantile(left, (0.25, 0.5, 0.75)).tolist())
    row = table[(table.score == "line_shape_score") & (table.blocks == "blocks 4-6") & (table.step == 100)].iloc[0]
    assert row["median"] == pytest.approx(np.median(MEASURED.window_line_shape_score.sel(step=100, centre=4)))


def test_profile_levels_count_from_zero_blocks_from_one():
    table = frame(emergence.take_profiles(MEASURED))
    assert table[table.quantity == "norm"].depth.unique().tolist() == list(range(7))
    assert table[table.quantity == "window_expodistance"].depth.unique().tolist() == [2, 3, 4, 5]
    line = table[(table.quantity == "norm") & (table.step == 100) & (table.depth == 2)].iloc[0]
    assert line["median"] == pytest.approx(np.median(MEASURED.norm.sel(step=100, level=2)))


def test_summary_and_quoted_numbers_agree_with_the_tables():
    summary = emergence.take_summary(MEASURED, NAME, K)
    quoted = emergence.numbers_of(MEASURED, OtherRuns(90.0, 0.02, 6), NAME, K)
    assert summary.index.tolist() == list(STEPS)
    assert list(summary.columns) == [
        "coupling", "low", "high", "traceless part", "by chance", "line-shape score", "expodistance",
        "validation loss",
    ]  # fmt: skip
    assert quoted["peak-shared"] == summary["traceless part"].max() == quoted["shared-peak-shared"]
    assert quoted["peak-shared"] < quoted["peak-coupling"]
    assert (quoted["peak-step"], quoted["first-step"], quoted["last-step"]) == (100, 0, 1000)
    assert quoted["peak-coupling"] == summary.coupling.max()
    assert quoted["peak-on-diagonal"] == pytest.approx(1 - (1 - quoted["peak-coupling"]) ** 2)
    assert (quoted["turn-step"], quoted["scatter"]) == (100, 0.02)
    assert quoted["fall"] == pytest.approx(quoted["last-coupling"] - quoted["turn-coupling"])
    assert quoted["last-line-shape-score"] == summary["line-shape score"].iloc[-1]
