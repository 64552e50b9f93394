"""Notebooks: they run for any model, refuse wrong parameters by name, and are what their text twins say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from papermill.inspection import inspect_notebook
from tiny import save_llama

from coupling_lib.parameters import RULES
from coupling_lib.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DEPTH = ROOT / "notebooks" / "depth.ipynb"
ALONE = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder with a random-weight Llama of width 32 and 3 blocks, and a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_llama(folder)
    return folder


def papermill(out: Path, **given: object) -> subprocess.CompletedProcess[str]:
    options = [text for name, value in given.items() for text in ("-p", name, str(value))]
    command = [sys.executable, "-m", "papermill", str(DEPTH), str(out), "--no-progress-bar", *options]
    return subprocess.run(command, capture_output=True, text=True, env=ALONE, cwd=out.parent, timeout=300, check=False)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def outputs(path: Path) -> list[nbformat.NotebookNode]:
    return [output for cell in code_cells(path) for output in cell.outputs]


@pytest.fixture(scope="module")
def depth_of_tiny(tiny, tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("runs") / "out.ipynb"
    return papermill(out, model=tiny, prompts=2, k=4, blocks=3), out


def test_depth_runs_to_the_end_for_a_local_folder(depth_of_tiny):
    run, out = depth_of_tiny
    assert run.returncode == 0, run.stderr
    cells = [cell for cell in code_cells(out) if cell.source]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_depth_shows_four_figures_of_that_model_each_with_data_and_the_command_that_makes_it(depth_of_tiny, tiny):
    pages = [output.data["text/html"] for output in outputs(depth_of_tiny[1]) if "text/html" in output.get("data", {})]
    assert len(pages) == 4
    for page in pages:
        assert page.count("<img ") == 2 and 'download="depth-' in page
        assert re.search(
            f"papermill notebooks/depth.ipynb out.ipynb -p model {re.escape(str(tiny))} .*-p blocks 3", page
        )


def test_depth_remembers_its_numbers_for_the_book(depth_of_tiny):
    metadata = [output.get("metadata", {}) for output in outputs(depth_of_tiny[1])]
    records = [entry["scrapbook"]["name"] for entry in metadata if "scrapbook" in entry]
    assert sorted(records) == [
        "depth-coupling-null", "depth-coupling-trained", "depth-coupling-untrained",
        "depth-neighbours-trained", "depth-neighbours-untrained",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"k": 33},
            "parameter 'k' is 33 (int); it must be a whole number from 1 to 32 (the width of MODEL); pass -p k 10",
        ),
        (
            {"blocks": "2-4"},
            "parameter 'blocks' is '2-4' (str); it must be blocks from 1 to 3 (the depth of MODEL), "
            "and there is no block 4; pass -p blocks 1-3",
        ),
        ({"seed": "false"}, "parameter 'seed' is 'false' (str); it must be a whole number from 0; pass -p seed 0"),
        (
            {"promts": 3},
            "unknown parameter 'promts'; this notebook takes model, precision, revision, prompts, k, blocks, token, "
            "seed; did you mean 'prompts'?",
        ),
    ],
    ids=["k above the width", "no such block", "text for a number", "unknown name"],
)
def test_a_wrong_parameter_ends_the_run_with_one_line_that_names_it(given, message, tiny, tmp_path):
    run = papermill(tmp_path / "out.ipynb", model=tiny, **given)
    assert run.returncode != 0
    assert run.stderr.rstrip().splitlines()[-1] == "ParameterError: " + message.replace("MODEL", str(tiny))


@each_notebook
def test_parameters_are_declared_with_type_default_and_help(path):
    declared = inspect_notebook(path)
    assert declared and set(declared) <= set(RULES)
    for name, parameter in declared.items():
        assert parameter["help"] and parameter["inferred_type_name"] in ("str", "int"), name
        default = (
            parameter["default"].strip('"') if parameter["inferred_type_name"] == "str" else int(parameter["default"])
        )
        assert RULES[name].accepts(default), name


@each_notebook
def test_twins_are_in_step(path):
    notebook, twin = nbformat.read(path, as_version=4), jupytext.read(path.with_suffix(".py"))

    def content(cells):
        return [(cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))) for cell in cells]

    assert content(notebook.cells) == content(twin.cells)
    assert notebook.metadata.jupytext.formats == twin.metadata.jupytext.formats == "ipynb,py:percent"


@each_notebook
def test_notebooks_were_executed_from_top_to_bottom_without_errors_or_warnings(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for output in outputs(path) if output.output_type == "error" or output.get("name") == "stderr"]


@each_notebook
def test_notebooks_hold_nothing_of_the_machine_they_ran_on(path):
    text = path.read_text(encoding="utf-8")
    assert str(ROOT) not in text and str(Path.home()) + "/" not in text
    assert not [cell for cell in code_cells(path) if "execution" in cell.metadata]  # times of day
    assert "papermill" not in nbformat.read(path, as_version=4).metadata


@each_notebook
def test_cells_are_short(path):
    assert max(len(cell.source.splitlines()) for cell in code_cells(path)) < 25


@each_notebook
def test_stored_outputs_are_what_a_fresh_run_gives(path):
    command = [sys.executable, "-m", "pytest", "--nbval-lax", str(path), "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, capture_output=True, text=True, env=ALONE, cwd=ROOT, timeout=300, check=False)
    assert run.returncode == 0, run.stdout
