"""Figures of emergence: what is drawn is what was measured, and step 0 stands apart."""

import numpy as np
import xarray as xr
from matplotlib.colors import to_hex
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import emergence, style
from companion.tables.effects import OtherRuns
from coupling_lib.datasets.statistics import mean_interval
from tests.companion.figures.drawn import by_label, heights, words
from tests.companion.figures.made import case, make_depth
from tests.companion.figures.test_trajectories import make_trajectories

NAME, K, STEPS = "normalized_miscoupling", 4, (0, 10, 100, 1000)


def make_emergence(n_blocks: int = 6) -> xr.Dataset:
    """Coupling that is most at the third step, a null of 0.05, a falling loss; trajectories may be of more blocks."""
    parts = []
    for seed, strength in enumerate((0.06, 0.06, 0.6, 0.3)):
        paths = make_trajectories(seed, n_blocks)
        names = ["norm", *emergence.SCORES, *(f"window_{score}" for score in emergence.SCORES)]
        depth = make_depth(strength, seed).drop_vars(["matrix", "by_distance", "variant", "distance"])
        null = {"null": ("k", [0.95 - 0.001 * seed] * 2), "null_error": ("k", [1e-5] * 2)}
        parts.append(depth.merge(paths[names]).assign(null))
    ds = xr.concat(parts, dim="step").assign_coords(step=list(STEPS))
    # Nine tenths of the coupling are of shared directions.
    shared = {"shared_normalized_miscoupling": 0.1 + 0.9 * ds[NAME], "shared_null": ds["null"]}
    ds = ds.assign(shared | {"progress": ("step", [7.0, 6.0, 5.0, 4.0])})
    return ds.assign_attrs(window=3, progress_label="validation loss (nats per token)")


MEASURED, WIDE = make_emergence(), make_emergence(n_blocks=7)
COUPLING = 1 - MEASURED[NAME].sel(k=K).values
APART = abs(np.subtract.outer(range(6), range(6)))
SPECIAL = {
    "two steps": MEASURED.isel(step=[0, 3]),
    "no step 0": MEASURED.isel(step=[1, 2, 3]),
    "one prompt": MEASURED.isel(prompt=[0]),
    "whole Jacobians alone": MEASURED.drop_vars(["shared_normalized_miscoupling", "shared_null"]),
    "nothing known": MEASURED.assign(progress=MEASURED.progress * np.nan).assign_attrs(progress_label=""),
    "no score": MEASURED.assign(MEASURED[["expodistance", "window_expodistance"]] * np.nan),
}
MODELS = {"pythia-12b": MEASURED, "a/small-one": MEASURED.isel(step=[1, 3]), "pythia-70m": MEASURED.isel(prompt=[0])}
CASES = {
    f"draw_{name} {text}": case(emergence, name, lambda n, ds=ds: ds)
    for name in ("coupling", "locality", "graphs", "scores", "profiles")
    for text, ds in SPECIAL.items()
}
CASES["draw_models"] = case(emergence, "models", lambda n: dict(list(MODELS.items())[:n]), NAME, K)
CASES["draw_scores five windows"] = case(emergence, "scores", lambda n: WIDE, range(1, 6))


def test_coupling_is_drawn_beside_chance_and_progress():
    table = emergence.take_coupling(MEASURED, NAME, K)
    values, by_chance, loss = COUPLING[..., APART > 0].mean(axis=-1), 1 - MEASURED["null"].sel(k=K), [7, 6, 5, 4]
    mean, (_, low, high) = values.mean(axis=1), mean_interval(values, axis=1)
    assert_allclose([table["mean"], table.low, table.high, table.random_bases], [mean, low, high, by_chance])
    left, right = emergence.draw_coupling(table).axes
    drawn = heights(left)
    assert_allclose(drawn["coupling"], mean[1:])  # step 0 is joined by dots
    assert_allclose(drawn["by chance"], by_chance)
    assert_allclose(drawn["untrained (step 0)"], mean[:1])
    assert by_label(left)["untrained (step 0)"].get_color() == style.colour(style.UNTRAINED)
    assert table.progress.values.tolist() == right.lines[-1].get_ydata().tolist() == loss
    assert right.get_title() == "validation loss (nats per token)"


def test_locality_is_mean_coupling_at_each_distance():
    table = emergence.take_locality(MEASURED, NAME, K)
    each = [COUPLING[..., APART == distance].mean(axis=(1, 2)) for distance in range(1, 6)]
    far = COUPLING[..., APART >= 3].mean(axis=(1, 2))
    assert_allclose(table["mean"].sel(distance=range(1, 6)), np.transpose(each))
    assert_allclose(table.far_mean, far)
    drawn = heights(emergence.draw_locality(table).axes[1])
    assert_allclose([drawn["neighbours"], drawn["half the depth or more apart"]], [each[0][1:], far[1:]])


