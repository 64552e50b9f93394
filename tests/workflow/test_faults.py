"""The sweeps that are killed: what is counted, and a few kills for real."""

from __future__ import annotations

import os

import forked
import numpy as np
import pytest
import xarray as xr

from coupling_lib import store
from coupling_lib.paths import ROOT
from workflow import faults

KEY = {"model": "tiny", "measure": "depth", "version": 1, "code": "", "settings": {}, "prompt": "p"}


def kept(root, values, **attributes):
    return store.write(root, KEY, xr.Dataset({"x": ("prompt", values)}, {"prompt": ["a"]}, attributes))


def test_three_kills_lose_repeat_and_spoil_nothing():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    code = "import sys; from workflow import faults; sys.exit(faults.main(['--kills', '3', '--seed', '1']))"
    done = forked.run(code, environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["kills", "repeats", "losses", "corrupt", "sweeps", "in", "a", "write", "off"]
    assert [row[-7:-3] for row in rows] == [["1", "0", "0", "0"]] * 3 + [["3", "0", "0", "0"]]


@pytest.mark.parametrize(
    ("values", "attributes", "expected"),
    [
        (np.array([2.0]), {}, 0.0),
        (np.array([2.5]), {}, 0.25),
        (np.array([np.nan]), {}, np.inf),
        (np.array([2.0], "float32"), {}, np.inf),
        (np.array([2.0]), {"seed": 1}, np.inf),
    ],
)
def test_measurements_are_compared_to_the_last_bit(tmp_path, values, attributes, expected):
    ours, theirs = kept(tmp_path / "a", values, **attributes), kept(tmp_path / "b", np.array([2.0]))
    assert faults.difference(ours, theirs) == expected


def test_what_was_measured_or_written_again_or_is_gone_or_spoilt_is_counted(tmp_path):
    path = kept(tmp_path, np.array([1.0]))
    first, count = faults.kept(tmp_path), faults.Count()
    assert list(first) == [path] and first[path][2] == "a"
    kept(tmp_path, np.array([1.0]))
    assert faults.kept(tmp_path, count)[path] != first[path] and count.corrupt == 0
    path.write_bytes(path.read_bytes()[:-1])
    assert faults.kept(tmp_path, count) == {} and count.corrupt == 1


def test_a_measure_that_is_noted_is_the_same_to_the_store(tmp_path):
    measure = faults.CASES[1].measure
    noted = faults.noted(measure, tmp_path / "log")
    assert (noted.__name__, noted.version) == (measure.__name__, measure.version)
