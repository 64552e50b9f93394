"""The outputs that notebooks carry: what `pytest --nbval notebooks` compares, and whether it finds a changed number."""

import math
import os
import re
import shutil
import subprocess
import sys

import nbformat
import numpy as np
import pytest
import xarray as xr
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import IPyNbFile, coalesce_streams
from papermill.inspection import inspect_notebook
from refusals import refused

from coupling_lib.errors import CouplingError
from coupling_lib.paths import ROOT
from coupling_lib.store import files
from notebooks.conftest import MOST, SPREADS, allowed, near, rounded_up, texts_of
from workflow import spreads

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MIME = "application/papermill.record/text/plain"


@pytest.mark.browser
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_built_notebooks_show_the_committed_outputs(path, request):
    """nbval's own comparison, of all cells; nothing is run a second time."""
    of_suite = path.stem in ("generalization", "edits")
    model = "suite" if of_suite else inspect_notebook(path)["model"]["default"].strip("'\"")
    ran = nbformat.read(ROOT / "results" / model / path.name, as_version=4).cells
    fresh = [c for c in ran if c.cell_type == "code" and "injected-parameters" not in c.metadata.get("tags", [])]
    stored = list(IPyNbFile.from_parent(request.session, path=path).collect())
    assert [cell.source for cell in fresh] == [one.cell.source for one in stored]
    differing = {
        one.name: "\n".join(one.comparison_traceback)
        for one, cell in zip(stored, fresh, strict=True)
        if one.options["check"] and not one.compare_outputs(*map(coalesce_streams, (cell.outputs, one.cell.outputs)))
    }
    assert differing == {}


CELLS = (
    "from pathlib import Path\nfrom coupling_lib.store.files import open_file\n"
    "mismatch = open_file(next(Path('measured').rglob('*.safetensors')))[1]['mismatch']",
    "from matplotlib.figure import Figure\nfrom companion.figures.show import remember, show\n"
    "show(lambda data: Figure((1, 1)), mismatch.mean('prompt'), name='demo', caption='Mismatch.')",
    "remember('demo', {'coupling': 1 - float(mismatch.mean())})",
    "print(f'{float(mismatch.mean()):.3f} over {mismatch.sizes[\"prompt\"]} prompts')",
)


def test_nbval_fails_when_one_measured_number_changes(tmp_path):
    mismatch = np.random.default_rng(0).uniform(0.85, 0.95, (12, 8, 8))
    # What another processor makes of the same weights, and a changed number.
    near, changed = mismatch * (1 + 1e-6 * np.random.default_rng(1).normal(size=mismatch.shape)), mismatch.copy()
    changed[3, 2, 5] = 0.0
    for name, values in {"stored": mismatch, "near": near, "changed": changed}.items():
        measured = xr.Dataset({"mismatch": (("prompt", "block_1", "block_2"), values)})
        files.write(tmp_path / name / "measured", {"model": "m", "measure": "depth"}, measured)
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in CELLS])
    where = {"metadata": {"path": str(tmp_path / "stored")}}
    NotebookClient(notebook, kernel_name="python3", resources=where).execute()
    for name in ("near", "changed"):
        nbformat.write(notebook, tmp_path / name / "demo.ipynb")
    shutil.copy(ROOT / "notebooks" / "conftest.py", tmp_path)

    def compared() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "--nbval", "near", "changed", "-rA", "-p", "no:cacheprovider"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900, check=False)

    run = compared()
    message = "the spread of demo is unknown; measure it: make spreads ONLY=demo"
    assert message in run.stdout and "Traceback" not in run.stdout and run.returncode == 2
    (tmp_path / "spreads.json").write_text('{"demo": {"shown": 0.0, "remembered": 3.1e-6}}')
    run = compared()
    assert re.findall(r"^PASSED (.*)", run.stdout, re.M) == [
        *(f"near/demo.ipynb::Cell {n}" for n in range(4)), "changed/demo.ipynb::Cell 0", "changed/demo.ipynb::Cell 3",
    ]  # fmt: skip
    assert re.findall(r"^FAILED (.* \d) - ", run.stdout, re.M) == [f"changed/demo.ipynb::Cell {n}" for n in (1, 2)]


ALIKE = [
    *(("0.9061", "0.9062"), ("0.08873232397218833", "0.088732323972188"), ("1e-05", "9.9e-06"), ("-1e-09", "3e-17")),
    *(("mean -0.12345678,  0.5", "mean -0.12345679, 0.5"), ("nano-neox step1000 nan 3.11.7",) * 2),
    ("9.99  a\n0.5   b", "10.0 a\n0.5  b"),  # a shorter number moves a column
]
UNLIKE = [
    *(("0.9060", "0.9062"), ("0.9063", "0.906"), ("264 numbers", "263 numbers"), ("12", "-12"), ("0.25", "-0.25")),
    *(("0.5 low", "0.5 high"), ("0.5 0.6", "0.5"), ("nan", "0.5"), ("", "0.5"), ("step1000", "step1001")),
    ("3.11.7", "3.11.8"),
]


def test_only_numbers_with_other_last_digits_agree():
    assert [pair for pair in ALIKE if near(*pair) != pair[1]] == []
    assert [pair for pair in UNLIKE if near(*pair) == pair[1]] == []