def test_graphs_show_first_peak_and_last_step():
    pairs = COUPLING.mean(axis=1)
    edges = np.where(np.triu(APART > 0), (pairs + pairs.swapaxes(1, 2)) / 2, np.nan)
    for steps, middle, shown in ((slice(4), None, [0, 2, 3]), (slice(4), 10, [0, 1, 3]), (slice(1, 3), None, [1, 2])):
        graphs = emergence.take_graphs(MEASURED.isel(step=steps), NAME, K, middle=middle)
        assert graphs.step.values.tolist() == [f"step {STEPS[at]}" for at in shown]
        assert_allclose(graphs.sel(block_a=range(1, 7), block_b=range(1, 7)), edges[shown])
    figure = emergence.draw_graphs(emergence.take_graphs(MEASURED, NAME, K))
    rims = [to_hex(axes.collections[0].get_edgecolor()[0]) for axes in figure.axes[:3]]
    assert rims == [style.colour(style.UNTRAINED), style.colour(style.TRAINED), style.colour(style.TRAINED)]


def test_scores_are_quartiles_of_named_windows():
    changed = MEASURED.copy(deep=True)
    changed["expodistance"][1, 0] = np.nan
    scores = emergence.take_scores(changed)
    assert scores.blocks.values.tolist() == ["all", "blocks 1-3", "blocks 2-4", "blocks 4-6"]
    for score in emergence.SCORES:
        each = [changed[score], *(changed[f"window_{score}"].sel(centre=centre) for centre in (1, 2, 4))]
        found = scores.sel(score=score)
        quartiles = [found.low, found["median"], found.high]
        assert_allclose(quartiles, np.nanquantile(each, (0.25, 0.5, 0.75), axis=each[0].dims.index("prompt") + 1))
    assert emergence.take_scores(MEASURED.isel(centre=[0])).blocks.values.tolist() == ["all", "blocks 1-3"]
    chosen = emergence.take_scores(changed, [4, 1])
    xr.testing.assert_identical(chosen, scores.sel(blocks=["all", "blocks 4-6", "blocks 1-3"]))
    below = emergence.draw_scores(chosen).axes[2]
    assert words(below.get_legend().get_texts()) == ["blocks 4-6", "blocks 1-3"]


def test_models_are_sorted_by_size_with_own_steps():
    small = MEASURED.isel(step=[1, 3])
    found = emergence.take_models({"pythia-12b": MEASURED, "mine": MEASURED, "pythia-70m": small}, NAME, K)
    assert list(found) == ["pythia-70m", "pythia-12b", "mine"]
    expected = emergence.take_coupling(small, NAME, K)["mean"]
    assert_allclose(found["pythia-70m"].middle.sel(quantity="coupling"), expected)
    lss = found["pythia-12b"].middle.sel(quantity="line_shape_score")
    assert_allclose(lss, MEASURED.line_shape_score.median("prompt"))
    left, middle, _ = emergence.draw_models(found).axes
    assert_allclose(by_label(left)["pythia-70m"].get_data(), [np.log10([10, 1000]), expected])
    assert len(heights(left)["pythia-12b"]) == 4 and middle.get_title() == "line-shape score"


def test_profile_levels_count_from_zero_blocks_from_one():
    profiles = emergence.take_profiles(MEASURED)["median"]
    places = {"level": [0, 1, 2, 3, 4, 5, 6], "centre": [2, 3, 4, 5]}
    for quantity, (dimension, _) in emergence.PROFILES.items():
        found = profiles.sel(quantity=quantity).dropna("depth")
        assert found.depth.values.tolist() == places[dimension]
        assert_allclose(found.transpose("step", "depth"), MEASURED[quantity].median("prompt"))


def test_summary_and_quoted_numbers_agree_with_the_tables():
    summary = emergence.take_summary(MEASURED, NAME, K)
    quoted = emergence.numbers_of(MEASURED, OtherRuns(90.0, 0.02, 6), NAME, K)
    assert summary.index.tolist() == list(STEPS)
    columns = ["coupling", "low", "high", "traceless part", "by chance", "line-shape score", "expodistance"]
    assert list(summary.columns) == [*columns, "validation loss"]
    peak, shared = summary.coupling.max(), summary["traceless part"].max()
    wanted = {"peak-step": 100, "first-step": 0, "last-step": 1000, "turn-step": 100, "scatter": 0.02}
    wanted |= {"peak-coupling": peak, "peak-shared": shared, "shared-peak-shared": shared}
    wanted |= {"last-line-shape-score": summary["line-shape score"].iloc[-1]}
    assert {name: quoted[name] for name in wanted} == wanted and shared < peak
    assert quoted["peak-on-diagonal"] == approx(1 - (1 - peak) ** 2)
    assert quoted["fall"] == approx(quoted["last-coupling"] - quoted["turn-coupling"])
