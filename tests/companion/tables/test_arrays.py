"""Arrays that are joined and condensed keep the names of their places."""

import warnings

import numpy as np
import xarray as xr

from companion.tables.arrays import mean_over_directions, quartiles, side_by_side

VALUES = xr.DataArray(np.random.default_rng(0).normal(size=(20, 3)), {"block": [1, 2, 3]}, ("prompt", "block"))


def test_quartiles_ignore_nan_without_a_warning():
    found = quartiles(xr.DataArray([[5.0, 1], [1, 2], [3, np.nan], [2, 3], [4, np.nan]], dims=("prompt", "block")))
    columns = {name: part.values.tolist() for name, part in found.items()}
    assert columns == {"median": [3.0, 2.0], "low": [2.0, 1.5], "high": [4.0, 2.5]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(quartiles(VALUES * np.nan)["median"]).all()


def test_networks_side_by_side_keep_shared_attributes():
    first = VALUES.to_dataset(name="x").assign_attrs(k=10, seed=0)
    second = (2 * VALUES[:, :2]).to_dataset(name="x").assign_attrs(k=10, seed=1)
    both = side_by_side(untrained=first, trained=second)
    assert both.network.values.tolist() == ["untrained", "trained"] and both.attrs == {"k": 10, "records": []}
    np.testing.assert_array_equal(both.x.sel(network="trained"), second.x.pad(block=(0, 1)))


def test_mean_over_directions_keeps_each_pair_once():
    one_way = xr.DataArray([[np.nan, 0.25], [0.75, np.nan]], {"block_a": [1, 2], "block_b": [1, 2]})
    found = mean_over_directions(one_way)
    assert found.name == "coupling"
    np.testing.assert_array_equal(found, [[np.nan, 0.5], [np.nan, np.nan]])
