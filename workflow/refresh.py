"""Update the notebooks from their text twins and execute them, in place.

    python workflow/refresh.py [NAME ...]

The twin (`depth.py`) is what one edits; the notebook (`depth.ipynb`) carries the outputs that the tests compare.
Outputs are recorded without times and paths, so that a run that changes no number changes no file; and pictures once,
light and as for print: the book draws its own, and a clone carries every version of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parents[1] / "notebooks"


def refresh(name: str) -> None:
    """Rewrite one notebook from its twin, executed from top to bottom."""
    target = HERE / f"{name}.ipynb"
    notebook = jupytext.read(HERE / f"{name}.py")
    if target.exists():
        notebook = jupytext.combine.combine_inputs_with_outputs(notebook, nbformat.read(target, as_version=4))
    execute(notebook)
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, target)


def execute(notebook: nbformat.NotebookNode, environment: Mapping[str, str] | None = None) -> None:
    """Execute a notebook in place, its pictures once and as for print."""
    # What companion.figures.show reads, in the notebook's kernel.
    given = {**os.environ, "COUPLING_FIGURES": "print", **(environment or {})}
    # A kernel warns on every start that what it tells this very machine is not encrypted. On a busy machine, what a
    # cell shows arrives long after the cell has ended; by itself nbclient waits 4 s, and leaves the rest out silently.
    how = {"extra_arguments": ["--IPKernelApp.log_level=ERROR"], "iopub_timeout": 600, "raise_on_iopub_timeout": True}
    how["coalesce_streams"] = True  # what is printed arrives in one piece or in several, as the machine has time
    where = {"metadata": {"path": str(HERE)}}
    NotebookClient(notebook, record_timing=False, resources=where, **how).execute(env=given)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.ipynb")):
        print(f"executing {name}", flush=True)
        refresh(name)