def test_numbers_may_differ_by_their_measured_spread():
    assert near("0.123460", "0.123456", 4e-5) == "0.123456"
    assert near("0.123460", "0.123456", 3e-5) == "0.123460" == near("0.123460", "0.123456")
    assert near("step1001", "step1000", math.inf) == "step1000"
    for name, text in {"depth-local-skew": "-0.017", "depth-local-low": "-0.0171064916"}.items():
        output = new_output("display_data", {MIME: "-0.0171064916"}, metadata={"scrapbook": {"name": name}})
        assert texts_of(output).popitem()[1] == text


def test_spread_table_covers_every_notebook(tmp_path):
    table = spreads.read()
    assert sorted(table) == [path.stem for path in NOTEBOOKS]
    for path in NOTEBOOKS:
        limits, measured = allowed(path), table[path.stem]
        assert len(limits["alone"]) == len(measured.get("alone", {}))
        for kind in ("shown", "remembered"):
            assert measured[kind] <= limits[kind] < max(10.01 * measured[kind], 1e-30) and limits[kind] <= MOST
    assert spreads.written(table) == SPREADS.read_text(encoding="utf-8")
    with pytest.raises(KeyError, match="the spread of new is unknown; measure it: make spreads ONLY=new"):
        allowed(tmp_path / "new.ipynb")


def test_spreads_round_up_to_powers_of_ten():
    for spread, limit in {0.0: 0.0, 1.55e-6: 1e-5, 1e-5: 1e-5, 9.1e-4: 1e-3, 0.03: 0.1, 3.01e-9: 1e-8}.items():
        assert rounded_up(spread) == pytest.approx(limit, rel=1e-12)


SETTINGS = {"default, 1 thread": ("DEFAULT", 1, set()), "avx2, 4 threads": ("AVX2", 4, {"X86_V3"})}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_reaches_torch_and_numpy(setting):
    asks = "import numpy, torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), "
    asks += "*numpy.show_config('dicts')['SIMD Extensions'].get('found') or [])"
    environment = os.environ | spreads.SETTINGS[setting]
    run = subprocess.run([sys.executable, "-c", asks], env=environment, capture_output=True, text=True, check=True)
    instructions, count, *sets = run.stdout.split()
    capability, threads, most = SETTINGS[setting]
    assert (instructions, int(count)) == (capability, threads) and set(sets) <= most


def executed(remembered: str, shown: str = "0.5001 of 3") -> nbformat.NotebookNode:
    """A notebook that ran: one printed text, one remembered number, and a cell that is not compared."""
    outputs = {
        "a": new_output("stream", text=shown),
        "b": new_output("display_data", data={MIME: remembered}),
        "c": new_output("stream", text=shown[::-1]),
    }
    cells = [new_code_cell(source, outputs=[output]) for source, output in outputs.items()]
    cells[2].metadata["tags"] = ["nbval-ignore-output"]
    return new_notebook(cells=cells)


@pytest.fixture
def runs(monkeypatch) -> dict[str, nbformat.NotebookNode]:
    """What a notebook gives in two settings, beside what is stored of it."""
    runs = {"old": executed("2.000020"), "new": executed("2.000100")}
    monkeypatch.setattr(spreads, "_stored", lambda name: executed("2.000000"))
    monkeypatch.setattr(spreads, "_executed", lambda name, setting, made: runs[setting])
    monkeypatch.setattr(spreads, "SETTINGS", {setting: {} for setting in runs})
    return runs


def test_spreads_are_the_largest_differences_between_settings(runs, tmp_path):
    table, path = tmp_path / "spreads.json", NOTEBOOKS[0].with_stem("depth")

    def measured() -> dict:
        assert spreads.spreads(["depth"], table) == f"spreads.json has 1 of {len(NOTEBOOKS)} notebooks"
        assert spreads.written(spreads.read(table)) == table.read_text(encoding="utf-8")
        return spreads.read(table)["depth"]

    entry = measured()
    assert (entry["shown"], entry["remembered"]) == (0.0, 5e-5) and "2.000100" in entry["remembered_at"]
    assert allowed(path, table) == {"shown": 0.0, "remembered": 1e-4, "alone": {}}
    # Another processor's larger spread of the same code stays, and that of other code goes.
    other = entry | {"remembered": 3e-4, "remembered_at": "x", "measured_on": ["another"]}
    table.write_text(spreads.written({"depth": other}))
    assert measured()["remembered"] == 3e-4 and len(spreads.read(table)["depth"]["measured_on"]) == 2
    table.write_text(spreads.written({"depth": other | {"code": "old"}}))
    assert measured() == entry
    # A small difference of large numbers has a limit of its own, and loosens no other.
    table.unlink()
    runs["old"] = executed("2.100000")
    measured()
    assert allowed(path, table) == {"shown": 0.0, "remembered": 1e-4, "alone": {(1, 0, MIME, 1): 0.1}}
    assert near("2.090000", "2.000000", 1e-4, {1: 0.1}) == "2.000000" != near("2.090000", "2.000000", 1e-4, {3: 0.1})


def test_spreads_refuse_other_words_and_unknown_notebooks(runs, tmp_path):
    runs["old"] = executed("2.000000", "0.5001 of 4")  # no rounding allows another word
    table, unknown = tmp_path / "spreads.json", "there is no notebook 'dept'; choose from card, depth"
    refused(CouplingError, "no spread was written for depth; see above", spreads.spreads, ["depth"], table)
    refused(CouplingError, unknown, spreads.spreads, ["dept"], table)
