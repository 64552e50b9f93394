"""What ships with the project: unpacked once, read in part by whoever asks for that part, and whole by nobody."""

import functools
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import coupling_lib as cl
from coupling_lib import paths, store
from coupling_lib.store import files

KEY = {"model": "tiny", "measure": "depth", "version": 1, "code": "", "settings": {"k": 2}, "prompt": "p0"}
RECORD = {"made": "2026-01-01T00:00:00.000000+00:00", "complete": True}


@pytest.fixture(autouse=True)
def _folders(tmp_path, monkeypatch):
    for name in ("RESULTS", "SHIPPED", "CACHE"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())


def packed(key: dict, ds: xr.Dataset, single: bool = False) -> Path:
    """Write the archive of one measurement."""
    content, name = files.encode(RECORD | {"key": key}, ds, single), store.place("", key).name
    target = paths.SHIPPED / key["model"] / f"{key['measure']}{files.ARCHIVE}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return target


def test_shipped_archives_are_unpacked_once(tmp_path, monkeypatch):
    assert files.shipped("tiny") == paths.SHIPPED
    packed(KEY, ds := xr.Dataset({"x": ("prompt", [1.0])}))
    first = files.shipped("tiny")
    assert first == files.shipped("tiny") == files.shipped() and files.shipped("other") == paths.SHIPPED
    assert store.read(first, KEY)[0].x.item() == 1 and len(store.listing(root=first)) == 1
    packed(KEY, xr.Dataset({"x": ("prompt", [2.0, 3.0])}))
    assert store.read(files.shipped("tiny"), KEY)[0].x.values.tolist() == [2, 3]
    packed(KEY, xr.Dataset({"x": ("noise", [1 / 3])}, {"noise": [0.03]}), single=True)
    found = store.read(files.shipped("tiny"), KEY)[0]
    assert found.x.dtype == np.float64 and found.x.item() == np.float32(1 / 3) and found.noise.item() == 0.03
    packed(KEY, ds)
    (tmp_path / "file").touch()
    monkeypatch.setattr(paths, "CACHE", tmp_path / "file" / "cache")
    found = files.shipped("tiny")
    assert found == files.shipped("tiny") and not found.is_relative_to(tmp_path)
    assert store.read(found, KEY)[0].x.item() == 1


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda _: b"no archive"])
def test_damaged_archive_is_refused_and_leaves_nothing(damage):
    archive = packed(KEY, xr.Dataset({"x": ("prompt", np.random.default_rng(0).normal(size=5000))}))
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(files.DamagedError, match=r"depth\.tar\.xz is damaged \(\w+\); restore it with: git checkout"):
        files.shipped("tiny")
    assert not any((paths.CACHE / "shipped").iterdir())


def test_variables_that_do_not_ship_are_measured(tmp_path):
    model, calls = cl.load_model("nano-neox"), []

    @cl.measurement(version=1)
    def measure_three(model: cl.Model, prompts: list) -> xr.Dataset:
        calls.append(prompts)
        return xr.Dataset({name: ("prompt", [1.5] * len(prompts)) for name in "xyz"}, {"prompt": ["a"]})

    sweep = functools.partial(cl.sweep, measure_three, model, ["a"])
    whole = sweep(store=tmp_path / "elsewhere")
    record, ds = files.open_file(Path(store.listing(root=tmp_path / "elsewhere").path[0]))
    packed(record["key"], (ds.drop_vars("z") + 0.25).assign_attrs({files.NOT_SHIPPED: "z"}))
    found = sweep(variables=("x", "y"))
    assert len(calls) == 1 and found.x.item() == 1.75 and list(found.data_vars) == ["x", "y"]
    assert sweep(variables=("x",), store=tmp_path / "own").x.item() == 1.5 and len(calls) == 2
    # All of it, or what does not ship, is measured anew; from then on that is read.
    xr.testing.assert_equal(sweep(), whole)
    assert [sweep(variables=(name,))[name].item() for name in "zx"] == [1.5, 1.5] and len(calls) == 3
