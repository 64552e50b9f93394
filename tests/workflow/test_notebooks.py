"""Notebooks: they run for any model, refuse wrong parameters by name, and are what their text twins say."""

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
import pytest
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from papermill.inspection import inspect_notebook
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from tiny import save_llama, save_vit

from companion.notebook.parameters import RULES
from coupling_lib.errors import ParameterError
from coupling_lib.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# What makes a notebook quick on a random model of 3 blocks; the other parameters keep their defaults.
SMALL = {
    **{name: {"prompts": 2} for name in ("card", "lenses", "trajectories")},
    **{name: {"prompts": 2, "k": 4} for name in ("dynamics", "nulls", "readings", "spectra")},
    "depth": {"prompts": 2, "k": 4, "blocks": 3},
    "perturbation": {"prompts": 2, "noise": "0.1,1", "draws": 2},
    "precision": {"prompts": 2, "k": 4, "precisions": "bfloat16"},
    "prompts": {"prompts": 12, "questions": 3, "k": 4},
    "tokens": {"prompts": 2, "k": 4, "tokens": 3},
    "vision": {"images": 2, "k": 4},
}
OF_MANY_MODELS = ("edits", "emergence", "generalization")
BY_REQUEST = {"depth-models-matrices"}  # where `blocks` are named

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Folders with a random Llama and a random ViT of width 32 and 3 blocks."""
    home = tmp_path_factory.mktemp("models")
    save_llama(home / "tiny")
    save_vit(home / "tiny-vit")
    return {"text": home / "tiny", "image": home / "tiny-vit"}


@pytest.fixture
def shell(monkeypatch, tmp_path) -> Iterator[InteractiveShell]:
    """IPython in this process: the libraries are imported once for all notebooks, not anew for each kernel."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr(HistoryManager, "enabled", False)  # no file of a user's own history
    monkeypatch.setattr(InteractiveShell, "showtraceback", lambda *arguments, **named: None)
    monkeypatch.setattr("companion.figures.show._command", "")  # put back, as a notebook sets it
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def execute(shell: InteractiveShell, notebook: str, **given: object) -> dict[str, dict[str, str]]:
    """Run a notebook with parameters as papermill sets them; what it keeps under a name, up to its first error."""
    source = load_notebook_node(str(ROOT / "notebooks" / f"{notebook}.ipynb"))
    kept = {}
    for cell in parameterize_notebook(source, given).cells:
        if cell.cell_type == "code":
            with capture_output() as shown:
                done = shell.run_cell(cell.source, store_history=True)
            done.raise_error()
            bundles = [(output.data, output.metadata) for output in shown.outputs]
            if hasattr(done.result, "_repr_mimebundle_"):
                bundles.append(done.result._repr_mimebundle_())
            kept |= {metadata["scrapbook"]["name"]: data for data, metadata in bundles if "scrapbook" in metadata}
    return kept


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def records(path: Path) -> dict[str, dict[str, str]]:
    """What a notebook keeps under a name for the pages of the book: figures and numbers."""
    named = [one for cell in code_cells(path) for one in cell.outputs if "scrapbook" in one.get("metadata", {})]
    return {output.metadata["scrapbook"]["name"]: output.data for output in named}


def figures(kept: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: data["text/html"] for name, data in kept.items() if "text/html" in data}


def test_every_notebook_has_a_twin_and_small_parameters():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.py")}
    twins = {name for name, text in texts.items() if text.startswith("# ---\n")}
    assert {*SMALL, *OF_MANY_MODELS} == {path.stem for path in NOTEBOOKS} == twins


# One chapter stands for all; the others run when all are asked for.
CHAPTERS = [pytest.param(name, marks=[pytest.mark.thorough] * (name != "depth")) for name in sorted(SMALL)]


# `make book` runs each for models of the book; this is for one's own.
@pytest.mark.parametrize("name", CHAPTERS)
def test_notebook_regenerates_figures_for_a_local_folder(name, folders, shell):
    model = folders["image" if name == "vision" else "text"]
    made = execute(shell, name, model=str(model), **SMALL[name])
    assert figures(made) and set(made) - set(records(ROOT / "notebooks" / f"{name}.ipynb")) <= BY_REQUEST
    for figure, page in figures(made).items():
        assert page.count("<img ") == 2 and f'download="{figure}.csv"' in page
    # Tables that ship with the project have a provenance of their own.
    own = [page for page in figures(made).values() if f"papermill notebooks/{name}.ipynb out.ipynb" in page]
    assert own and all(f"-p model {model}" in html.unescape(page) for page in own)


