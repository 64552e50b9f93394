"""Measurements that ship with the project: a prompt of a measure, measured anew, gives what is shipped."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from refusals import refused

import coupling_lib as cl
from coupling_lib import paths, store
from coupling_lib.errors import ParameterError
from coupling_lib.store import files
from workflow import ship

MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def shipped():
    return store.listing(MODEL, root=files.shipped(MODEL))


@pytest.fixture(scope="module")
def model():
    return cl.load_model(MODEL)


def test_every_chapter_measure_ships_within_3_mb(shipped):
    both = {"depth", "tokens", "trajectories", "spectra", "dynamics", "perturbation", "nulls", "decisive", "readouts"}
    assert set(shipped.measure) == both | {"precision"}
    for measure in both:
        assert set(shipped[shipped.measure == measure].untrained) == {True, False}, measure
    assert shipped.source.str.contains("sha256 b179c9523d0e").all()
    sizes = [sum(path.stat().st_size for path in folder.rglob("*.*")) for folder in paths.SHIPPED.iterdir()]
    assert sizes and max(sizes) <= 3_000_000 and sum(sizes) <= 12_000_000
    datasets = {path: files.open_file(Path(path))[1] for path in shipped.path}
    kept = [datasets[path] for path in shipped.path[shipped.measure == "readouts"]]
    assert len(kept) == 24 and max(float(abs(ds.slope - 1).max()) for ds in kept) < 1e-3


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["depth", "tokens", "spectra", "trajectories"])
def test_a_prompt_measured_anew_gives_what_is_shipped(shipped, model, name, place):
    rows = shipped[(shipped.measure == name) & ~shipped.untrained]
    row = rows[rows.settings == rows.settings.mode()[0]].iloc[place]
    _, kept = files.open_file(Path(row.path))
    found = getattr(cl, f"measure_{name}")(model, [row.prompt], **json.loads(row.settings))
    compared = 0
    for variable, values in kept.data_vars.items():
        if values.dtype.kind == "f" and "path" not in variable and not variable.endswith(("matrix", "residual")):
            # What no figure draws is NaN here. Pairs are rounded to 2^-16 of themselves.
            drawn, within = values.notnull().values, {"rtol": 2e-3 + 2.0**-ship.BITS, "err_msg": variable}
            atol = 2e-4 * float(np.nanmax(abs(values), initial=1e-30))
            np.testing.assert_allclose(found[variable].values[drawn], values.values[drawn], atol=atol, **within)
            compared += drawn.sum()
    assert compared > 200


def measured(seed: int = 0) -> xr.Dataset:
    """A dataset of the dimensions of `measure_depth`, of twelve blocks and two K."""
    draw = np.random.default_rng(seed)
    shape, pairs = (1, 2, 12, 12), ("prompt", "k", "block_1", "block_2")
    variables = {name: (pairs, draw.normal(size=shape).astype("f4")) for name in cl.VARIANTS}
    variables |= {f"shared_{name}": variables[name] for name in ("normalized_miscoupling", "mismatch")}
    variables["singular_values"] = (("prompt", "block_1", "rank"), draw.normal(size=(1, 12, 50)).astype("f4"))
    for name in ("matrix", "shared_matrix"):
        variables[name] = (("block_1", "block_2", "row", "column"), draw.normal(size=(12, 12, 3, 3)).astype("f4"))
    (first,) = cl.load_prompts(n=1)
    coords = {"k": [10, 30], "block_1": range(12), "block_2": range(12), "prompt": [first.text]}
    return xr.Dataset(variables, coords, {"model": "tiny"})


def shipped_of(ds: xr.Dataset, measure: str = "depth", untrained: int = 0, **changes: object) -> xr.Dataset | None:
    settings = {"ks": [10], "token": -1, "boundary": "block", "formed": True} | changes
    return ship.shipped({"measure": measure, "untrained": untrained, "settings": settings}, ds)


def test_drawn_variables_ship_and_the_rest_is_named():
    ds = measured()
    found = shipped_of(ds)
    left_out = found.attrs["not_shipped"].split(", ")
    assert left_out[0] == "miscoupling" and {*found.data_vars} == {*ds.data_vars} - {*left_out}
    # What a prompt brings to a mean is as it was; a pair is off by a half in its sixteenth bit.
    assert found.singular_values.identical(ds.singular_values)
    assert 2.0**-19 < float(abs(found.mismatch / ds.mismatch - 1).max()) <= 2.0**-16
    # Eight blocks in the middle are drawn.
    inside = (ds.block_1 >= 2) & (ds.block_1 < 10) & (ds.block_2 >= 2) & (ds.block_2 < 10)
    assert found.matrix.equals(ds.matrix.where(inside)) and int(found.matrix.notnull().sum()) == 64 * 9
    assert int(shipped_of(ds, untrained=1).shared_matrix.notnull().sum()) == 0


def test_readings_ship_only_ranked_or_chosen_pairs():
    ds, ks = measured(), [10, 30]
    trained = shipped_of(ds, ks=ks)
    several = (trained, shipped_of(ds, untrained=1, ks=ks), shipped_of(ds, ks=ks, boundary="hidden_states"))
    at = {name: [int(one[name].notnull().any(("block_1", "block_2")).sum()) for one in several]
          for name in ("basis_uu", "released_norm", "normalized_miscoupling")}  # fmt: skip
    assert at == {"basis_uu": [1, 0, 0], "released_norm": [1, 1, 0], "normalized_miscoupling": [1, 1, 1]}
    assert trained.basis_uu.sel(k=30).isnull().all() and trained.singular_values.notnull().all()


def test_what_no_chapter_asks_for_stays_behind():
    assert shipped_of(measured(), token=3) is None
    other = measured().assign_coords(prompt=["a prompt of another chapter"])
    assert {*shipped_of(other).data_vars} == {"normalized_miscoupling", "singular_values"}
    whole = measured().rename(k="kind")
    assert shipped_of(whole, "nulls") is whole


def test_shipping_again_keeps_what_already_ships(tmp_path, monkeypatch):
    (own,) = paths.SHIPPED.glob("qwen2.5-coder-0.5b")
    copy = shutil.copytree(own, tmp_path / "ships" / own.name)
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    monkeypatch.setattr(paths, "SHIPPED", tmp_path / "ships")
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "nothing measured here")
    assert ship.ship(own.name) == {name.split(".")[0]: len(content) for name, content in before.items()}
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    monkeypatch.setattr(ship, "current_files", lambda *_: iter(()))  # as where every measure has a new version
    refused(ParameterError, f"nothing is stored of '{own.name}' that this library would read", ship.ship, own.name)
    assert {path.name for path in copy.iterdir()} == {*before}
