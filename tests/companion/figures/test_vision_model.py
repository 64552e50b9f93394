"""Figures of one vision transformer: what is drawn is what was measured."""

import numpy as np
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pytest import approx

from companion.figures import depth, vision_model
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.datasets.summaries import Chance
from tests.companion.figures import made
from tests.companion.figures.made import case
from tests.companion.figures.test_depth import networks

NAME, RELATIONS = "normalized_miscoupling", ["class", "patch", "class to patch", "patch a to b"]
IMAGE = np.random.default_rng(0).random((8, 8))


def make_relations(n: int) -> xr.Dataset:
    """Mismatches of five images at four relations around 0.925."""
    sizes = {"prompt": 5, "relation": 4, "block_1": 6, "block_2": 6}
    drawn = {NAME: ("prompt relation block_1 block_2", 0.9, 0.95)}
    return made.networks(n, lambda seed: made.made(seed, sizes, drawn, relation=RELATIONS)).assign_attrs(k=10)


PLACES, RNG = ("relation", "block_1"), np.random.default_rng(4)
NULLS = xr.Dataset({"value": (PLACES, np.full((4, 6), 0.95)), "error": (PLACES, np.full((4, 6), 2e-5))})
NULLS = NULLS.assign_coords(relation=RELATIONS).assign_attrs(variant=NAME)
"""Random bases at 0.95, block by block."""
DROPPED = xr.Dataset({"off": ("prompt", 0.9 + 0.01 * RNG.random(5)), "on": (("prompt", "draw"), RNG.random((5, 2)))})
DROPPED = DROPPED.assign_attrs(rate=0.3, variant=NAME, k=10)
"""Five images without stochastic depth, and two draws with it."""


def image(n, picture=IMAGE, patch=None):
    return vision_model.take_image(networks(n), picture, patch, [0, 2, 3], 4)


CASES = {
    "draw_image": (vision_model.draw_image, lambda n: image(n, patch=(2, 2, 2, 2))),
    "draw_image colour": (vision_model.draw_image, lambda n: image(n, np.dstack([IMAGE] * 3))),
    "draw_drop_path": case(vision_model, "drop_path", lambda n: DROPPED, Chance(0.95, 9e-6)),
}
OFF = ~np.eye(6, dtype=bool)


def test_image_is_drawn_with_its_patch_framed():
    panels = vision_model.draw_image(image(2, patch=(2, 4, 2, 2))).axes
    assert_array_equal(panels[0].images[0].get_array(), IMAGE)
    (frame,) = panels[0].patches
    assert (frame.get_xy(), frame.get_width()) == ((1.5, 3.5), 2)
    expected = depth.take_matrices(networks(2), [0, 2, 3], 4).sel(network="trained").values
    assert_allclose(panels[2].images[0].get_array().filled(np.nan)[5:9, 10:14], expected[1, 2])


def test_relations_leave_out_a_block_with_itself():
    related = make_relations(2)
    found = vision_model.take_relations(related, NAME, NULLS)
    wanted = 1 - related[NAME].values[..., OFF].mean(axis=-1)
    assert_allclose(found.coupling.transpose("network", "prompt", "relation"), wanted)
    (axes,) = vision_model.draw_relations(found).axes
    values = wanted[0, :, 0]
    assert_allclose(axes.collections[0].get_offsets()[:, 1], values)
    assert_allclose(axes.lines[0].get_ydata(), mean_interval(values)[1:])
    assert (axes.lines[1].get_ydata()[0], axes.lines[-1].get_ydata()[0]) == approx((values.mean(), 0.05))


def test_drop_path_averages_draws_before_the_interval():
    found, off, on = vision_model.take_drop_path(DROPPED, 0.95), 1 - DROPPED["off"].values, 1 - DROPPED["on"].values
    assert found.coupling.notnull().sum() == 5 + 10
    assert_allclose(found.coupling.sel(drop_path="on", draw=[1, 2]).transpose("prompt", "draw"), on)
    assert_allclose(found.high, [mean_interval(off).high, mean_interval(on.mean(axis=1)).high])
    (axes,) = vision_model.draw_drop_path(found).axes
    assert_allclose(axes.collections[0].get_offsets()[:, 0], off)
    assert_allclose(axes.collections[1].get_offsets()[:, 0], on.ravel())


def test_summary_and_quoted_numbers_agree():
    summary = vision_model.take_summary(networks(2), NAME, 3, 0.95)
    found = vision_model.numbers_of(networks(2), make_relations(2), DROPPED, Chance(0.95, 1e-5), NULLS)
    assert list(summary.index) == ["untrained", "trained", "by chance"]
    assert (found["model-trained"], found["model-null-error"]) == (summary.loc["trained", "coupling"], 1e-5)
    wanted = {"on-diagonal": 1 - (1 - found["class-trained"]) ** 2, "drop-path-off": float(1 - DROPPED["off"].mean())}
    wanted |= {"on-diagonal-chance": 1 - (1 - found["class-null"]) ** 2, "model-null": 0.05}
    wanted |= {"class-to-patch-null": 0.05, "class-to-patch-null-error": 2e-5}
    assert {name: found[name] for name in wanted} == approx(wanted)
    for name in ("class-to-patch-trained", "drop-path-on"):
        assert found[f"{name}-low"] < found[name] < found[f"{name}-high"]