# The cells are the notebook's own (`test_a_twin_is_what_jupytext_would_write`), so that one of those above stands for
# all; `make book` runs `emergence`, which needs steps, and `generalization` and `edits`, which take no model.
@pytest.mark.parametrize("name", [*(pytest.param(n, marks=pytest.mark.thorough) for n in OF_MANY_MODELS), *CHAPTERS])
def test_a_paired_text_runs_as_a_program(name, folders, capsys, monkeypatch):
    monkeypatch.setattr("companion.figures.show._command", "")  # put back, as a notebook sets it
    given = {"model": str(folders["image" if name == "vision" else "text"]), **SMALL[name]} if name in SMALL else {}
    if name == "emergence":
        given = {"steps": "0,10000", "prompts": 2}
    text = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    for parameter, value in given.items():
        text, found = re.subn(rf"^{parameter}: (\w+) = .*$", rf"{parameter}: \1 = {value!r}", text, flags=re.MULTILINE)
        assert found == 1, parameter
    exec(compile(f"{text}\nprint(command)\n", f"{name}.py", "exec"), {"__name__": "__main__"})
    assert f"papermill notebooks/{name}.ipynb out.ipynb" in capsys.readouterr().out.splitlines()[-1]


@each_notebook
def test_figure_and_number_names_begin_with_the_notebook(path):
    kept = records(path)
    assert figures(kept) and set(kept) - set(figures(kept))
    assert [name for name in kept if not name.startswith(f"{path.stem}-")] == []


WIDTH = "a whole number from 1 to 32 (the width of MODEL); pass -p k 10"
BLOCKS = "blocks from 1 to 3 (the depth of MODEL), and there is no block 4; pass -p blocks 1-3"
TAKEN = "model, precision, memory, revision, prompts, k, blocks, token, seed, others"
WRONG = {
    "k above the width": ({"k": 33}, f"parameter 'k' is 33 (int); it must be {WIDTH}"),
    "no such block": ({"blocks": "2-4"}, f"parameter 'blocks' is '2-4' (str); it must be {BLOCKS}"),
    "unknown name": (
        {"promts": 3},
        f"unknown parameter 'promts'; this notebook takes {TAKEN}; did you mean 'prompts'?",
    ),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_wrong_parameter_is_refused_by_name(given, message, folders, shell):
    with pytest.raises(ParameterError) as refused:
        execute(shell, "depth", model=str(folders["text"]), **given)
    assert str(refused.value) == message.replace("MODEL", str(folders["text"]))


@each_notebook
def test_parameters_are_declared_with_type_default_and_help(path):
    declared = inspect_notebook(path)
    assert {"model"} <= set(declared) <= set(RULES)
    for name, parameter in declared.items():
        assert parameter["help"] and parameter["inferred_type_name"] in ("str", "int", "float"), name
        assert RULES[name].accepts(ast.literal_eval(parameter["default"])), name
    # What papermill cannot read, such as a union of types, would be missing without a word.
    (cell,) = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    assert len([line for line in cell.source.splitlines() if line and not line.startswith("#")]) == len(declared)


@each_notebook
def test_a_twin_is_what_jupytext_would_write(path):
    texts = jupytext.writes(jupytext.read(path), fmt="py:percent"), path.with_suffix(".py").read_text(encoding="utf-8")
    # The header names the version of jupytext that wrote it.
    notebook, twin = (re.sub(r"^#       jupytext_version: .*\n", "", text, flags=re.MULTILINE) for text in texts)
    assert notebook == twin and "formats: ipynb,py:percent\n" in twin


@each_notebook
def test_notebooks_ran_in_order_without_machine_traces(path):
    notebook, text, cells = nbformat.read(path, as_version=4), path.read_text(encoding="utf-8"), code_cells(path)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert str(ROOT) not in text and str(Path.home()) + "/" not in text
    assert not [cell for cell in cells if "execution" in cell.metadata]  # times of day
    assert "papermill" not in notebook.metadata
    assert max(len(cell.source.splitlines()) for cell in cells) <= 15


@each_notebook
def test_visible_cells_use_no_names_of_hidden_cells(path):
    """Imports, parameters and what visible cells measured are enough to run one again elsewhere."""
    hidden: set[str] = set()
    for cell in code_cells(path):
        names = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)]
        made, used = ({node.id for node in names if isinstance(node.ctx, kind)} for kind in (ast.Store, ast.Load))
        tags = cell.metadata.get("tags", [])
        if "hide-input" not in tags:
            assert not used & hidden, cell.source
            hidden -= made
        elif "parameters" not in tags:
            hidden |= made
