"""Where a job ends early: as soon as half the interval of a mean over its prompts is narrow enough, and not before."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import xarray as xr

import coupling_lib as cl
from coupling_lib.errors import CouplingError
from coupling_lib.metrics.inference import mean_interval
from workflow.until import FEWEST, Until


def one(value: float) -> xr.Dataset:
    """A measurement of one prompt, with a part that has no value."""
    ds = xr.Dataset({"value": (("prompt", "part"), [[value, np.nan]]), "shared": ("place", [1, 2])})
    return ds.assign_coords(prompt=["the prompt"])


def test_it_is_enough_where_half_the_interval_is_below_what_was_asked():
    draws = np.random.default_rng(0).normal(3.0, 0.5, 200)
    limit = Until(0.1, "value", len(draws))
    n = next(number for number, value in enumerate(draws, start=1) if limit.enough(one(value)))
    # 1.96 * 0.5 / sqrt(n) is 0.1 at n = 96; the sample's own spread stands for 0.5.
    assert 70 < n < 130
    halves = [mean_interval(draws[:m]) for m in (n - 1, n)]
    before, after = (float(found.high - found.low) / 2 for found in halves)
    assert after < 0.1 <= before
    said = f"after {n} of 200 prompts: half width {after:.3g} of the 95 % interval of the mean value is below 0.1"
    assert limit.record() == {"stopped": said, "until": 0.1, "half_width": after}


def test_it_is_never_enough_before_the_fewest_and_says_where_it_was_not_reached():
    limit = Until(0.01, "value", 12)
    assert [limit.enough(one(1.0)) for _ in range(8)] == [False] * 7 + [True] and FEWEST == 8
    assert limit.half_width == 0
    wide = Until(0.01, "value", 12)
    assert not any(wide.enough(one(float(place % 2))) for place in range(12)) and wide.half_width > 0.2
    assert wide.record()["stopped"].startswith("not early, after 12 of 12 prompts: half width 0.3")


def test_coupling_across_depth_is_what_is_looked_at_by_default(tmp_path):
    tiny.save_llama(tmp_path)
    ds = cl.measure_depth(cl.load_model(tmp_path), ["It was the best of times", "one"], ks=(2, 4))
    limit = Until(0.9, None, 2)
    for number in range(2):
        limit.enough(ds.isel(prompt=[number]))
    off = ~np.eye(ds.sizes["block_1"], dtype=bool)
    wanted = [1 - float(x[off].mean()) for x in ds.normalized_miscoupling.sel(k=4).values.astype(float)]
    np.testing.assert_allclose(limit.values, wanted, rtol=1e-6)
    assert "of the mean coupling_of_blocks" in limit.record()["stopped"]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("shared", "of is 'shared', which is no variable of numbers of each prompt; give of one of value"),
        ("vlaue", "give of one of value"),
    ],
)
def test_what_it_looks_at_must_be_there(of, said):
    with pytest.raises(CouplingError, match=said):
        Until(0.1, of, 3).enough(one(1.0))
    with pytest.raises(CouplingError, match="value holds no finite number for the prompt 'the prompt'"):
        Until(0.1, "value", 3).enough(one(np.nan))
