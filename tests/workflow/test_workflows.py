"""The workflows of GitHub: they parse, run only what the project has, and pin what they use."""

import os
import re
import subprocess

import pytest
import yaml
from installed import PROJECT

from coupling_lib.paths import ROOT

FILES = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
WORKFLOWS = {name: yaml.safe_load(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

each = pytest.mark.parametrize("name", WORKFLOWS)


def steps(name: str, key: str) -> list[dict]:
    """Return the steps of a workflow that have a key, as `uses` or `run`."""
    return [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"] if key in step]


def step_of(name: str, job: str, key: str, words: str) -> dict:
    """Return the one step of a job with these words under a key."""
    (found,) = [step for step in WORKFLOWS[name]["jobs"][job]["steps"] if words in step.get(key, "")]
    return found


def test_workflows_are_the_expected_seven():
    assert list(WORKFLOWS) == ["card", "links", "newest", "pages", "release", "test", "thorough"]


@each
def test_each_workflow_is_named_triggered_and_read_only(name):
    workflow = WORKFLOWS[name]
    assert workflow["name"] == name
    assert "workflow_dispatch" in workflow[True]  # YAML reads the key `on` as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 180 and job["runs-on"] for job in workflow["jobs"].values())


@each
def test_every_action_is_pinned_to_one_release(name):
    uses = [step["uses"] for step in steps(name, "uses")]
    assert [use for use in uses if not re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", use)] == []
    versions = {step["uses"] for other in WORKFLOWS for step in steps(other, "uses")}
    assert len({use.partition("@")[0] for use in versions}) == len(versions)


@each
def test_workflows_run_existing_targets_and_files(name):
    commands = "\n".join(step["run"] for step in steps(name, "run"))
    targets = re.findall(r"\bmake (\S+)", commands)
    files = re.findall(r"(?<!\S)((?:\.ci|tests|workflow)/\S+)", commands)
    assert targets or files
    assert set(targets) - {".venv/.ready", *re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)} == set()
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_tests_run_on_every_allowed_python():
    low, high = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups())
    matrix = WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == [f"3.{minor}" for minor in range(low, high)]


def test_pages_publishes_the_book_with_least_permissions():
    upload = step_of("pages", "build", "uses", "upload-pages-artifact")
    assert f"the book is in {upload['with']['path']}/index.html" in MAKEFILE
    permissions = {name: job.get("permissions") for name, job in WORKFLOWS["pages"]["jobs"].items()}
    deploy = {"pages": "write", "id-token": "write"}
    assert permissions == {"build": None, "deploy": deploy, "launch": {"contents": "write"}}


def git(folder, *words: str) -> str:
    me = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *me, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_launch_branch_holds_only_the_latest_notebooks(tmp_path):
    git(tmp_path, "init", "-q", "--bare", "origin")
    git(tmp_path, "clone", "-q", "origin", "clone")
    clone, origin = tmp_path / "clone", tmp_path / "origin"
    (clone / ".gitignore").write_text("results/\n")
    (clone / "environment.yml").write_text("name: x\n")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "main")
    script = ["bash", "-e", "-c", step_of("pages", "launch", "run", "git push")["run"]]
    for text in ("first", "second"):
        git(clone, "checkout", "-q", "--detach", git(clone, "rev-list", "--max-parents=0", "HEAD").strip())
        (clone / "results" / "tiny").mkdir(parents=True)
        (clone / "results" / "tiny" / "depth.ipynb").write_text(text)
        subprocess.run(script, cwd=clone, check=True, env={**os.environ, "GITHUB_SHA": "0123"}, capture_output=True)
        git(clone, "checkout", "-q", "--detach", "HEAD~1")
    listed = git(origin, "ls-tree", "-r", "--name-only", "launch").split()
    assert listed == [".gitignore", "environment.yml", "results/tiny/depth.ipynb"]
    assert git(origin, "show", "launch:results/tiny/depth.ipynb") == "second"
    assert git(origin, "rev-list", "--count", "launch").strip() == "2"


def test_proposals_upload_the_book_and_releases_the_pdf():
    upload = step_of("test", "test", "uses", "upload-artifact")
    assert upload["with"]["path"] == "_build/html" and "pull_request" in upload["if"]
    attach = step_of("release", "attach", "run", "gh release upload")
    printed = re.search(r'^OUT = ROOT / "_build" / "(.+)"$', (ROOT / "book" / "pdf.py").read_text(), re.MULTILINE)
    assert f"_build/{printed[1]}" in attach["run"]


def test_measurements_are_cached_per_lock_file():
    build, cache = WORKFLOWS["pages"]["jobs"]["build"]["steps"], step_of("pages", "build", "uses", "actions/cache@")
    assert cache["with"]["restore-keys"].startswith("measurements-${{ hashFiles('requirements.lock') }}")
    # Set-up first: make takes what is older than the environment for measured with another.
    before, after = (build[build.index(cache) + step]["run"] for step in (-1, 1))
    assert "make .venv/.ready" in before and "touch results/.fresh" in after


def test_newest_workflow_upgrades_the_lock_before_testing():
    commands = "\n".join(step["run"] for step in steps("newest", "run"))
    places = [commands.index(one) for one in ("make lock MORE=--upgrade", "make .venv/.ready", "-m pytest")]
    assert places == sorted(places)
    (recipe,) = re.findall(r"^lock: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert "uv pip compile" in recipe and "$(MORE)" in recipe and "-o requirements.lock" in recipe


def test_release_checklist_names_existing_files():
    text = (ROOT / "RELEASING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+\.(?:toml|cff|md|json|yml))`", text)
    assert {"pyproject.toml", "CITATION.cff", "CHANGELOG.md", ".zenodo.json"} <= set(named)
    assert [name for name in named if not (ROOT / name).is_file()] == []
