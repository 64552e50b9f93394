"""Where a job ends early: as soon as half the interval of a mean over its prompts is narrow enough, and not before."""

import numpy as np
import tiny
import xarray as xr
from refusals import refused

import coupling_lib as cl
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.errors import CouplingError
from workflow import until


def one(value: float) -> xr.Dataset:
    """A measurement of one prompt, with a part that has no value."""
    ds = xr.Dataset({"value": (("prompt", "part"), [[value, np.nan]]), "shared": ("place", [1, 2])})
    return ds.assign_coords(prompt=["the prompt"])


def test_job_stops_when_half_the_interval_is_narrow():
    draws = np.random.default_rng(0).normal(3.0, 0.5, 200).tolist()
    n = next(number for number in range(1, 201) if until.is_reached(draws[:number], 0.1))
    # 1.96 * 0.5 / sqrt(n) is 0.1 at n = 96; the sample's own spread stands for 0.5.
    assert 70 < n < 130
    intervals = [mean_interval(np.array(draws[:m])) for m in (n - 1, n)]
    before, after = (float(interval.high - interval.low) / 2 for interval in intervals)
    assert after < 0.1 <= before
    reason = f"after {n} of 200 prompts: half width {after:.3g} of the 95 % interval of the mean value is below 0.1"
    assert until.record(draws[:n], 0.1, "value", 200) == {"stopped": reason, "until": 0.1, "half_width": after}


def test_job_never_stops_before_the_fewest_prompts():
    assert [until.is_reached([1.0] * n, 0.01) for n in range(1, 10)] == [False] * 7 + [True] * 2 and until.FEWEST == 8
    assert until.half_width([1.0] * 8) == 0
    wide = [float(place % 2) for place in range(12)]
    assert not until.is_reached(wide, 0.01) and until.half_width(wide) > 0.2
    reason = until.record(wide, 0.01, "value", 12)["stopped"]
    assert reason.startswith("not early, after 12 of 12 prompts: half width 0.3")


def test_default_number_is_coupling_across_depth(tmp_path):
    tiny.save_llama(tmp_path)
    ds = cl.measure_depth(cl.load_model(tmp_path), ["It was the best of times", "one"], ks=(2, 4))
    off = ~np.eye(ds.sizes["block_1"], dtype=bool)
    wanted = [1 - float(x[off].mean()) for x in ds.normalized_miscoupling.sel(k=4).values.astype(float)]
    found = [until.number_of(ds.isel(prompt=[number]), None) for number in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert "of the mean coupling_of_blocks" in until.record(found, 0.9, None, 2)["stopped"]


def test_what_it_looks_at_must_be_there():
    assert until.number_of(one(2.0), "value") == 2.0
    for value, of, reason in (
        (1.0, "shared", "of is 'shared', which is no variable of numbers of each prompt; give of one of value"),
        (1.0, "vlaue", "give of one of value"),
        (np.nan, "value", "value holds no finite number for the prompt 'the prompt'"),
    ):
        refused(CouplingError, reason, until.number_of, one(value), of)
