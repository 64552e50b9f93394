"""Summaries over prompts, with the names of the array that they condense."""

import numpy as np
import pytest
import xarray as xr
from refusals import refused

from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.datasets.summaries import Chance, block_couplings, chance, depth_summary, interval, mean_couplings
from coupling_lib.errors import ParameterError, UntrustworthyResultError

BLOCKS = {"k": [5], "block_1": range(3), "block_2": range(3)}


def make(n_prompts=20):
    values = np.random.default_rng(0).normal(size=(n_prompts, 3))
    return xr.DataArray(values, {"block": [1, 2, 3]}, ("prompt", "block"))


def test_intervals_contain_the_mean_at_every_block():
    values, gaps = make(), make().where(make().block != 2)
    found, expected = interval(values), mean_interval(values.values)
    np.testing.assert_allclose(found["mean"], values.mean("prompt"))
    assert (found.low < found["mean"]).all() and (found["mean"] < found.high).all()
    np.testing.assert_array_equal((found.low, found.high), (expected.low, expected.high))
    assert found.block.values.tolist() == [1, 2, 3]
    xr.testing.assert_identical(interval(values.transpose("block", "prompt")), found)
    xr.testing.assert_identical(interval(values, gaps=False), found)
    alone = interval(make(1))
    np.testing.assert_array_equal(alone["mean"], make(1)[0])
    assert np.isnan(alone.low).all() and np.isnan(alone.high).all()
    refused(UntrustworthyResultError, "NaN", interval, gaps, gaps=False)
    np.testing.assert_array_equal(interval(gaps).low, found.low.where(found.block != 2))


def test_mean_couplings_leave_out_the_diagonal():
    values = np.random.default_rng(1).random((2, 1, 3, 3))
    ds = xr.Dataset({"mismatch": (("prompt", "k", "block_1", "block_2"), values)}, BLOCKS)
    pairs = 1 - values[:, 0]
    whole = pairs[:, ~np.eye(3, dtype=bool)].mean(axis=1)
    np.testing.assert_allclose(mean_couplings(ds, "mismatch", 5), whole)
    first = (pairs[:, 0, 1] + pairs[:, 0, 2] + pairs[:, 1, 0] + pairs[:, 2, 0]) / 4
    np.testing.assert_allclose(block_couplings(ds, "mismatch", 5).sel(block=0), first)
    refused(ParameterError, "the model has 1 block", block_couplings, ds.isel(block_1=[0], block_2=[0]), "mismatch", 5)
    found = chance(xr.Dataset({"value": ("block_1", [0.9, 0.8]), "error": ("block_1", [0.01, 0.03])}))
    assert isinstance(found, Chance) and (found, found.error, 1 - found) == pytest.approx((0.85, 0.02, 0.15))


def test_summary_of_several_networks_is_that_of_each():
    values = np.random.default_rng(2).random((2, 4, 1, 3, 3))
    variables = {"mismatch": (("network", "prompt", "k", "block_1", "block_2"), values)}
    variables["by_distance"] = ("network", "prompt", "variant", "k", "distance"), values[:, :, :, :1, :]
    ds = xr.Dataset(variables, BLOCKS | {"distance": range(3), "variant": ["mismatch"]})
    for network in range(2):
        alone = depth_summary(ds.isel(network=network), "mismatch")
        xr.testing.assert_identical(depth_summary(ds, "mismatch").isel(network=network), alone)
    for name in ("miscoupling", "by_distance"):
        refused(ParameterError, f"variant '{name}' is unknown; choose from mismatch", depth_summary, ds, name)
    some = ds.isel(block_1=slice(1, 3), block_2=slice(1, 3))  # of which `by_distance`, of all blocks, says nothing
    pairs = 1 - values[:, :, :, [1, 2], [2, 1]].mean(axis=(1, -1))
    for one in (some, some.sel(k=5).drop_vars("by_distance")):
        neighbours = depth_summary(one, "mismatch")["mean"].sel(pairs="neighbours")
        np.testing.assert_allclose(neighbours.values.reshape(2, 1), pairs)
