"""Figures of linear dynamics: what is drawn is what was measured."""

import numpy as np
import pytest
import xarray as xr

from companion.figures import dynamics
from coupling_lib.datasets.statistics import mean_interval
from tests.companion.figures import made


def make_dynamics(seed, count=5):
    sizes = {"prompt": count, "block": 6, "level": 7, "start": 7, "direction": 3, "reading": 5, "rank": 4}
    drawn = {
        "carried_cosine": ("prompt start level", -1, 1),
        "carried_norm_ratio": ("prompt start level", 0.05, 1),
        "null_cosine": ("prompt level", -0.1, 0.1),
        "null_norm_ratio": ("prompt level", 0.1, 1),
        "null_cosine_error": ("prompt level", 0.003, 0.003),
        "end_cosine": ("prompt reading", -1, 1),
        "end_norm_ratio": ("prompt reading", 0.01, 1),
        "linear_norm_ratio": ("prompt block", 1e-4, 0.1),
        "contribution": ("prompt level", 0, 1),
        "left_right_cosine": ("prompt block rank", -1, 1),
    } | {f"growth_{kind}": ("prompt level direction", -3, 3) for kind in dynamics.GROWTH}
    readings = ["embedding", "product", "released", "product with final norm", "affine"]
    ds = made.made(seed, sizes, drawn, block=range(6), level=range(7), reading=readings).assign_attrs(width=24)
    later = ds.level > xr.DataArray(range(7), dims="start")
    carried = {name: ds[name].where(later) for name in ("carried_cosine", "carried_norm_ratio")}
    return ds.assign(carried | {"contribution": ds.contribution / ds.contribution.sum("level")})


def networks(n, make=make_dynamics):
    """A single network has seen a single prompt."""
    return made.networks(n, lambda seed: make(seed, 1 if n == 1 else 5))


CASES = {"draw_carried lengths": (dynamics.draw_carried, lambda n: dynamics.take_carried(networks(n), "norm ratio"))}
BOTH = networks(2)
TRAINED = BOTH.sel(network="trained")


def test_carried_states_are_drawn_beside_random_bases():
    left, right = dynamics.draw_carried(dynamics.take_carried(BOTH)).axes
    values = TRAINED.carried_cosine.values
    np.testing.assert_allclose(left.lines[1].get_ydata(), values[:, 0].mean(axis=0))
    np.testing.assert_allclose(right.lines[1].get_ydata(), values[:, :, -1].mean(axis=0))
    np.testing.assert_allclose(left.lines[3].get_ydata(), TRAINED.null_cosine.values.mean(axis=0))
    assert list(left.lines[0].get_xdata()) == [0, 1, 2, 3, 4, 5, 6]


def test_readings_keep_their_names_and_intervals():
    readings = dynamics.take_routes(BOTH)
    values = TRAINED.end_cosine.sel(reading="released").values
    row = readings.sel(network="trained", quantity="cosine", reading="released")
    assert row["mean"].item() == pytest.approx(values.mean())
    assert row.low.item() == pytest.approx(float(mean_interval(values).low))
    labels = [label.get_text() for label in dynamics.draw_routes(readings).axes[0].get_yticklabels()]
    assert labels == ["embedding", "product", "released", "product with final norm", "affine"]


def test_linear_parts_count_from_one_shares_from_embedding():
    mean = dynamics.take_remainders(BOTH)["mean"].sel(network="trained")
    linear, share = mean.sel(quantity="linear part"), mean.sel(quantity="share of last state")
    assert linear.sel(level=1).item() == pytest.approx(TRAINED.linear_norm_ratio.values[:, 0].mean())
    assert np.isnan(linear.sel(level=0))
    assert share.sel(level=0).item() == pytest.approx(TRAINED.contribution.values[:, 0].mean())
    assert share.sum().item() == pytest.approx(1)


def test_growth_logarithms_are_drawn_as_factors():
    growth = dynamics.take_growth(BOTH)
    axes = dynamics.draw_growth(growth, direction=2).axes[1]
    for line, kind in zip(axes.lines, dynamics.GROWTH, strict=True):
        median = np.median(TRAINED[f"growth_{kind}"].values[:, :, 1], axis=0)
        np.testing.assert_allclose(line.get_ydata(), np.exp(median))
    assert growth["median"].size == 2 * 5 * 3 * 7 and growth["median"].min() < 0
    left = dynamics.draw_directions(dynamics.take_directions(BOTH)).axes[0]
    predicted, measured = left.lines[1].get_data()
    final = {kind: np.median(TRAINED[f"growth_{kind}"].values[:, -1], axis=0) for kind in ("singular", "response")}
    np.testing.assert_allclose(predicted, np.exp(final["singular"] / 6))
    np.testing.assert_allclose(measured, np.exp(final["response"] / 6))


def test_left_right_cosines_keep_their_sign():
    cosines = dynamics.take_left_right(BOTH)
    values = TRAINED.left_right_cosine.values
    one = cosines.sel(network="trained", block=6)
    assert one.cosine.sel(rank=4).item() == pytest.approx(values[:, 5, 3].mean())
    assert one.mean_over_ranks.item() == pytest.approx(values[:, 5].mean())
    assert cosines.cosine.min() < 0 < cosines.cosine.max()
    dots, line = dynamics.draw_left_right(cosines).axes[1].lines[:2]
    assert (dots.get_xdata()[7], dots.get_ydata()[7]) == (2, pytest.approx(values[:, 1, 3].mean()))
    np.testing.assert_allclose(line.get_ydata(), values.mean(axis=(0, 2)))


def test_quoted_numbers_match_the_summary():
    table = dynamics.take_summary(BOTH)
    assert table.loc["trained", "product"] == pytest.approx(TRAINED.end_cosine.values[:, 1].mean())
    assert table.loc["trained", "released"] == pytest.approx(TRAINED.end_cosine.values[:, 2].mean())
    assert table.loc["trained", "random"] == pytest.approx(TRAINED.null_cosine.values[:, -1].mean())
    assert table.loc["trained", "share"] == pytest.approx(TRAINED.contribution.values[:, 0].mean())
    wanted = np.exp(np.median(TRAINED.growth_response.values[:, -1, 0]) / 6)
    assert table.loc["trained", "growth"] == pytest.approx(wanted)
    found = dynamics.numbers_of(BOTH)
    assert found["product-trained-low"] == table.loc["trained", "low"]
    assert found["product-null-untrained"] == table.loc["untrained", "random"]
    assert found["product-null-trained-error"] == pytest.approx(0.003 / 5**0.5)
    assert found["left-right-trained-low"] < table.loc["trained", "u.v"] < found["left-right-trained-high"]
    assert found["linear-part-trained"] == pytest.approx(np.median(TRAINED.linear_norm_ratio))
    lead = TRAINED.end_cosine.values[:, 1] - TRAINED.null_cosine.values[:, -1]
    assert found["product-over-random"] == pytest.approx(lead.mean()) and found["prompts"] == 5
