"""What `make portable` runs: tests that exist, and a setting that fails fails the whole, after all others ran."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from coupling_lib import paths

SCRIPT = paths.ROOT / "workflow" / "portable.sh"
TESTS = re.findall(r"^ +(tests/\S+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
PASSES = "import os\n\ndef test_it():\n    assert os.environ.get('TZ') == {zone!r}\n"


def run(root: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TZ": "Europe/Berlin"}
    command = ["bash", str(root / "workflow" / "portable.sh"), *settings]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_its_settings_name_tests_that_exist():
    assert len(TESTS) > 10 and [test for test in TESTS if not (paths.ROOT / test).exists()] == []
    assert "make portable" in (paths.ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_one_failing_setting_fails_the_whole_run(tmp_path):
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "portable.sh").write_bytes(SCRIPT.read_bytes())
    (tmp_path / ".venv").symlink_to(paths.ROOT / ".venv")
    # Each test passes in the one setting in which it is run here, but for what has the user's own zone.
    for test in TESTS:
        file = tmp_path / (test if test.endswith(".py") else f"{test}/test_it.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        alone = "sweep_memory" in test or "warm" in test
        file.write_text(PASSES.format(zone=None if alone else "Pacific/Kiritimati"), encoding="utf-8")
    ended = run(tmp_path, "plain", "empty", "odd")
    results = re.findall(r"^(passed|FAILED) +\d+ s  (\w+)", ended.stdout, re.MULTILINE)
    assert sorted(results) == [("FAILED", "plain"), ("passed", "empty"), ("passed", "odd")]
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1] == "error: not every setting passed"
    assert "Europe/Berlin" in ended.stdout and str(tmp_path) in ended.stdout
    ended = run(tmp_path, "empty")
    assert ended.returncode == 0 and re.search(r"^1 settings passed in \d+ s$", ended.stdout, re.MULTILINE)


def test_an_unknown_setting_is_refused_in_one_line():
    ended = run(paths.ROOT, "x")
    assert ended.returncode == 1 and ended.stdout == ""
    there = "newer0 newer1 newer2 odd default avx2 plain empty"
    assert ended.stderr.startswith(f"error: no setting is called 'x'; there are: {there}")
