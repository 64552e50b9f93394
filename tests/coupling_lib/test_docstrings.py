"""Docstrings: the public names teach, everything else has one line that says what its name does not."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import coupling_lib as cl
from coupling_lib.paths import PACKAGE, ROOT

# A name may be exported by way of another module than the one that defines it.
HOMES: dict[Path, set[str]] = {}
for home, names in cl._HOMES.items():
    for name in names:
        module = getattr(getattr(cl, name), "__module__", "").removeprefix("coupling_lib.")
        at = module if module and Path(PACKAGE, *module.split(".")).with_suffix(".py").exists() else home
        HOMES.setdefault(Path(PACKAGE, *at.split(".")).with_suffix(".py"), set()).add(name)
FUNCTIONS = sorted(name for name in cl.__all__ if inspect.isfunction(getattr(cl, name)))


def definitions(node: ast.AST, public: set[str], inside: str = "") -> Iterator[tuple[str, ast.AST, bool]]:
    """Every class and function of a file: its name, its tree, and whether `cl` exports it or what it belongs to."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            known = child.name in public if not inside else not child.name.startswith("_") and bool(public)
            yield f"{inside}{child.name}", child, known
            yield from definitions(child, public if known else set(), f"{inside}{child.name}.")


ROOMS = (Path(PACKAGE), *(ROOT / room for room in ("companion", "book", "workflow")))


def test_private_docstrings_have_one_line():
    long = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(path for room in ROOMS for path in room.rglob("*.py"))
        for name, tree, public in definitions(ast.parse(path.read_text(encoding="utf-8")), HOMES.get(path, set()))
        if not public and "\n" in (ast.get_docstring(tree) or "")
    ]
    assert long == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_docstrings_have_arguments_returns_and_example(name):
    function = getattr(cl, name)
    sections = re.split(r"^(Args|Returns|Yields|Raises|Examples?):$", inspect.getdoc(function), flags=re.MULTILINE)
    content = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert {*inspect.signature(function).parameters} <= {*re.findall(r"^    (\w+):", content["Args"], re.MULTILINE)}
    assert content.get("Returns") or content.get("Yields")
    assert ">>> " in content.get("Example", "") + content.get("Examples", "")
