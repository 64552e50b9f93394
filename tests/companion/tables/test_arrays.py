"""Arrays that are joined and condensed keep the names of their places."""

import warnings

import numpy as np
import pytest
import xarray as xr

from companion.tables.arrays import mean_over_directions, quartiles, side_by_side


def make(n_prompts=20):
    values = np.random.default_rng(0).normal(size=(n_prompts, 3))
    return xr.DataArray(values, {"block": [1, 2, 3]}, ("prompt", "block"))


def test_quartiles_ignore_nan_without_a_warning():
    values = xr.DataArray([[5.0, 1], [1, 2], [3, np.nan], [2, 3], [4, np.nan]], dims=("prompt", "block"))
    found = quartiles(values)
    assert [float(found[name][0]) for name in ("median", "low", "high")] == [3.0, 2.0, 4.0]
    assert [float(found[name][1]) for name in ("median", "low", "high")] == [2.0, 1.5, 2.5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quartiles(make() * np.nan)
    assert np.isnan(found.median("block")["median"])


def test_networks_side_by_side_keep_shared_attributes():
    first = make().to_dataset(name="x").assign_attrs(k=10, seed=0)
    second = (2 * make()).isel(block=slice(2)).to_dataset(name="x").assign_attrs(k=10, seed=1)
    both = side_by_side(untrained=first, trained=second)
    assert both.network.values.tolist() == ["untrained", "trained"] and both.attrs == {"k": 10, "records": []}
    assert both.x.sel(network="trained", block=2)[0] == pytest.approx(2 * make().sel(block=2)[0].item())
    assert np.isnan(both.x.sel(network="trained", block=3)).all()


def test_mean_over_directions_keeps_each_pair_once():
    one_way = xr.DataArray([[np.nan, 0.25], [0.75, np.nan]], {"block_a": [1, 2], "block_b": [1, 2]})
    found = mean_over_directions(one_way)
    assert found.name == "coupling" and found.sel(block_a=1, block_b=2) == 0.5
    assert np.isnan(found.sel(block_a=[2, 1], block_b=1)).all()
