"""Writes one table of every number that a sentence or a verdict can name, with the functions that computed it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from named_numbers import cells_of, remembered

from companion.tables import decoders
from coupling_lib import paths

COLUMNS = ["model", "notebook", "name", "value", *decoders.ENDS, "computed_by"]


def number_table(results: Path = paths.RESULTS) -> pd.DataFrame:
    """Tabulate what executed notebooks remember, and what is recorded of decoders: a row for each number or effect."""
    rows = decoders.decoders().to_dict("records")
    for path in sorted(results.glob("*/*.ipynb")):
        rows += decoders.rows_of(path.parent.name, path.stem, remembered(path))
    made = pd.DataFrame(rows).replace("", None)
    by = {name: computed_by(paths.ROOT / "notebooks" / f"{name}.ipynb") for name in made["notebook"].unique()}
    made = made.assign(computed_by=made["notebook"].map(by))
    return made.dropna(subset="value").drop_duplicates(COLUMNS[:3], keep="last")[COLUMNS].reset_index(drop=True)


def computed_by(notebook: Path) -> str:
    """Return the functions whose numbers a notebook remembers, as MODULE.FUNCTION."""
    cells = [cell.source for cell in cells_of(notebook) if cell.cell_type == "code"]
    nodes = list(ast.walk(ast.parse("\n".join(cells))))
    modules, values = {}, {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value

    def functions(value: ast.expr) -> Iterator[str]:
        match value:
            case ast.BinOp(left=one, right=other) | ast.IfExp(body=one, orelse=other):
                yield from functions(one)
                yield from functions(other)
            case ast.Name(id=name) if name in values:
                yield from functions(values[name])
            case ast.Call(func=called):
                name, _, rest = ast.unparse(called).partition(".")
                yield ".".join(part for part in (modules.get(name, name), rest) if part)

    stored = [node.args[1] for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "remember"]
    return "; ".join(dict.fromkeys(name for value in stored for name in functions(value)))
