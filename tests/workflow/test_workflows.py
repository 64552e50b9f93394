"""The workflows of GitHub: they parse, run only what the project has, and pin what they use."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest
import yaml

from coupling_lib import paths

FILES = sorted((paths.ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (paths.ROOT / "Makefile").read_text(encoding="utf-8")


def parsed(path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path) -> list[dict]:
    return [step for job in parsed(path)["jobs"].values() for step in job["steps"]]


def named(name: str) -> dict:
    return parsed(paths.ROOT / ".github" / "workflows" / f"{name}.yml")


each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_workflows_are_the_expected_seven():
    assert [path.stem for path in FILES] == ["card", "links", "newest", "pages", "release", "test", "thorough"]


@each
def test_each_workflow_is_named_triggered_and_read_only(path):
    workflow = parsed(path)
    assert workflow["name"] == path.stem
    assert "workflow_dispatch" in workflow[True]  # YAML reads the key `on` as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 180 and job["runs-on"] for job in workflow["jobs"].values())


@each
def test_every_action_is_pinned_to_one_release(path):
    uses = [step["uses"] for step in steps(path) if "uses" in step]
    assert [use for use in uses if not re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", use)] == []
    versions = {use for other in FILES for use in re.findall(r"uses: (\S+)", other.read_text(encoding="utf-8"))}
    assert len({use.partition("@")[0] for use in versions}) == len(versions)


@each
def test_workflows_run_existing_targets_and_files(path):
    commands = "\n".join(step["run"] for step in steps(path) if "run" in step)
    targets = re.findall(r"\bmake (\S+)", commands)
    known = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)) | {".venv/.ready"}
    assert set(targets) <= known
    named_files = re.findall(r"(?<!\S)((?:\.ci|tests|workflow)/\S+)", commands)
    assert targets or named_files
    assert [name for name in named_files if not (paths.ROOT / name).exists()] == []


def test_tests_run_on_every_allowed_python():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low, high = (int(part) for part in re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups())
    matrix = named("test")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == [f"3.{minor}" for minor in range(low, high)]


def test_pages_publishes_the_book_with_least_permissions():
    jobs = named("pages")["jobs"]
    (upload,) = [step for step in jobs["build"]["steps"] if "upload-pages-artifact" in step.get("uses", "")]
    assert f"the book is in {upload['with']['path']}/index.html" in MAKEFILE
    assert jobs["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}
    assert jobs["launch"]["permissions"] == {"contents": "write"}
    assert "permissions" not in jobs["build"]


def git(folder, *words: str) -> str:
    me = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *me, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_launch_branch_holds_only_the_latest_notebooks(tmp_path):
    git(tmp_path, "init", "-q", "--bare", "origin")
    git(tmp_path, "clone", "-q", "origin", "clone")
    clone = tmp_path / "clone"
    (clone / ".gitignore").write_text("results/\n")
    (clone / "environment.yml").write_text("name: x\n")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "main")
    (push,) = [step["run"] for step in named("pages")["jobs"]["launch"]["steps"] if "git push" in step.get("run", "")]
    for text in ("first", "second"):
        git(clone, "checkout", "-q", "--detach", git(clone, "rev-list", "--max-parents=0", "HEAD").strip())
        (clone / "results" / "tiny").mkdir(parents=True)
        (clone / "results" / "tiny" / "depth.ipynb").write_text(text)
        script = ["bash", "-e", "-c", push]
        subprocess.run(script, cwd=clone, check=True, env={**os.environ, "GITHUB_SHA": "0123"}, capture_output=True)
        git(clone, "checkout", "-q", "--detach", "HEAD~1")
    listed = git(tmp_path / "origin", "ls-tree", "-r", "--name-only", "launch").split()
    assert listed == [".gitignore", "environment.yml", "results/tiny/depth.ipynb"]
    assert git(tmp_path / "origin", "show", "launch:results/tiny/depth.ipynb") == "second"
    assert git(tmp_path / "origin", "rev-list", "--count", "launch").strip() == "2"


def test_proposals_upload_the_book_and_releases_the_pdf():
    (upload,) = [step for step in named("test")["jobs"]["test"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert upload["with"]["path"] == "_build/html" and "pull_request" in upload["if"]
    (attach,) = [step for step in named("release")["jobs"]["attach"]["steps"] if "gh release upload" in str(step)]
    printed = re.search(r'^OUT = ROOT / "_build" / "(.+)"$', (paths.ROOT / "book" / "pdf.py").read_text(), re.MULTILINE)
    assert f"_build/{printed[1]}" in attach["run"]


def test_measurements_are_cached_per_lock_file():
    steps_of = named("pages")["jobs"]["build"]["steps"]
    (at,) = [at for at, step in enumerate(steps_of) if step.get("uses", "").startswith("actions/cache@")]
    assert steps_of[at]["with"]["restore-keys"].startswith("measurements-${{ hashFiles('requirements.lock') }}")
    # Set-up first: make takes what is older than the environment for measured with another.
    assert "make .venv/.ready" in steps_of[at - 1]["run"] and "touch results/.fresh" in steps_of[at + 1]["run"]


def test_newest_workflow_upgrades_the_lock_before_testing():
    commands = "\n".join(step.get("run", "") for step in named("newest")["jobs"]["newest"]["steps"])
    places = [commands.index(one) for one in ("make lock MORE=--upgrade", "make .venv/.ready", "-m pytest")]
    assert places == sorted(places)
    (recipe,) = re.findall(r"^lock: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert "uv pip compile" in recipe and "$(MORE)" in recipe and "-o requirements.lock" in recipe


def test_release_checklist_names_existing_files():
    text = (paths.ROOT / "RELEASING.md").read_text(encoding="utf-8")
    named_files = re.findall(r"`([\w./-]+\.(?:toml|cff|md|json|yml))`", text)
    assert {"pyproject.toml", "CITATION.cff", "CHANGELOG.md", ".zenodo.json"} <= set(named_files)
    assert [name for name in named_files if not (paths.ROOT / name).is_file()] == []
