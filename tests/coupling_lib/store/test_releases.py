"""Numbers that other releases measured: read back as they are, with one line."""

from __future__ import annotations

import re

import xarray as xr

from coupling_lib import provenance
from coupling_lib.store import files

KEY = {"model": "tiny", "measure": "depth", "version": 1, "code": "", "settings": {"k": 2}}


def measured(number: int) -> xr.Dataset:
    return xr.Dataset({"value": ("prompt", [float(number)])})


def test_numbers_of_another_release_are_read_back_with_one_line(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(files, "_told", set())
    at_hand = provenance.versions()
    torch_then = re.sub(r"torch [\d.]+", "torch 2.1.0", at_hand)
    others = (
        ("of this machine", at_hand, ""),
        ("another build", re.sub(r"(torch [\d.]+)\S*,", r"\1+cu126,", at_hand), ""),
        ("another Python", re.sub(r"Python .*", "Python 3.99.1", at_hand), ""),
        ("no record", "", ""),
        ("of another torch", torch_then, r"were measured with torch 2\.1\.0 \(here 2\."),
        (
            "of another transformers",
            at_hand.replace("transformers 5", "transformers 4"),
            r"with transformers 4.*\(here 5\.",
        ),
        (
            "of another release of ours",
            at_hand.replace("coupling_lib 0", "coupling_lib 9"),
            r"coupling_lib 9\.\S+ \(here 0",
        ),
    )
    for name, versions, said in others:
        for number in range(3):
            key = KEY | {"prompt": f"{name} {number}"}
            files.write(tmp_path, key, measured(number).assign_attrs(versions=versions))
            ds, _ = files.read(tmp_path, key)
            assert ds.identical(measured(number).assign_attrs(versions=versions))
        told = [str(one.message) for one in recwarn]
        recwarn.clear()
        assert len(told) == bool(said) and all(re.search(said, one) for one in told), name
