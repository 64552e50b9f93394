"""Numbers that the claims name: read from executed notebooks and the paper's figures, computed with, put into texts."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat

from coupling_lib.errors import ParameterError
from coupling_lib.measures.generalization import paper_figures

Numbers = Mapping[str, float | str]

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}


def cells_of(notebook: Path) -> list[nbformat.NotebookNode]:
    """Reads a notebook's cells; they are shared by all who ask, since many claims ask for the same notebook.

    Args:
        notebook: the file.

    Returns:
        its cells, not to be changed.
    """
    return _read(notebook, notebook.stat().st_mtime_ns)


@functools.cache
def _read(notebook: Path, _: int) -> list[nbformat.NotebookNode]:
    return nbformat.read(notebook, as_version=4).cells


def remembered(notebook: Path) -> dict[str, float | str]:
    """Read the numbers that an executed notebook keeps, and the parameters it ran with.

    Args:
        notebook: an executed notebook; one that does not exist has no numbers.

    Returns:
        numbers by the name under which they were remembered, and parameters as "NOTEBOOK.NAME".
    """
    if not notebook.is_file():
        return {}
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


def paper_numbers() -> dict[str, float]:
    """Give the paper's numbers under the names that claims use.

    Returns:
        numbers by "paper.FIGURE.SERIES.QUANTITY"; for a series of several points, the first and the last as
        "....first" and "....last"; for points of figure 6a, "paper.6a.RATE.r_squared".
    """
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
    """Evaluate a number that a claim names: a number, or arithmetic over numbers.

    Args:
        value: a number, or an expression over numbers named in brackets.
        numbers: numbers by name.

    Returns:
        the value; None if a number is missing.

    Raises:
        ParameterError: if the expression holds anything but arithmetic, min, max and abs.
    """
    if not isinstance(value, str):
        return float(value)
    names = list(dict.fromkeys(re.findall(r"\[([^\]]+)\]", value)))
    if any(name not in numbers for name in names):
        return None
    places = {f"n{at}": float(numbers[name]) for at, name in enumerate(names)}
    for place, name in zip(places, names, strict=True):
        value = value.replace(f"[{name}]", f" {place} ")
    return float(_value(ast.parse(value.strip(), mode="eval").body, places))


def filled(text: str, numbers: Numbers) -> str | None:
    """Put numbers into a text.

    Args:
        text: a text with names in braces, each with a format behind a colon if wanted.
        numbers: numbers by name.

    Returns:
        the text; None if a number is missing.
    """
    # Doubled braces are braces, as in a format string.
    parts = re.split(r"(?<!\{)\{([^{}]+)\}(?!\})", text)
    for at in range(1, len(parts), 2):
        name, _, form = parts[at].partition(":")
        if name not in numbers:
            return None
        value = numbers[name]
        parts[at] = format(value, form) if form else _plain(value)
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


def _value(node: ast.expr, places: Mapping[str, float]) -> Any:
    """Evaluate an expression of the few kinds that numbers are made of."""
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Name(id=name) if name in places:
            return places[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, places))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, places), _value(right, places))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, places) for argument in args))
    raise ParameterError(f"a number is {ast.unparse(node)!r}; only arithmetic over numbers, and min, max, abs")
