"""Figures of one vision transformer: what is drawn is what was measured."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from companion.figures import depth, vision_model
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.datasets.summaries import Chance
from tests.companion.figures import made
from tests.companion.figures.test_depth import networks

NAME, RELATIONS = "normalized_miscoupling", ["class", "patch", "class to patch", "patch a to b"]
IMAGE = np.random.default_rng(0).random((8, 8))


def make_relations(n: int) -> xr.Dataset:
    """Mismatches of five images at four relations around 0.925."""
    sizes = {"prompt": 5, "relation": 4, "block_1": 6, "block_2": 6}
    drawn = {NAME: ("prompt relation block_1 block_2", 0.9, 0.95)}
    return made.networks(n, lambda seed: made.made(seed, sizes, drawn, relation=RELATIONS)).assign_attrs(k=10)


def make_nulls() -> xr.Dataset:
    """Random bases at 0.95, block by block."""
    parts = {"value": np.full((4, 6), 0.95), "error": np.full((4, 6), 2e-5)}
    variables = {name: (("relation", "block_1"), part) for name, part in parts.items()}
    return xr.Dataset(variables, {"relation": RELATIONS}, {"variant": NAME})


def make_dropped() -> xr.Dataset:
    """Five images without stochastic depth, and two draws with it."""
    rng = np.random.default_rng(4)
    ds = xr.Dataset({"off": ("prompt", 0.9 + 0.01 * rng.random(5)), "on": (("prompt", "draw"), rng.random((5, 2)))})
    return ds.assign_attrs(rate=0.3, variant=NAME, k=10)


def relations(n):
    return vision_model.take_relations(make_relations(n), NAME, make_nulls())


def image(n, picture=IMAGE, patch=None):
    return vision_model.take_image(networks(n), picture, patch, [0, 2, 3], 4)


CASES = {
    "draw_image": (vision_model.draw_image, lambda n: image(n, patch=(2, 2, 2, 2))),
    "draw_image colour": (vision_model.draw_image, lambda n: image(n, np.dstack([IMAGE] * 3))),
    "draw_drop_path": (
        vision_model.draw_drop_path,
        lambda n: vision_model.take_drop_path(make_dropped(), Chance(0.95, 9e-6)),
    ),
}


def test_image_is_drawn_with_its_patch_framed():
    figure = vision_model.draw_image(image(2, patch=(2, 4, 2, 2)))
    assert np.array_equal(figure.axes[0].images[0].get_array(), IMAGE)
    (frame,) = figure.axes[0].patches
    assert (frame.get_xy(), frame.get_width()) == ((1.5, 3.5), 2)
    expected = depth.take_matrices(networks(2), [0, 2, 3], 4).sel(network="trained").values
    assert np.allclose(figure.axes[2].images[0].get_array().filled(np.nan)[5:9, 10:14], expected[1, 2])


def test_relations_leave_out_a_block_with_itself():
    found = relations(2)
    assert found.coupling.size == 2 * 4 * 5
    values = 1 - make_relations(2)[NAME].sel(network="trained", relation="patch").values[2]
    one = found.coupling.sel(network="trained", relation="patch").isel(prompt=2)
    assert one.item() == pytest.approx(values[~np.eye(6, dtype=bool)].mean())
    (axes,) = vision_model.draw_relations(found).axes
    values = found.coupling.sel(network="untrained", relation="class")
    np.testing.assert_allclose(axes.collections[0].get_offsets()[:, 1], values)
    assert axes.lines[0].get_ydata() == pytest.approx(np.array(mean_interval(values)[1:]))
    assert axes.lines[1].get_ydata()[0] == pytest.approx(values.mean().item())
    assert axes.lines[-1].get_ydata()[0] == pytest.approx(0.05)


def test_drop_path_averages_draws_before_the_interval():
    dropped = make_dropped()
    found = vision_model.take_drop_path(dropped, 0.95)
    assert found.coupling.notnull().sum() == 5 + 10
    one = found.coupling.sel(drop_path="on", draw=2).isel(prompt=3)
    assert one.item() == pytest.approx(1 - float(dropped["on"][3, 1]))
    wanted = mean_interval(1 - dropped["on"].values.mean(axis=1))
    assert found.sel(drop_path="on").high.item() == pytest.approx(float(wanted.high))
    (axes,) = vision_model.draw_drop_path(found).axes
    np.testing.assert_allclose(axes.collections[0].get_offsets()[:, 0], 1 - dropped["off"])
    assert len(axes.collections[1].get_offsets()) == 10


def test_summary_and_quoted_numbers_agree():
    summary = vision_model.take_summary(networks(2), NAME, 3, 0.95)
    dropped = make_dropped()
    found = vision_model.numbers_of(networks(2), make_relations(2), dropped, Chance(0.95, 1e-5), make_nulls())
    assert list(summary.index) == ["untrained", "trained", "by chance"]
    assert found["model-trained"] == summary.loc["trained", "coupling"] and found["model-null"] == pytest.approx(0.05)
    assert found["on-diagonal"] == pytest.approx(1 - (1 - found["class-trained"]) ** 2)
    assert found["on-diagonal-chance"] == pytest.approx(1 - (1 - found["class-null"]) ** 2)
    assert found["class-to-patch-null"] == pytest.approx(0.05) and found["model-null-error"] == 1e-5
    assert found["class-to-patch-null-error"] == pytest.approx(2e-5)
    assert found["class-to-patch-trained-low"] < found["class-to-patch-trained"] < found["class-to-patch-trained-high"]
    assert found["drop-path-off"] == pytest.approx(float(1 - dropped["off"].mean()))
    assert found["drop-path-on-low"] < found["drop-path-on"] < found["drop-path-on-high"]
