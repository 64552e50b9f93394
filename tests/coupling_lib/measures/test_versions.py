"""A measure's version says whether its stored numbers still hold: nothing else that is edited costs a measurement.

`measures.common.measurement` states when to raise one. After that, write the numbers down anew:

    PYTHONPATH="$PWD:tests/support" .venv/bin/python tests/coupling_lib/measures/test_versions.py
"""

import ast
import inspect
import json
import os
import shutil
from importlib import import_module, invalidate_caches
from pathlib import Path

import forked
import jupytext
import numpy as np
import pytest
import tiny
import torch
import xarray as xr

import coupling_lib as cl
from companion.tables.card import measure_known
from companion.tables.lenses import measure_readouts
from companion.training.drop_path import measure_drop_path
from coupling_lib import paths
from coupling_lib.measures import nulls
from coupling_lib.measures.precision import measure_triplets
from coupling_lib.store import key as identity

KEPT = Path(__file__).with_name("versions.json")
TEXTS = ["It was the best of times", "What is the capital of France?"]

# Each measure on a random model of 3 blocks: with which kind of input, with which settings.
MEASURED = {
    "depth": (cl.measure_depth, "text", {"ks": (4,)}),
    "tokens": (cl.measure_tokens, "text", {"block": 1, "k": 4, "tokens": 3}),
    "trajectories": (cl.measure_trajectories, "text", {}),
    "spectra": (cl.measure_spectra, "text", {"k": 4, "whole": (1,)}),
    "readouts": (measure_readouts, "text", {"fitted_on": ("It was the age of wisdom", "What is a whale? A whale is")}),
    "known": (measure_known, "text", {}),
    "lens": (cl.measure_lens, "text", {"tokens": "all"}),
    "triplets": (measure_triplets, "text", {"k": 4}),
    "dynamics": (cl.measure_dynamics, "text", {"k": 4}),
    "perturbation": (cl.measure_perturbation, "text", {"draws": 2}),
    "relations": (cl.measure_relations, "image", {"k": 4}),
    "drop_path": (measure_drop_path, "image", {"k": 4, "draws": 2}),
    "nulls": (nulls.measure_nulls, "text", {"ks": (4, 8)}),
    "decisive": (nulls.measure_decisive, "text", {"ks": (4,)}),
}

# A weight that differs by 1e-6 changes the figures below by 4e-4 at most; other processors round less than that.
CLOSE = {"rel": 1e-3, "abs": 1e-6}


