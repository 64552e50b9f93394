"""Numbers by the names of claims and sentences: read from executed notebooks, computed with, put into texts."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd

from companion.figures.figure_reader import figures_in
from companion.tables import decoders
from companion.tables.generalization import paper_figures
from coupling_lib import paths
from coupling_lib.errors import ParameterError

Numbers = Mapping[str, float | str]

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.Not: lambda value: not _truth(value),
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": lambda *values: np.min(values), "max": lambda *values: np.max(values), "abs": np.abs,
    "all": lambda values: bool(np.all(values)), "any": lambda values: bool(np.any(values)),
    "sum": np.sum, "mean": np.mean, "median": np.median, "round": np.round, "sqrt": np.sqrt, "len": np.size,
    "diagonal": np.diagonal, "last": lambda values: values[-1],
    "correlation": lambda one, other: float(np.corrcoef(one, other)[0, 1]),
    "rises": lambda values: bool(np.all(np.diff(values) > 0)),
    "falls": lambda values: bool(np.all(np.diff(values) < 0)),
}  # fmt: skip


def cells_of(notebook: Path) -> list[nbformat.NotebookNode]:
    """Read a notebook's cells, not to be changed: they are shared by the many claims that ask for them."""
    return _read(notebook, notebook.stat().st_mtime_ns)


@functools.cache
def _read(notebook: Path, _: int) -> list[nbformat.NotebookNode]:
    return nbformat.read(notebook, as_version=4).cells


def remembered(notebook: Path) -> dict[str, float | str]:
    """Read what an executed notebook keeps by name, and its parameters as "NOTEBOOK.NAME"; if absent, what was kept."""
    if not notebook.is_file():
        here = notebook.parent.parent == paths.RESULTS
        return decoders.numbers_of(notebook.parent.name, notebook.stem) if here else {}
    found: dict[str, float | str] = {}
    for cell in cells_of(notebook):
        if {"parameters", "injected-parameters"} & set(cell.metadata.get("tags", [])):
            found |= {f"{notebook.stem}.{name}": value for name, value in _assigned(cell.source).items()}
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            texts = [value for kind, value in output.get("data", {}).items() if kind.endswith("text/plain")]
            if name and texts and "text/html" not in "".join(output["data"]):
                found[name] = _number(texts[0])
    return found


@functools.cache
def tables(page: Path) -> dict[str, pd.DataFrame]:
    """Read the tables under figures of a notebook or a part of a page by their names; none if it is absent."""
    if not page.is_file():
        return {}
    if page.suffix == ".md":
        shown = page.read_text(encoding="utf-8")
    else:
        outputs = [output.get("data", {}) for cell in cells_of(page) for output in cell.get("outputs", [])]
        shown = "".join("".join(data.get("text/html", "")) for data in outputs)
    return {figure.name: figure.table for figure in figures_in(shown) if figure.csv}


@functools.cache
def paper_numbers() -> dict[str, float]:
    """Return numbers by "paper.FIGURE.SERIES.QUANTITY"; of several points the first and the last, by these words."""
    found: dict[str, float] = {}
    table = paper_figures()
    for (figure, series, quantity), part in table.groupby(["figure", "series", "y_quantity"]):
        stem = f"paper.{figure}.{series}.{quantity}"
        if len(part) == 1:
            found[stem] = float(part["y"].iloc[0])
        else:
            found |= {f"{stem}.first": float(part["y"].iloc[0]), f"{stem}.last": float(part["y"].iloc[-1])}
            if part["x_quantity"].iloc[0] == "rate":
                found |= {f"paper.{figure}.{x:g}.{quantity}": float(y) for x, y in zip(part.x, part.y, strict=True)}
    return found


def computed(value: float | str, numbers: Numbers) -> float | None:
    """Evaluate a number, or arithmetic over numbers named in brackets; None if one is missing."""
    if not isinstance(value, str):
        return float(value)
    if any(name not in numbers for name in names_in(value)):
        return None
    found = evaluated(value, numbers)
    if isinstance(found, bool | np.bool_):
        raise ParameterError(f"a number is {value!r}, which is true or false; only a condition of a sentence may be")
    return float(found)


def names_in(expression: str) -> list[str]:
    """List the names in brackets of an expression, each once."""
    return list(dict.fromkeys(re.findall(r"\[([^\]]+)\]", expression)))


def evaluated(expression: str, numbers: Numbers, functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Evaluate arithmetic and comparisons over numbers named in brackets; several numbers at once are an array."""
    names = names_in(expression)
    places = {f"n{at}": numbers[name] for at, name in enumerate(names)}
    for place, name in zip(places, names, strict=True):
        expression = expression.replace(f"[{name}]", f" {place} ")
    try:
        tree = ast.parse(" ".join(expression.split()), mode="eval")
    except SyntaxError as error:
        raise ParameterError(f"{expression!r} is no expression: {error.msg}") from error
    return _value(tree.body, places, _FUNCTIONS | dict(functions or {}))


def filled(text: str, numbers: Numbers) -> str | None:
    """Replace names in braces by numbers, with an optional format after a colon; None if a number is missing."""
    # Doubled braces are braces, as in a format string.
    parts = re.split(r"(?<!\{)\{([^{}]+)\}(?!\})", text)
    for at in range(1, len(parts), 2):
        name, _, form = parts[at].partition(":")
        if name not in numbers:
            return None
        value = numbers[name]
        # What is rounded to 0 has no sign.
        parts[at] = re.sub(r"^-(0\.?0*%?)$", r"\1", format(value, form)) if form else _plain(value)
    return "".join(parts).replace("{{", "{").replace("}}", "}")


def _assigned(source: str) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(getattr(node, "value", None), ast.Constant):
            found[target.id] = node.value.value
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _plain(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, int | float) else value


def _truth(value: Any) -> bool:
    """Return whether a condition holds; of several numbers it has to hold for each."""
    return bool(np.all(value))


def _value(node: ast.expr, places: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """Evaluate an expression of the few kinds that numbers and conditions are made of."""

    def of(part: ast.expr) -> Any:
        return _value(part, places, functions)

    match node:
        case ast.Constant(value=int() | float() | str() | bool()):
            return node.value
        case ast.Name(id=name) if name in places:
            return places[name]
        case ast.Tuple(elts=parts):
            return tuple(of(part) for part in parts)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](of(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](of(left), of(right))
        case ast.BoolOp(op=op, values=parts):
            return (all if isinstance(op, ast.And) else any)(_truth(of(part)) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            values = [of(left), *map(of, others)]
            held = [_OPERATORS[type(op)](values[at], values[at + 1]) for at, op in enumerate(ops)]
            return functools.reduce(np.logical_and, held)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in functions:
            return functions[name](*map(of, args), **{str(one.arg): of(one.value) for one in keywords})
    raise ParameterError(
        f"a number is {ast.unparse(node)!r}; known are arithmetic over numbers, comparisons and {', '.join(functions)}"
    )
