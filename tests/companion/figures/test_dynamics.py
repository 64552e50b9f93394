"""Figures of linear dynamics: what is drawn is what was measured."""

import numpy as np
import xarray as xr
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import dynamics
from coupling_lib.datasets.statistics import mean_interval
from tests.companion.figures import made
from tests.companion.figures.drawn import words


def make_dynamics(seed, count=5):
    sizes = {"prompt": count, "block": 6, "level": 7, "start": 7, "direction": 3, "reading": 5, "rank": 4}
    drawn = {"carried_cosine": ("prompt start level", -1, 1), "carried_norm_ratio": ("prompt start level", 0.05, 1)}
    drawn |= {"null_cosine": ("prompt level", -0.1, 0.1), "null_norm_ratio": ("prompt level", 0.1, 1)}
    drawn |= {"null_cosine_error": ("prompt level", 0.003, 0.003), "contribution": ("prompt level", 0, 1)}
    drawn |= {"end_cosine": ("prompt reading", -1, 1), "end_norm_ratio": ("prompt reading", 0.01, 1)}
    drawn |= {"linear_norm_ratio": ("prompt block", 1e-4, 0.1), "left_right_cosine": ("prompt block rank", -1, 1)}
    drawn |= {f"growth_{kind}": ("prompt level direction", -3, 3) for kind in dynamics.GROWTH}
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
    assert_allclose(left.lines[1].get_ydata(), values[:, 0].mean(axis=0))
    assert_allclose(right.lines[1].get_ydata(), values[:, :, -1].mean(axis=0))
    assert_allclose(left.lines[3].get_ydata(), TRAINED.null_cosine.mean("prompt"))
    assert list(left.lines[0].get_xdata()) == [0, 1, 2, 3, 4, 5, 6]


def test_readings_keep_their_names_and_intervals():
    readings = dynamics.take_routes(BOTH)
    row, (_, low, high) = readings.sel(network="trained", quantity="cosine"), mean_interval(TRAINED.end_cosine.values)
    assert_allclose([row["mean"], row.low, row.high], [TRAINED.end_cosine.mean("prompt"), low, high])
    labels = words(dynamics.draw_routes(readings).axes[0].get_yticklabels())
    assert labels == row.reading.values.tolist() == BOTH.reading.values.tolist()


def test_linear_parts_count_from_one_shares_from_embedding():
    mean = dynamics.take_remainders(BOTH)["mean"].sel(network="trained", level=range(7))
    linear = [np.nan, *TRAINED.linear_norm_ratio.values.mean(axis=0)]
    assert_allclose(mean.sel(quantity="linear part"), linear)
    assert_allclose(mean.sel(quantity="share of last state"), TRAINED.contribution.values.mean(axis=0))


def test_growth_logarithms_are_drawn_as_factors():
    growth = dynamics.take_growth(BOTH)
    medians = {kind: np.median(TRAINED[f"growth_{kind}"], axis=0) for kind in dynamics.GROWTH}
    axes = dynamics.draw_growth(growth, direction=2).axes[1]
    assert_allclose([line.get_ydata() for line in axes.lines], np.exp([one[:, 1] for one in medians.values()]))
    assert growth["median"].size == 2 * 5 * 3 * 7 and growth["median"].min() < 0
    left = dynamics.draw_directions(dynamics.take_directions(BOTH)).axes[0]
    assert_allclose(left.lines[1].get_data(), np.exp([medians[kind][-1] / 6 for kind in ("singular", "response")]))


def test_left_right_cosines_keep_their_sign():
    cosines, values = dynamics.take_left_right(BOTH), TRAINED.left_right_cosine.values
    one = cosines.sel(network="trained", block=range(1, 7))
    assert_allclose(one.cosine.sel(rank=range(1, 5)).transpose("block", "rank"), values.mean(axis=0))
    assert_allclose(one.mean_over_ranks, values.mean(axis=(0, 2)))
    dots, line = dynamics.draw_left_right(cosines).axes[1].lines[:2]
    assert_allclose(dots.get_data(), [np.repeat(range(1, 7), 4), values.mean(axis=0).ravel()])
    assert_allclose(line.get_ydata(), values.mean(axis=(0, 2)))


def test_quoted_numbers_match_the_summary():
    table, found = dynamics.take_summary(BOTH), dynamics.numbers_of(BOTH)
    product, null = TRAINED.end_cosine.values[:, 1], TRAINED.null_cosine.values[:, -1]
    wanted = {"product": product.mean(), "random": null.mean(), "share": TRAINED.contribution.values[:, 0].mean()}
    wanted |= {"released": TRAINED.end_cosine.values[:, 2].mean()}
    wanted |= {"growth": np.exp(np.median(TRAINED.growth_response.values[:, -1, 0]) / 6)}
    assert table.loc["trained", [*wanted]].to_dict() == approx(wanted)
    assert found["product-trained-low"] == table.loc["trained", "low"]
    assert found["product-null-untrained"] == table.loc["untrained", "random"]
    assert found["product-null-trained-error"] == approx(0.003 / 5**0.5)
    assert found["left-right-trained-low"] < table.loc["trained", "u.v"] < found["left-right-trained-high"]
    assert found["linear-part-trained"] == approx(np.median(TRAINED.linear_norm_ratio))
    assert (found["product-over-random"], found["prompts"]) == approx(((product - null).mean(), 5))