def models(folder: Path) -> dict[str, tuple[cl.Model, list]]:
    tiny.save_llama(folder / "tiny")
    tiny.save_vit(folder / "tiny-vit")
    images = [torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    return {"text": (cl.load_model(folder / "tiny"), TEXTS), "image": (cl.load_model(folder / "tiny-vit"), images)}


def figures(ds: xr.Dataset) -> dict[str, list]:
    """What a measurement is called, how it is shaped, and two sizes of it that no sign of a vector can change."""
    found: dict[str, list] = {}
    for name, values in sorted(ds.data_vars.items()):
        found[str(name)] = [[f"{dim} {size}" for dim, size in values.sizes.items()]]
        if values.dtype.kind in "fiu":
            x = np.asarray(values.values, dtype=np.float64).ravel()
            finite = np.isfinite(x)
            squares, ramp = np.where(finite, x, 0) ** 2, 1 + np.arange(x.size) / x.size
            sizes = [float(np.sqrt(squares.mean())), float(np.sqrt((ramp * squares).mean()))]
            rounded = [float(f"{size:.4g}") if size > 1e-9 else 0.0 for size in sizes]
            found[str(name)] += [int((~finite).sum()), *rounded]
    return found


def measured(name: str, given: dict[str, tuple[cl.Model, list]]) -> xr.Dataset:
    measure, kind, settings = MEASURED[name]
    return measure(*given[kind], **settings)


def changes(now: dict[str, list], kept: dict[str, list]) -> list[str]:
    """Name the variables of which something changed."""
    close = {name: [form, *(pytest.approx(x, **CLOSE) for x in numbers)] for name, (form, *numbers) in kept.items()}
    return sorted(name for name in now.keys() | kept.keys() if now.get(name) != close.get(name))


def swept(source: str) -> set[str]:
    """Name the measures that a file hands to `sweep` or `stream`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    named = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in ("sweep", "stream")]
    return {ast.unparse(call.args[0]).rpartition(".")[2] for call in named}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=sorted(MEASURED))
def each(request, given):
    return request.param, measured(request.param, given)


def test_measured_numbers_change_only_with_the_version(each):
    name, ds = each
    kept = json.loads(KEPT.read_text(encoding="utf-8"))[name]
    assert kept["version"] == MEASURED[name][0].version, f"measure_{name} has another version: run this file"
    changed = changes(figures(ds), kept["figures"])
    assert not changed, f"numbers of measure_{name} changed: raise its version ({', '.join(changed)})"


def test_a_measurement_survives_netcdf(each, tmp_path):
    each[1].to_netcdf(tmp_path / "measured.nc")
    with xr.open_dataset(tmp_path / "measured.nc") as back:
        xr.testing.assert_allclose(back, each[1])
        assert all(back.attrs.get(name) == each[1].attrs.get(name) for name in ("model", "boundary", "measure"))


def test_changed_figures_are_noticed_and_rounding_ignored():
    kept = {"a": [["prompt 2"], 0, 0.5, 0.6], "b": [["k 1"]]}
    assert changes({"a": [["prompt 2"], 0, 0.50001, 0.6], "b": [["k 1"]]}, kept) == []
    assert changes({"a": [["prompt 2"], 0, 0.51, 0.6], "b": [["k 2"]]}, kept) == ["a", "b"]
    assert changes({"a": [["prompt 2"], 1, 0.5, 0.6], "c": [["k 1"]]}, kept) == ["a", "b", "c"]


def test_every_measure_has_version_and_kept_figures():
    files = [*(paths.ROOT / "workflow").glob("*.py"), *Path(paths.PACKAGE).rglob("*.py")]
    sources = [path.read_text(encoding="utf-8") for path in files]
    for path in (paths.ROOT / "notebooks").glob("*.py"):
        sources += [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    named = set().union(*map(swept, sources))
    assert {"measure_depth", "measure_nulls", "measure_drop_path"} <= named
    assert {f"measure_{name}" for name in MEASURED} >= named - {"measure", "measured"}  # what hands on any measure
    modules = [import_module(f"coupling_lib.measures.{path.stem}") for path in Path(nulls.__file__).parent.glob("*.py")]
    functions = {name: part for module in modules for name, part in vars(module).items() if name.startswith("measure_")}
    arguments = {name: list(inspect.signature(part).parameters)[:2] for name, part in functions.items()}
    # These two hand their prompts on to the measures above.
    ours = {name for name, first in arguments.items() if first == ["model", "prompts"]}
    kept = {name for name, (measure, *_) in MEASURED.items() if measure.__module__.startswith("coupling_lib.")}
    assert ours - {"measure_prompts", "measure_network"} == {f"measure_{name}" for name in kept}
    assert all(isinstance(measure.version, int) for measure, *_ in MEASURED.values())
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    for name, (measure, *_) in MEASURED.items():
        named = {"k", "ks"} & set(inspect.signature(measure).parameters)
        dims = {dim.split()[0] for form, *_ in kept[name]["figures"].values() for dim in form}
        several = bool(dims & {"k", "rule"})  # a rule of how many vectors is one number of them
        assert named <= {"ks" if several else "k"} and (named or not several), name


PROGRAM = """
import sys
import coupling_lib as cl
from coupling_lib.measures import depth
from coupling_lib.metrics import coupling

assert "edited" in depth.__doc__ and "edited" in depth.measure_depth.__doc__ and "edited" in coupling.__doc__
cl.sweep(cl.measure_depth, cl.load_model(sys.argv[1]), sys.argv[3:], store=sys.argv[2], ks=(4,))
"""


@pytest.mark.thorough
def test_an_edited_docstring_measures_nothing_anew(tmp_path):
    tiny.save_llama(tmp_path / "tiny")
    results = tmp_path / "results"
    cl.sweep(cl.measure_depth, cl.load_model(tmp_path / "tiny"), TEXTS, store=results, ks=(4,))
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*.safetensors")}
    assert len(before) == len(TEXTS)
    copy = tmp_path / "elsewhere" / "coupling_lib"
    shutil.copytree(paths.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "elsewhere" / "data").symlink_to(paths.ROOT / "data")
    for name in ("measures/depth.py", "metrics/coupling.py"):
        text = (copy / name).read_text(encoding="utf-8")
        (copy / name).write_text(text.replace('"""', '"""edited: ').replace("edited: \n", "\n"), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "elsewhere"), "OMP_NUM_THREADS": "1"}
    run = forked.run(PROGRAM, environment, str(tmp_path / "tiny"), str(results), *TEXTS, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*.safetensors")} == before


def test_custom_measure_is_keyed_by_its_source_file(given, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def code(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        invalidate_caches()  # two files of one tick of the clock leave the folder's time as it is
        return identity.measurement_key(import_module(name).measure_own, given["text"][0], {})["code"]

    source = "def measure_own(model, prompts):\n    return len(prompts)\n"
    assert code("own_one", source) == code("own_two", source) != code("own_three", source + "\nHELPER = 2\n")


def write(folder: Path) -> None:
    """Keep the numbers of each measure whose version is new; a change under the old version is left to the test."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    given = models(folder)
    for name, (measure, *_) in MEASURED.items():
        if kept.get(name, {}).get("version") != measure.version:
            kept[name] = {"version": measure.version, "figures": figures(measured(name, given))}
            print(f"measure_{name}: version {measure.version} written down")
    lines = []
    for name, part in sorted(kept.items()):
        each = ",\n".join(f"      {json.dumps(key)}: {json.dumps(value)}" for key, value in part["figures"].items())
        lines.append(
            f'  {json.dumps(name)}: {{\n    "version": {part["version"]},\n    "figures": {{\n{each}\n    }}\n  }}'
        )
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        write(Path(home))
