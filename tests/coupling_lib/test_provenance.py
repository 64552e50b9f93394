"""Provenance: complete, fit for NetCDF, the same for the same inputs, readable in one line."""

import re
import sys
from importlib.metadata import version
from types import SimpleNamespace

import torch
import xarray as xr

from coupling_lib import provenance

MODEL = SimpleNamespace(
    name="nano-neox", source="embedded:nano-neox", revision=None, precision="nf4", untrained=True, seed=3,
    n_blocks=12, d_model=96,
)  # fmt: skip


def test_records_survive_netcdf_and_fingerprints_follow_prompts(tmp_path, monkeypatch):
    record = provenance.provenance(MODEL, ["one", "two"], measure="depth", token=-1)
    assert record == record | {
        "model": "nano-neox", "source": "embedded:nano-neox", "revision": "", "precision": "nf4", "untrained": 1,
        "seed": 3, "n_blocks": 12, "width": 96, "n_prompts": 2, "measure": "depth", "token": -1,
    }  # fmt: skip
    assert f"torch {version('torch')}" in record["versions"] and f"nnsight {version('nnsight')}" in record["versions"]
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in record["versions"]
    assert record["command"]
    record = provenance.provenance(MODEL, ["one"], measure="depth", boundary=None)
    xr.Dataset({"x": 1.0}, attrs=record).to_netcdf(tmp_path / "measured.nc")
    assert xr.load_dataset(tmp_path / "measured.nc").attrs == record
    ids = torch.tensor([[1, 2]])
    prompts = [["a", "b"], ["a", "b"], ["b", "a"], ["a"], ["ab"], [ids], [ids.T], [ids + 1]]
    found = list(map(provenance.prompts_hash, prompts))
    assert found[0] == found[1] and len(set(found)) == 7 and re.fullmatch(r"[0-9a-f]{12}", found[0])
    monkeypatch.setattr(sys, "argv", ["/home/me/bin/measure.py", "--k", "a b"])
    assert provenance.command_line() == "measure.py --k 'a b'"
    monkeypatch.setattr(sys, "argv", ["/lib/ipykernel_launcher.py", "-f", "/run/kernel-1.json"])
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    assert provenance.command_line() == "notebook"
