"""Notebooks as papermill leaves them: their parameters, their text, what they remember and show, how long they ran."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
import pandas as pd
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from companion.figures.show import BookFigure, show

_KEPT = "application/papermill.record/"


def executed(
    path: Path,
    numbers: Mapping[str, object] | None = None,
    figures: Sequence[BookFigure] = (),
    text: str = "# Title\n\n## In numbers",
    seconds: float | None = None,
) -> None:
    """Write one; `prompts` is 5 in it, where its default is 12."""
    outputs = []
    for name, value in (numbers or {}).items():
        kept = {"scrapbook": {"name": name, "mime_prefix": _KEPT}}
        outputs.append(new_output("display_data", {f"{_KEPT}text/plain": repr(value)}, metadata=kept))
    outputs += [new_output("display_data", {"text/html": figure.data}) for figure in figures]
    cells = [
        new_code_cell("prompts: int = 12  # how many", metadata={"tags": ["parameters"]}),
        new_code_cell("prompts = 5", metadata={"tags": ["injected-parameters"]}),
        new_markdown_cell(text),
        new_code_cell("pass", outputs=outputs),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata={"papermill": {"duration": seconds}}), path)


def figure(name: str, table: pd.DataFrame, origin: str = "model a", caption: str = "Pairs.") -> BookFigure:
    """Show a table under an empty picture."""
    return show(lambda data: Figure(figsize=(1, 1)), table, name=name, caption=caption, provenance=origin)
