"""Figures of one vision transformer: what is drawn is what was measured, in both themes."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from coupling_lib.figures import depth_data, vision_model, vision_model_data
from tests.figures.conftest import make_depth
from tests.figures.drawn import assert_repeats, assert_text_inside

NAME, RELATIONS = "normalized_miscoupling", ["class", "patch", "class to patch", "patch a to b"]
IMAGE = np.random.default_rng(0).random((8, 8))


@pytest.fixture(scope="module")
def networks():
    return {"untrained": make_depth(0.06, seed=1), "trained": make_depth(0.4, seed=2)}


@pytest.fixture(scope="module")
def relations():
    rng = np.random.default_rng(3)
    dims, shape = ("prompt", "relation", "block_1", "block_2"), (5, 4, 6, 6)
    return {
        name: xr.Dataset({NAME: (dims, 0.9 + 0.05 * rng.random(shape))}, {"relation": RELATIONS})
        for name in ("untrained", "trained")
    }


@pytest.fixture(scope="module")
def nulls():
    parts = {"value": np.full((4, 6), 0.95), "error": np.full((4, 6), 2e-5)}
    dims = ("relation", "block_1")
    return xr.Dataset({name: (dims, part) for name, part in parts.items()}, {"relation": RELATIONS})


@pytest.fixture(scope="module")
def dropped():
    rng = np.random.default_rng(4)
    ds = xr.Dataset({"off": ("prompt", 0.9 + 0.01 * rng.random(5)), "on": (("prompt", "draw"), rng.random((5, 2)))})
    ds.attrs = {"rate": 0.3, "variant": NAME, "k": 10}
    return ds


@pytest.mark.parametrize("figure", ["matrices", "colour", "relations", "drop_path"])
def test_every_figure_repeats_byte_for_byte_and_keeps_its_text_inside(figure, networks, relations, nulls, dropped):
    draw = {
        "matrices": lambda: vision_model.image_and_matrices(IMAGE, networks, [0, 2, 3], 4, patch=(2, 2, 2, 2)),
        "colour": lambda: vision_model.image_and_matrices(
            np.dstack([IMAGE] * 3), {"a": networks["trained"]}, [1, 2], 3
        ),
        "relations": lambda: vision_model.relations(relations, nulls, NAME, 10),
        "drop_path": lambda: vision_model.drop_path_effect(dropped, 0.95),
    }[figure]
    for theme in ("light", "dark"):
        assert_repeats(draw, theme)
        assert_text_inside(draw, theme)


def test_the_image_stands_beside_its_matrices_with_its_patch_framed(networks):
    figure = vision_model.image_and_matrices(IMAGE, networks, [0, 2, 3], 4, patch=(2, 4, 2, 2))
    assert np.array_equal(figure.axes[0].images[0].get_array(), IMAGE)
    (frame,) = figure.axes[0].patches
    assert (frame.get_xy(), frame.get_width()) == ((1.5, 3.5), 2)
    expected = depth_data.relative_matrices(networks["trained"], [0, 2, 3], 4)
    assert np.allclose(figure.axes[2].images[0].get_array().filled(np.nan)[5:9, 10:14], expected[1, 2])


def test_relations_leave_out_a_block_with_itself(relations):
    table = vision_model_data.relations_table(relations, NAME)
    assert len(table) == 2 * 4 * 5
    values = 1 - relations["trained"][NAME].values[2, 1]
    row = table[(table.network == "trained") & (table.relation == "patch") & (table.image == 3)]
    assert row.coupling.item() == pytest.approx(values[~np.eye(6, dtype=bool)].mean())


def test_drop_path_rows_keep_image_and_draw(dropped):
    table = vision_model_data.drop_path_table(dropped)
    assert len(table) == 5 + 10
    row = table[(table.image == 4) & (table.draw == 2)]
    assert row.coupling.item() == pytest.approx(1 - float(dropped["on"][3, 1]))


def test_summary_and_quoted_numbers_agree(networks, relations, nulls, dropped):
    summary = vision_model_data.summary_table(networks, NAME, 4, 0.95)
    found = vision_model_data.quoted(summary, relations, nulls, dropped, NAME, 1e-5)
    assert list(summary.index) == ["untrained", "trained", "random bases"]
    assert found["model-trained"] == summary.loc["trained", "coupling"] and found["model-null"] == pytest.approx(0.05)
    assert found["class-to-patch-null"] == pytest.approx(0.05) and found["model-null-error"] == 1e-5
    assert found["class-to-patch-null-error"] == pytest.approx(2e-5)
    assert found["drop-path-off"] == pytest.approx(float(1 - dropped["off"].mean()))
    assert found["drop-path-on-low"] < found["drop-path-on"] < found["drop-path-on-high"]
