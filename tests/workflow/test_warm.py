"""Programs in forks of one process: what passes through, what ends with what, and plain Python without that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coupling_lib import paths

WARM = [sys.executable, str(paths.ROOT / "workflow" / "warm.py")]
# A module that Python imports by itself nowhere, so that its presence tells who imported it.
LARGE = "xml.sax.saxutils"
PROGRAM = f"""
import os, sys
print(sorted(sys.argv[1:]), os.environ["GIVEN"], os.getcwd(), {LARGE!r} in sys.modules, sys.stdin.read(), __name__)
print("to the other stream", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program as a file."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def run_of(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What a command wrote and how it ended."""
    environment = os.environ | {"GIVEN": "passed"}
    return subprocess.run(
        command, input="typed", capture_output=True, text=True, cwd=folder, env=environment, timeout=900, check=False
    )


@pytest.mark.parametrize("over", [True, False])
def test_forked_program_behaves_as_run_alone(program: Path, over: bool) -> None:
    above = [*WARM, "over", LARGE] if over else []
    ended = run_of([*above, *WARM, "run", str(program), "b", "a"], program.parent)
    assert ended.stdout == f"['a', 'b'] passed {program.parent} {over} typed __main__\n"
    assert ended.stderr == "to the other stream\n"
    assert ended.returncode == 7


@pytest.mark.parametrize("large", ["TMPDIR", "WORD"])
def test_long_paths_or_environments_run_plain_python(program: Path, monkeypatch, large: str) -> None:
    folder = program.parent / ("f" * 120)
    folder.mkdir()
    # Two, since one may not be long enough by itself; whatever other variables there are.
    for name in ("TMPDIR",) if large == "TMPDIR" else ("WORD", "WORDS"):
        monkeypatch.setenv(name, str(folder) if large == "TMPDIR" else "w" * 100_000)
    ended = run_of([*WARM, "over", LARGE, *WARM, "run", str(program), "a"], program.parent)
    assert ended.stdout == f"['a'] passed {program.parent} False typed __main__\n"
    assert ended.returncode == 7 and not list(folder.iterdir())


def test_module_runs_by_name_or_path(program: Path) -> None:
    (program.parent / "beside.py").write_text("WORD = 'found'\n", encoding="utf-8")
    program.write_text("import beside, sys; print(beside.WORD, sys.argv[0].endswith('program.py'))", encoding="utf-8")
    for arguments in (["-m", "program"], [str(program)]):
        ended = run_of([*WARM, "over", LARGE, *WARM, "run", *arguments], program.parent)
        assert (ended.stdout, ended.stderr, ended.returncode) == ("found True\n", "", 0)


@pytest.mark.parametrize(
    ("last", "code", "error"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('a reason')", 1, "a reason\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_end_of_a_fork_is_that_of_python(program: Path, last: str, code: int, error: str) -> None:
    program.write_text(f"import atexit, sys; atexit.register(print, 'at the end'); {last}", encoding="utf-8")
    ended = run_of([*WARM, "over", LARGE, *WARM, "run", str(program)], program.parent)
    assert (ended.stdout, ended.returncode) == ("at the end\n", code)
    assert ended.stderr.endswith(error)


def test_programs_of_one_command_are_isolated(program: Path) -> None:
    program.write_text("import os, sys; print(os.environ.pop('GIVEN'), len(sys.argv)); sys.argv.append('x')", "utf-8")
    one = " ".join([*WARM, "run", str(program)])
    ended = run_of([*WARM, "over", LARGE, "bash", "-c", f"{one}; {one} a b; exit 3"], program.parent)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("passed 1\npassed 3\n", "", 3)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_the_fork_and_status_returns(program: Path, number: int, code: int) -> None:
    program.write_text("import time; print('running', flush=True); time.sleep(60)", encoding="utf-8")
    one = " ".join([*WARM, "run", str(program)])
    command = [*WARM, "over", LARGE, "bash", "-c", f"{one} & read; kill -{number} $!; wait $!; echo ended $?"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ran:
        assert ran.stdout.readline() == b"running\n"
        ran.stdin.write(b"\n")
        ran.stdin.flush()
        assert ran.stdout.readline() == f"ended {code}\n".encode()


def test_fork_ends_with_its_parent_program(program: Path) -> None:
    program.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)", encoding="utf-8")
    one = " ".join([*WARM, "run", str(program)])
    command = [*WARM, "over", LARGE, "bash", "-c", f"{one} & read; kill -9 $!; wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ran:
        fork = int(ran.stdout.readline())
        ran.stdin.write(b"\n")
        ran.stdin.flush()
        for _ in range(100):
            try:
                # One that ended and was not yet waited for has no command line.
                if not Path(f"/proc/{fork}/cmdline").read_bytes():
                    break
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"process {fork} still runs")
