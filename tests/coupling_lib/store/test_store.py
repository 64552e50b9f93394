"""Measurements on disk: what comes back is what was kept, or nothing."""

import os
import warnings

import forked
import numpy as np
import pytest
import xarray as xr
from refusals import refused

from coupling_lib import store
from coupling_lib.errors import ParameterError
from coupling_lib.paths import ROOT
from coupling_lib.store import files

KEY = {"model": "tiny", "measure": "depth", "version": 1, "code": "", "settings": {"k": 2}, "prompt": "p0"}


def measured(number: int = 0, tokens: int = 3) -> xr.Dataset:
    """Every kind of value that a measurement may hold."""
    generator = np.random.default_rng(number)
    values = generator.normal(size=(1, 2, tokens))
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
    xr.testing.assert_equal(a, b)
    assert {n: v.dtype for n, v in a.variables.items()} == {n: v.dtype for n, v in b.variables.items()}
    assert {n: v.attrs for n, v in a.variables.items()} == {n: v.attrs for n, v in b.variables.items()}
    assert repr(dict(a.attrs)) == repr({n: v.item() if isinstance(v, np.generic) else v for n, v in b.attrs.items()})
    assert list(a.data_vars) == list(b.data_vars) and set(a.coords) == set(b.coords)


def fill(root, number: int, **changes) -> None:
    key = KEY | {"prompt": f"p{number}"} | changes
    store.write(root, key, measured(number))


def test_measurement_is_read_back_by_its_key(tmp_path):
    path = store.write(tmp_path, KEY, measured())
    assert path == store.place(tmp_path, KEY) and path.parent == tmp_path / "tiny" / "measurements"
    ds, complete = store.read(tmp_path, KEY)
    assert complete
    assert_same(ds, measured())
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing is left beside it
    assert store.read(tmp_path, KEY | {"prompt": "p1"}) is None
    assert store.digest(dict(reversed(KEY.items()))) == store.digest(KEY)
    changed = [KEY | {name: "other"} for name in KEY] + [KEY | {"settings": {"k": 3}}, KEY | {"version": 2}]
    assert len({store.digest(key) for key in [KEY, *changed]}) == len(changed) + 1


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
def test_truncated_file_is_renamed_with_a_warning(tmp_path, share):
    path = store.write(tmp_path, KEY, measured())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.warns(store.StoreWarning, match=r"is damaged: it is truncated.*renamed to .*\.damaged"):
        assert store.read(tmp_path, KEY) is None
    assert not path.exists() and path.with_name(path.name + ".damaged").exists()
    with warnings.catch_warnings(action="error"):
        assert store.read(tmp_path, KEY) is None  # told once
        store.write(tmp_path, KEY, measured())
        assert_same(store.read(tmp_path, KEY)[0], measured())


def test_changed_bytes_and_foreign_names_are_noticed(tmp_path):
    path = store.write(tmp_path, KEY, measured())
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
    path, other = store.write(tmp_path, KEY, measured()), KEY | {"prompt": "p1"}
    path.rename(store.place(tmp_path, other))
    with pytest.warns(store.StoreWarning, match="belongs to another measurement"):
        assert store.read(tmp_path, other) is None


def test_objects_and_unlike_measurements_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="the variable 'x' holds objects"):
        store.write(tmp_path, KEY, xr.Dataset({"x": ("a", np.array([{}, []], dtype=object))}))
    refused(ParameterError, "the attribute 'x' is a list", store.write, tmp_path, KEY, xr.Dataset(attrs={"x": [1]}))
    assert not any(tmp_path.iterdir())
    refused(ParameterError, "no measurement to join", store.join_prompts, [])
    with pytest.raises(ParameterError, match="measurement 2 has no variable 'wide'"):
        store.join_prompts([measured(), measured().drop_vars("wide")])
    refused(ParameterError, "no dimension 'prompt'", store.join_prompts, [xr.Dataset({"x": 1}), xr.Dataset({"x": 1})])


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = store.write(tmp_path, KEY, measured(0))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(OSError, "No space left", store.write, tmp_path, KEY, measured(1))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert_same(store.read(tmp_path, KEY)[0], measured(0))


def test_joined_prompts_are_padded_with_missing_values():
    joined = store.join_prompts([measured(0, tokens=2), measured(1, tokens=3), measured(2, tokens=1)])
    assert dict(joined.sizes) == {"prompt": 3, "block": 2, "token": 3, "column": 3}
    assert joined.prompt.values.tolist() == ["prompt 0", "prompt 1", "prompt 2"]
    for number, tokens in enumerate((2, 3, 1)):
        part = measured(number, tokens).wide.values[0]
        np.testing.assert_array_equal(joined.wide.values[number, :, :tokens], part)
        assert np.isnan(joined.wide.values[number, :, tokens:]).all()
    assert joined.text.values[2].tolist() == [" the", "", ""] and joined.token.values.tolist() == [0, 1, 2]
    assert joined["count"].values.tolist() == [2**40, 2**40 + 1, 2**40 + 2] and joined.narrow.dtype == "float32"
    assert joined.matrix.dims == ("block", "column") and int(joined.scalar) == 3


def test_listing_has_one_row_per_measurement(tmp_path):
    assert store.listing(root=tmp_path).empty and store.listing(root=tmp_path / "nowhere").empty
    for number in range(3):
        fill(tmp_path, number)
    fill(tmp_path, 0, model="org/other", measure="spectra", revision="step1", untrained=1, seed=4)
    table = store.listing(root=tmp_path)
    assert len(table) == 4 and list(table.columns) == list(files.COLUMNS)
    assert sorted(table[table.model == "tiny"].prompt) == ["prompt 0", "prompt 1", "prompt 2"]
    other = store.listing("org/other", root=tmp_path).iloc[0]
    assert (other.model, other.revision, other.untrained, other.seed) == ("org/other", "step1", 1, 4)
    assert other.settings == '{"k": 2}' and other.bytes == os.path.getsize(other.path)
    fill(tmp_path / "named", 0)
    code = "from coupling_lib import store; print(store.listing().prompt.tolist())"
    run = forked.run(code, os.environ | {"COUPLING_RESULTS": str(tmp_path / "named")}, cwd=ROOT)
    assert run.stdout == "['prompt 0']\n", run.stderr
