"""Measurements on disk: what comes back is what was kept, or nothing."""

import functools
import os
import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import xarray as xr
from refusals import refused

from coupling_lib import paths, store
from coupling_lib.errors import ParameterError
from coupling_lib.store import files

KEY = {"model": "tiny", "measure": "depth", "version": 1, "code": "", "settings": {"k": 2}, "prompt": "p0"}


def measured(number: int = 0, tokens: int = 3) -> xr.Dataset:
    """Every kind of value that a measurement may hold."""
    values = (generator := np.random.default_rng(number)).normal(size=(1, 2, tokens))
    values[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "wide": (("prompt", "block", "token"), values),
            "narrow": (("prompt", "block"), generator.normal(size=(1, 2)).astype("float32"), {"units": "1"}),
            "half": (("prompt",), np.array([0.5], "float16")),
            "count": (("prompt",), np.array([2**40 + number])),
            "flag": (("prompt",), np.array([number % 2 == 0])),
            "text": (("prompt", "token"), np.array([[" the", "é\u2028", ""][:tokens]])),
            "matrix": (("block", "column"), np.asfortranarray(np.arange(6.0).reshape(2, 3))),
            "scalar": ((), 3),
        },
        {"prompt": [f"prompt {number}"], "block": [0, 1], "token": range(tokens)},
        {"model": "tiny", "seed": "", "token": np.int64(-1), "score": 0.1, "bad": float("nan"), "n_prompts": 1},
    )


def assert_same(a: xr.Dataset, b: xr.Dataset) -> None:
    xr.testing.assert_identical(a.drop_attrs(deep=False), b.drop_attrs(deep=False))
    assert {n: v.dtype for n, v in a.variables.items()} == {n: v.dtype for n, v in b.variables.items()}
    assert repr(dict(a.attrs)) == repr({n: v.item() if isinstance(v, np.generic) else v for n, v in b.attrs.items()})
    assert list(a.data_vars) == list(b.data_vars)


@pytest.fixture
def path(tmp_path):
    """The file of a measurement that was kept."""
    return store.write(tmp_path, KEY, measured())


def test_measurement_is_read_back_by_its_key(tmp_path, path):
    assert path == store.place(tmp_path, KEY) and path.parent == tmp_path / "tiny" / "measurements"
    ds, complete = store.read(tmp_path, KEY)
    assert complete
    assert_same(ds, measured())
    assert list(path.parent.iterdir()) == [path]  # nothing is left beside it
    assert store.read(tmp_path, KEY | {"prompt": "p1"}) is None
    assert store.digest(dict(reversed(KEY.items()))) == store.digest(KEY)
    changed = [KEY | {name: "other"} for name in KEY] + [KEY | {"settings": {"k": 3}}, KEY | {"version": 2}]
    assert len(set(map(store.digest, [KEY, *changed]))) == len(changed) + 1


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        *(("org/model", "org--model"), ("/home/me/a b/model", "model"), ("../x/", "x"), ("..", "model")),
        *(("/", "model"), ("/home/-v", "v"), ("/home/--", "model"), ("/home/" + "x-" * 9 + "-" + "m" * 79, "m" * 79)),
        ("/home/...x", "x"),
    ],
)
def test_any_model_name_makes_one_folder(tmp_path, name, folder):
    assert store.place(tmp_path, KEY | {"model": name}).parent == tmp_path / folder / "measurements"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.5, 0.99])
def test_truncated_file_is_renamed_with_a_warning(tmp_path, path, share):
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.warns(store.StoreWarning, match=r"is damaged: it is truncated.*renamed to .*\.damaged"):
        assert store.read(tmp_path, KEY) is None
    assert list(path.parent.iterdir()) == [path.with_name(path.name + ".damaged")]
    with warnings.catch_warnings(action="error"):
        assert store.read(tmp_path, KEY) is None  # told once
        store.write(tmp_path, KEY, measured())
        assert_same(store.read(tmp_path, KEY)[0], measured())


def test_changed_bytes_and_foreign_names_are_noticed(tmp_path, path):
    content = path.read_bytes()
    for at in range(0, len(content), 23):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            _, ds = files.open_file(path)
        except files.DamagedError:
            continue
        # Blanks between the header and the arrays carry nothing.
        assert content[at : at + 1] == b" "
        assert_same(ds, measured())
    path.write_bytes(content)
    path.rename(store.place(tmp_path, other := KEY | {"prompt": "p1"}))
    with pytest.warns(store.StoreWarning, match="belongs to another measurement"):
        assert store.read(tmp_path, other) is None


def test_objects_and_unlike_measurements_are_refused(tmp_path):
    x, write, join = xr.Dataset({"x": 1}), functools.partial(store.write, tmp_path, KEY), store.join_prompts
    for call, given, message in (
        (write, xr.Dataset({"x": ("a", np.array([{}, []], object))}), "the variable 'x' holds objects"),
        (write, xr.Dataset(attrs={"x": [1]}), "the attribute 'x' is a list"),
        (join, [], "no measurement to join"),
        (join, [measured(), measured().drop_vars("wide")], "measurement 2 has no variable 'wide'"),
        (join, [x, x], "no dimension 'prompt'"),
    ):
        refused(ParameterError, message, call, given)
    assert not any(tmp_path.iterdir())


def test_failed_write_leaves_the_old_file(tmp_path, path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    refused(OSError, "No space left", store.write, tmp_path, KEY, measured(1))
    assert list(path.parent.iterdir()) == [path]
    assert_same(store.read(tmp_path, KEY)[0], measured())


def test_joined_prompts_are_padded_with_missing_values():
    joined = store.join_prompts([measured(0, tokens=2), measured(1, tokens=3), measured(2, tokens=1)])
    assert dict(joined.sizes) == {"prompt": 3, "block": 2, "token": 3, "column": 3}
    assert [*joined.prompt.values] == ["prompt 0", "prompt 1", "prompt 2"]
    for number, tokens in enumerate((2, 3, 1)):
        part = measured(number, tokens).wide.values[0]
        np.testing.assert_array_equal(joined.wide.values[number, :, :tokens], part)
        assert np.isnan(joined.wide.values[number, :, tokens:]).all()
    assert joined.text.values[2].tolist() == [" the", "", ""] and joined.token.values.tolist() == [0, 1, 2]
    assert joined["count"].values.tolist() == [2**40, 2**40 + 1, 2**40 + 2] and joined.narrow.dtype == "float32"
    assert joined.matrix.dims == ("block", "column") and int(joined.scalar) == 3


def test_listing_has_one_row_per_measurement(tmp_path, monkeypatch):
    assert Path(os.environ["COUPLING_RESULTS"]) == paths.RESULTS
    assert store.listing(root=tmp_path).empty and store.listing(root=tmp_path / "nowhere").empty
    for number in range(3):
        store.write(tmp_path, KEY | {"prompt": f"p{number}"}, measured(number))
    more = {"model": "org/other", "measure": "spectra", "revision": "step1", "untrained": 1, "seed": 4}
    store.write(tmp_path, KEY | more, measured())
    table = store.listing(root=tmp_path)
    assert len(table) == 4 and list(table.columns) == list(files.COLUMNS)
    assert sorted(table[table.model == "tiny"].prompt) == ["prompt 0", "prompt 1", "prompt 2"]
    other = store.listing("org/other", root=tmp_path).iloc[0]
    assert more.items() <= dict(other).items()
    assert other.settings == '{"k": 2}' and other.bytes == os.path.getsize(other.path)
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    assert store.listing().equals(table)
