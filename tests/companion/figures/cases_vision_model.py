"""What the figures of one vision transformer are drawn from in the tests of all figures."""

import numpy as np
import xarray as xr

from companion.figures import vision_model
from coupling_lib.measures.random_bases import Chance
from coupling_lib.metrics.summaries import side_by_side
from tests.companion.figures.cases_depth import networks

NAME, RELATIONS = "normalized_miscoupling", ["class", "patch", "class to patch", "patch a to b"]
IMAGE = np.random.default_rng(0).random((8, 8))


def make_relations(n: int) -> xr.Dataset:
    """Mismatches of five images at four relations around 0.925."""
    rng = np.random.default_rng(3)
    dims, shape = ("prompt", "relation", "block_1", "block_2"), (5, 4, 6, 6)
    names = ["untrained", "trained"] if n == 2 else [f"model {i}" for i in range(n)]
    one = {name: xr.Dataset({NAME: (dims, 0.9 + 0.05 * rng.random(shape))}, {"relation": RELATIONS}) for name in names}
    return side_by_side(**one).assign_attrs(k=10)


def make_nulls() -> xr.Dataset:
    """Random bases at 0.95, block by block."""
    parts = {"value": np.full((4, 6), 0.95), "error": np.full((4, 6), 2e-5)}
    return xr.Dataset({name: (("relation", "block_1"), part) for name, part in parts.items()}, {"relation": RELATIONS})


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
