"""Emergence: each step is what the same measurement of that step alone gives, and the steps belong to the model."""

import numpy as np
import xarray as xr
from refusals import refused
from tiny import save_llama

import coupling_lib as cl
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.inputs.prompts import PARIS

PROMPTS = [PARIS, "It was the best of times"]


def test_each_step_is_the_measurement_of_its_revision(tmp_path):
    measured = cl.measure_emergence("nano-neox", PROMPTS, steps=(1000, 0), ks=(10, 30))
    assert measured.step.values.tolist() == [0, 1000]
    for step in (0, 1000):
        model = cl.load_model("nano-neox", revision=f"step{step}")
        depth = cl.measure_depth(model, PROMPTS, ks=(10, 30))
        paths = cl.measure_trajectories(model, PROMPTS)
        here = measured.sel(step=step)
        np.testing.assert_allclose(here.normalized_miscoupling, depth.normalized_miscoupling, atol=1e-4)
        for name in ("line_shape_score", "expodistance", "norm", "window_line_shape_score", "window_expodistance"):
            np.testing.assert_allclose(here[name], paths[name], rtol=1e-4)
        null = cl.null_of(depth, "normalized_miscoupling").mean("block_1")
        np.testing.assert_allclose(here.null, null["value"], rtol=1e-5)
        np.testing.assert_allclose(here.null_error, null["error"], rtol=1e-2)
    assert measured.progress.values[0] > 7 > 5 > measured.progress.values[1] > 4
    attrs = {"progress_label": "validation loss (nats per token)", "revision": "step0, step1000", "window": 5}
    attrs |= {"variant": "normalized_miscoupling", "measure": "emergence"}
    assert {name: measured.attrs[name] for name in attrs} == attrs
    measured.to_netcdf(tmp_path / "emergence.nc")
    with xr.open_dataset(tmp_path / "emergence.nc") as back:
        xr.testing.assert_allclose(back, measured)


def test_coupling_rises_within_100_steps_and_then_declines():
    """What the embedded model shows; the paper's models are followed from step 128 on and rise."""
    ds = cl.measure_emergence("nano-neox", PROMPTS, steps=(0, 100, 10000))
    off = ~np.eye(12, dtype=bool)
    coupling = 1 - ds.normalized_miscoupling.isel(k=0).values[:, :, off].mean((1, 2))
    null = 1 - ds["null"].isel(k=0).values
    assert abs(coupling[0] - null[0]) < 0.01
    assert coupling[1] > 5 * null[1]
    assert 1.5 * null[2] < coupling[2] < coupling[1] / 2


def test_impossible_settings_are_refused(tmp_path):
    for message, arguments in {
        "'nano-neox' has no step 5; choose from 0, 10, 32": dict(steps=(0, 5)),
        "it must be two or more training steps": dict(steps=(0,)),
        "k is 97; nano-neox has width 96": dict(steps=(0, 10), ks=(97,)),
        "window is 4; expected an odd number of blocks": dict(steps=(0, 10), window=4),
    }.items():
        refused(ParameterError, message, cl.measure_emergence, "nano-neox", PROMPTS, **arguments)
    save_llama(tmp_path)
    message = "has one revision, and emergence needs several; take one of nano-"
    refused(ModelUnavailableError, message, cl.measure_emergence, tmp_path, PROMPTS)
