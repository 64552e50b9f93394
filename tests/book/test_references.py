"""What docstrings, comments and pages name is there: modules, their parts, and files."""

import ast
import builtins
import importlib
import importlib.util
import io
import re
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest
import yaml

from coupling_lib.paths import ROOT

FOLDERS = ("coupling_lib", "companion", "book", "benchmarks", "workflow", "notebooks", "tests", "data")
PYTHON = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("book/*.md"), *ROOT.glob("data/*.md"), *ROOT.glob("data/*.toml")])
PAGES += [ROOT / name for name in ("Makefile", "pyproject.toml", "environment.yml", "_config.yml", "_toc.yml")]

# Words before a dot that stand for an object of the reader's, not for a module.
OBJECTS = {"base_model", "cl", "nn", "trace", "traced"}
ENDINGS = ("py", "md", "toml", "yml", "csv", "ipynb")
# Files that a reader makes, and one that whoever has a GPU may add.
MADE = {"out.ipynb", "some.ipynb", "log.csv", "cifar10.csv", "benchmarks/latest_gpu.json"}
MADE_FOLDERS = ("results", "_build", "runs")
# Old addresses of pages are no pages.
OLD = set(yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]["redirects"])


def text(path: Path) -> str:
    """The prose of a file: of Python its comments and docstrings, of everything else the whole."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return source
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    # A string that stands alone documents what it stands under.
    alone = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    documented = [node.value for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join([*comments, *documented])


@cache
def modules() -> dict[str, list[str]]:
    """Every module of the project, by each end of its dotted name."""
    found: dict[str, list[str]] = {}
    for path in PYTHON:
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for start in range(len(parts)):
            found.setdefault(".".join(parts[start:]), []).append(".".join(parts))
    return found


def exists(name: str) -> bool:
    """Whether a dotted name leads from a module of the project, named in full or by its end, to something it has."""
    parts = name.split(".")
    if name in modules():
        return True
    found = [(one, parts[n:]) for n in range(len(parts), 0, -1) for one in modules().get(".".join(parts[:n]), [])]
    # Scripts of the book and of tests are imported by their names alone; notebooks are not imported.
    imported = [(one, rest) for one, rest in found if one.split(".")[0] in ("coupling_lib", "companion", "benchmarks")]
    return any(has(importlib.import_module(one), rest) for one, rest in imported)


def has(thing: object, parts: list[str]) -> bool:
    for part in parts:
        if not hasattr(thing, part):
            return part in getattr(thing, "__annotations__", {}) and part == parts[-1]
        thing = getattr(thing, part)
    return True


def is_known(first: str) -> bool:
    """Whether a word is an object of the reader's, or a package from outside."""
    outside = first in sys.stdlib_module_names or hasattr(builtins, first)
    return first in OBJECTS or outside or importlib.util.find_spec(first) is not None


def wrong_names(prose: str) -> set[str]:
    """Dotted names that lead nowhere: those of the package anywhere, others where they are marked as code."""
    named = set(re.findall(r"(?<![\w./-])(?:coupling_lib|companion)(?!\.data\b)(?:\.[A-Za-z_]\w*)+", prose))
    named |= {f"coupling_lib.{name}" for name in re.findall(r"(?<![\w.])cl\.([A-Za-z_][\w.]*\w)", prose)}
    files = (*ENDINGS, "txt", "json", "jsonl", "lock", "safetensors")
    marked = set(re.findall(r"`~?([a-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*?\))?`", prose))
    marked = {name for name in marked if Path(name).suffix[1:] not in files}
    own = {name for name in marked if name.split(".")[0] in modules()}
    unknown = {name for name in marked - own if not is_known(name.split(".")[0])}
    return {name for name in (named | own) if not exists(name)} | (unknown - named)


def wrong_paths(prose: str, beside: Path) -> set[str]:
    """Files and folders of the project that are named and not there; placeholders and what is made are left out."""
    folders = "|".join(FOLDERS)
    named = re.findall(rf"(?<![\w./<*-])(?:{folders})/[\w./*<{{$-]*", prose)
    named += re.findall(rf"(?<![\w./<*>:-])(?:\w+/)*[\w-]+\.(?:{'|'.join(ENDINGS)})\b(?![\w/(])", prose)
    folders = ("", "coupling_lib", "companion", "book", "data", "notebooks", "benchmarks")
    places = [*(ROOT / folder for folder in folders), beside]
    plain = {name.rstrip(".") for name in named if not re.search(r"[*<{$]|\b[A-Z]{4,}\b", name)} - MADE - OLD
    lasting = {name for name in plain if name.split("/")[0] not in MADE_FOLDERS}
    # A page of the book may be named without its ending, as in its table of contents; some are made.
    tried = {name: (name, f"{name.removesuffix('.html')}.md", f"{name}.py") for name in lasting}
    return {name for name, ways in tried.items() if not any((place / way).exists() for place in places for way in ways)}


@pytest.mark.parametrize("path", [*PYTHON, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_modules_and_files_that_are_named_exist(path):
    prose = text(path)
    assert wrong_names(prose) | wrong_paths(prose, path.parent) == set()


def test_a_name_that_leads_nowhere_is_found():
    right = "coupling_lib.metrics.coupling.mismatch metrics.coupling.mismatch torch.vmap trace.route cl.sweep"
    assert wrong_names(" ".join(f"`{name}`" for name in right.split())) == set()
    wrong = "coupling_lib.meassures.depth `metrics.readings` `cl.measure_deth` `measures.depth.nothing` `forgotten.x`"
    assert wrong_names(wrong) == {*re.findall(r"[\w.]+", wrong.replace("cl.", "coupling_lib."))}
    prose = "data/models.csv, figures/depth.py, notebooks/depth.ipynb, notebooks/NAME.ipynb, data/prompts/*, `depth.py`"
    assert wrong_paths(prose, ROOT) == set()
    prose = "see data/model.csv, metrics/readings.py and tests/test_nothing.py."
    assert wrong_paths(prose, ROOT) == {"data/model.csv", "metrics/readings.py", "tests/test_nothing.py"}
