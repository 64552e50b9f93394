"""Notebooks: they run for any model, refuse wrong parameters by name, and are what their text twins say."""

from __future__ import annotations

import ast
import html
import os
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from papermill.inspection import inspect_notebook
from tiny import save_llama, save_vit

from coupling_lib.inputs.parameters import RULES
from coupling_lib.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALONE = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

# What makes a notebook quick on a random model of 3 blocks; the other parameters keep their defaults.
SMALL = {
    "depth": {"prompts": 2, "k": 4, "blocks": 3},
    "dynamics": {"prompts": 2, "k": 4},
    "nulls": {"prompts": 2, "k": 4},
    "perturbation": {"prompts": 2, "noise": "0.1,1", "draws": 2},
    "precision": {"prompts": 2, "k": 4, "precisions": "bfloat16"},
    "prompts": {"prompts": 12, "questions": 3, "k": 4},
    "readings": {"prompts": 2, "k": 4},
    "spectra": {"prompts": 2, "k": 4},
    "tokens": {"prompts": 2, "k": 4, "tokens": 3},
    "trajectories": {"prompts": 2},
    "vision": {"images": 2, "k": 4},
}
OF_MANY_MODELS = {"emergence", "generalization"}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Folders with a random Llama and a random ViT of width 32 and 3 blocks, and where measurements may go."""
    home = tmp_path_factory.mktemp("models")
    save_llama(home / "tiny")
    save_vit(home / "tiny-vit")
    return {"text": home / "tiny", "image": home / "tiny-vit", "results": home / "results"}


def papermill(notebook: str, out: Path, results: Path, **given: object) -> subprocess.CompletedProcess[str]:
    options = [text for name, value in given.items() for text in ("-p", name, str(value))]
    source = ROOT / "notebooks" / f"{notebook}.ipynb"
    command = [sys.executable, "-m", "papermill", str(source), str(out), "--no-progress-bar", *options]
    env = ALONE | {"COUPLING_RESULTS": str(results)}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=out.parent, timeout=300, check=False)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def outputs(path: Path) -> list[nbformat.NotebookNode]:
    return [output for cell in code_cells(path) for output in cell.outputs]


def records(path: Path) -> dict[str, dict[str, str]]:
    """What a notebook keeps under a name for the pages of the book: figures and numbers."""
    named = [output for output in outputs(path) if "scrapbook" in output.get("metadata", {})]
    return {output.metadata["scrapbook"]["name"]: output.data for output in named}


def figures(path: Path) -> dict[str, str]:
    return {name: data["text/html"] for name, data in records(path).items() if "text/html" in data}


def test_every_notebook_is_run_here_for_a_model_of_one_s_own():
    assert set(SMALL) | OF_MANY_MODELS == {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_notebook_regenerates_its_figures_for_a_local_folder(name, folders, tmp_path):
    model, out = folders["image" if name == "vision" else "text"], tmp_path / "out.ipynb"
    run = papermill(name, out, folders["results"], model=model, **SMALL[name])
    assert run.returncode == 0, run.stderr
    made, committed = records(out), records(ROOT / "notebooks" / f"{name}.ipynb")
    assert figures(out) and set(made) <= set(committed)
    for figure, page in figures(out).items():
        assert page.count("<img ") == 2 and f'download="{figure}.csv"' in page
    # Tables that ship with the project have a provenance of their own.
    own = [page for page in figures(out).values() if f"papermill notebooks/{name}.ipynb out.ipynb" in page]
    assert own and all(f"-p model {model}" in html.unescape(page) for page in own)


def test_emergence_of_a_folder_with_one_state_says_what_it_needs(folders, tmp_path):
    run = papermill("emergence", tmp_path / "out.ipynb", folders["results"], model=folders["text"], prompts=2)
    assert run.returncode != 0
    last = run.stderr.rstrip().splitlines()[-1]
    assert "Error: " in last and str(folders["text"]) in last


@each_notebook
def test_names_of_figures_and_numbers_begin_with_the_notebook_s_own(path):
    kept = records(path)
    assert figures(path) and set(kept) - set(figures(path))
    assert [name for name in kept if not name.startswith(f"{path.stem}-")] == []


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
            "seed, others; did you mean 'prompts'?",
        ),
    ],
    ids=["k above the width", "no such block", "text for a number", "unknown name"],
)
def test_a_wrong_parameter_ends_the_run_with_one_line_that_names_it(given, message, folders, tmp_path):
    run = papermill("depth", tmp_path / "out.ipynb", folders["results"], model=folders["text"], **given)
    assert run.returncode != 0
    assert run.stderr.rstrip().splitlines()[-1] == "ParameterError: " + message.replace("MODEL", str(folders["text"]))


@each_notebook
def test_parameters_are_declared_with_type_default_and_help(path):
    declared = inspect_notebook(path)
    assert declared and set(declared) <= set(RULES)
    for name, parameter in declared.items():
        assert parameter["help"] and parameter["inferred_type_name"] in ("str", "int", "float"), name
        default = ast.literal_eval(parameter["default"])
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
    assert max(len(cell.source.splitlines()) for cell in code_cells(path)) < 30


@each_notebook
def test_stored_outputs_are_what_a_fresh_run_gives(path, tmp_path):
    command = [sys.executable, "-m", "pytest", "--nbval-lax", str(path), "-q", "-p", "no:cacheprovider"]
    env = ALONE | {"COUPLING_RESULTS": str(tmp_path)}
    run = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=300, check=False)
    assert run.returncode == 0, run.stdout
