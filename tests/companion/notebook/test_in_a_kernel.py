"""The check of parameters in a kernel: what papermill gave is checked each time, what a researcher left is not."""

import ast

import jupytext
import pytest
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from refusals import refused

from companion.notebook import parameters
from coupling_lib.errors import ParameterError
from coupling_lib.paths import ROOT

NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.py") if path.with_suffix(".ipynb").exists())
CHECK = "p = check_parameters(globals(), declared=('k', 'seed'))"
PARAMETERS = "k: int = 10  # how many\nseed: int = 0  # of what is random"


class Kernel:
    """IPython as a kernel runs it, in this process."""

    def __init__(self):
        self.shell = InteractiveShell()
        self.shell.user_ns["check_parameters"] = parameters.check_parameters

    def run(self, *cells):
        for cell in cells:
            self.shell.run_cell(cell, store_history=True, silent=False).raise_error()
        return vars(self.shell.user_ns["p"]) if "p" in self.shell.user_ns else {}

    def refusal(self, *cells):
        return refused(ParameterError, "", self.run, *cells)


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr(HistoryManager, "enabled", False)  # no file of a user's own history
    monkeypatch.setattr(InteractiveShell, "showtraceback", lambda *arguments, **named: None)
    monkeypatch.setattr("companion.figures.show._command", "")  # put back, as a notebook sets it
    return Kernel()


def test_own_variables_are_never_taken_as_parameters(kernel):
    kernel.run("alpha = 0.05\nmodle = 'a'", PARAMETERS, "promts = 3", CHECK)
    found = kernel.run("names, chosen = ['a'], [1, 2]\nsede = 4", CHECK, PARAMETERS, CHECK)
    assert found == {"k": 10, "seed": 0}


def test_unknown_papermill_parameter_is_refused_every_time(kernel):
    message = "unknown parameter 'sede'; this notebook takes k, seed; did you mean 'seed'?"
    assert kernel.refusal(PARAMETERS, "# Parameters\nk = 4\nsede = 3\n", CHECK) == message
    assert kernel.refusal(CHECK) == message
    # A researcher opens what papermill wrote, mends its cell and runs that again; or has no such cell any more.
    assert kernel.run("# Parameters\nk = 4\nseed = 3\n", CHECK) == {"k": 4, "seed": 3}
    assert kernel.refusal("# Parameters\nsede = 3\n", CHECK) == message
    kernel.run(PARAMETERS, CHECK)


def test_leftover_variables_without_kernel_are_no_parameters():
    space = {"check_parameters": parameters.check_parameters}
    first = [PARAMETERS, CHECK, "command, drawn = 'papermill', [1, 2]\nsede = 4"]
    for cell in (*first, *first[:2]):
        exec(cell, space)
    assert vars(space["p"]) == {"k": 10, "seed": 0}
    for wrong, message in (("k = 'ten'", "parameter 'k' is 'ten'"), ("del k", "parameter 'k' is missing")):
        exec(wrong, space)
        refused(ParameterError, message, exec, CHECK, space)
    space = {"check_parameters": parameters.check_parameters, "k": 1, "seed": 0, "sede": 3}
    refused(ParameterError, "unknown parameter 'sede'", exec, CHECK, space)


def test_declared_names_are_checked_wherever_they_were_set(kernel):
    assert kernel.refusal(PARAMETERS, "k = 'ten'", CHECK).startswith("parameter 'k' is 'ten' (str)")
    assert kernel.refusal("del k", CHECK) == "parameter 'k' is missing; set it in the cell tagged 'parameters'"


def test_cell_with_syntax_error_sets_no_parameter(kernel):
    with pytest.raises(SyntaxError):
        kernel.run(PARAMETERS, "# Parameters\nsede = = 3")
    kernel.run(CHECK)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_first_cells_of_every_notebook_run_twice(path, kernel):
    """Twice in one kernel, then beside a researcher's variables and all plain ones that later cells may leave."""
    sources = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    (at,) = [number for number, source in enumerate(sources) if "check_parameters(" in source]
    first, given = sources[: at + 1], "# Parameters\nmodel = 'nano-neox'\n"
    for _ in range(2):
        before = kernel.run(first[0], given, *first[1:])
    nodes = [node for source in sources[at + 1 :] for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    left = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    assert left, path.stem
    kernel.shell.user_ns.update(dict.fromkeys(left, "left by a later cell"))
    assert kernel.run("alpha = 0.05\nnames = ['a', 'b']\nchosen = 3\npromts = 4", first[-1]) == before
