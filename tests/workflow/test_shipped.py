"""Measurements that ship with the project: a prompt of a measure, measured anew, gives what is shipped."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coupling_lib as cl
from coupling_lib import paths, store
from coupling_lib.store import files

MODEL = "smollm2-135m"
MEASURES = {"depth": cl.measure_depth, "spectra": cl.measure_spectra, "trajectories": cl.measure_trajectories}


@pytest.fixture(scope="module")
def shipped():
    return store.listing(MODEL, root=paths.SHIPPED)


@pytest.fixture(scope="module")
def model():
    return cl.load_model(MODEL)


def test_every_measure_of_a_language_chapter_is_there_for_the_trained_and_the_untrained_model(shipped):
    both = {"depth", "tokens", "trajectories", "spectra", "dynamics", "perturbation", "nulls", "decisive"}
    both |= {"readouts"}
    assert set(shipped.measure) == both | {"precision"}
    for measure in both:
        assert set(shipped[shipped.measure == measure].untrained) == {True, False}, measure
    assert shipped.source.str.contains("sha256 b179c9523d0e").all()


def test_no_file_is_large_and_all_can_be_read(shipped):
    assert shipped.bytes.max() < 2_000_000 and shipped.bytes.sum() < 46_000_000
    for path in shipped.path:
        files.open_file(paths.ROOT / path)


def test_interventions_find_every_lens_that_is_shipped(shipped):
    kept = [files.open_file(paths.ROOT / path)[1] for path in shipped.path[shipped.measure == "readouts"]]
    assert len(kept) == 24 and max(float(abs(ds.slope - 1).max()) for ds in kept) < 1e-3


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", MEASURES)
def test_a_prompt_measured_anew_gives_what_is_shipped(shipped, model, name, place):
    rows = shipped[(shipped.measure == name) & ~shipped.untrained]
    row = rows[rows.settings == rows.settings.mode()[0]].iloc[place]
    _, kept = files.open_file(paths.ROOT / row.path)
    found = MEASURES[name](model, [row.prompt], **json.loads(row.settings))
    for variable in kept.data_vars:
        values = kept[variable]
        if values.dtype.kind == "f" and "path" not in variable and not variable.endswith(("matrix", "residual")):
            scale = float(np.nanmax(abs(values), initial=1e-30))
            np.testing.assert_allclose(found[variable], values, rtol=2e-3, atol=2e-4 * scale, err_msg=variable)
