"""Bad input through the library and through papermill: one clear line, nothing stored, nothing run."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import CODE, LIBRARY, Bad, Rig
from bad_parameters import PAPERMILL, PAPERMILL_TOO, PARAMETERS, check
from bad_sweeps import SWEEPS
from refusals import refused

from coupling_lib import paths
from coupling_lib.errors import CouplingError


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("rig"))


def listing(*folders: Path) -> dict[str, str]:
    """Every file with the digest of what is in it, and every folder."""
    found = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in found}


@pytest.fixture
def unchanged(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store, the folder of all results and the current folder are afterwards what they were before."""
    monkeypatch.chdir(tmp_path)
    folders = (rig.store, paths.RESULTS, tmp_path)
    before = listing(*folders)
    assert any(name.startswith(str(rig.store)) for name in before)
    yield
    assert listing(*folders) == before


BAD = [*LIBRARY, *SWEEPS]
BAD += [Bad(str(given)[:50], lambda _, given=given: check(given), message) for given, message in PARAMETERS]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.filterwarnings("ignore::coupling_lib.errors.PostNormWarning")
@pytest.mark.parametrize("bad", BAD, ids=lambda row: row.name)
def test_bad_input_is_refused_in_one_line(rig: Rig, bad: Bad):
    assert len(refused(CouplingError, bad.message, bad.call, rig)) < 700


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("given", "message"), [*PAPERMILL, *(pytest.param(*row, marks=pytest.mark.thorough) for row in PAPERMILL_TOO)]
)
def test_papermill_fails_with_the_error_line(given: list[str], message: str, tmp_path):
    source = paths.ROOT / "notebooks" / "depth.ipynb"
    command = [sys.executable, "-m", "papermill", str(source), "-", "--no-progress-bar", *given]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900, check=False)
    assert run.returncode != 0
    assert re.match(message, run.stderr.rstrip().splitlines()[-1]), run.stderr[-1000:]


def test_bad_input_tables_hold_60_unique_rows():
    names = [row.name for row in (*LIBRARY, *SWEEPS)] + [str(given) for given, _ in PARAMETERS]
    assert len(set(names)) == len(names) >= 60
    assert sum(CODE in str(row) for row in PARAMETERS) >= 3
