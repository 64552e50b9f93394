"""Summaries over prompts, with the names of the array that they condense."""

import numpy as np
import pytest
import xarray as xr

from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.datasets.summaries import interval
from coupling_lib.errors import UntrustworthyResultError


def make(n_prompts=20):
    values = np.random.default_rng(0).normal(size=(n_prompts, 3))
    return xr.DataArray(values, {"block": [1, 2, 3]}, ("prompt", "block"))


def test_interval_holds_the_mean_and_is_that_of_every_place():
    values = make()
    found = interval(values)
    np.testing.assert_allclose(found["mean"], values.mean("prompt"))
    assert (found.low < found["mean"]).all() and (found["mean"] < found.high).all()
    expected = mean_interval(values.values)
    np.testing.assert_array_equal(found.low, expected.low)
    np.testing.assert_array_equal(found.high, expected.high)
    assert found.block.values.tolist() == [1, 2, 3]
    xr.testing.assert_identical(interval(values.transpose("block", "prompt")), found)


def test_a_single_prompt_has_no_interval():
    alone = interval(make(1))
    np.testing.assert_array_equal(alone["mean"], make(1)[0])
    assert np.isnan(alone.low).all() and np.isnan(alone.high).all()


def test_what_may_have_no_gaps_refuses_them():
    with pytest.raises(UntrustworthyResultError, match="NaN"):
        interval(make().where(make().block != 2), gaps=False)
    xr.testing.assert_identical(interval(make(), gaps=False), interval(make()))


def test_places_that_a_prompt_lacks_have_no_interval_and_change_no_other():
    found = interval(make().where(make().block != 2))
    assert np.isnan(found.low).values.tolist() == [False, True, False]
    np.testing.assert_array_equal(found.low[[0, 2]], interval(make()).low[[0, 2]])
