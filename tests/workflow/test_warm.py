"""Programs in forks of one process: what passes through, what ends with what, and plain Python without that process."""

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from forked import WARM
from slurm import until

# A module that Python imports by itself nowhere, so that its presence tells who imported it.
LARGE = "xml.sax.saxutils"
PROGRAM = f"""
import os, sys
print(sorted(sys.argv[1:]), os.environ["GIVEN"], os.getcwd(), {LARGE!r} in sys.modules, sys.stdin.read(), __name__)
print("to the other stream", file=sys.stderr)
sys.exit(7)
"""


OVER = [*WARM, "over", LARGE]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def ended(folder: Path, *command: str) -> tuple[str, str, int]:
    """What a command wrote, on both streams, and how it ended."""
    how = {"input": "typed", "env": os.environ | {"GIVEN": "passed"}, "timeout": 900}
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, **how)
    return run.stdout, run.stderr, run.returncode


@pytest.mark.parametrize("over", [True, False])
def test_forked_program_behaves_as_run_alone(program, over):
    found = ended(program.parent, *(OVER if over else ()), *WARM, "run", str(program), "b", "a")
    assert found == (f"['a', 'b'] passed {program.parent} {over} typed __main__\n", "to the other stream\n", 7)


# Two words, since one may not be long enough by itself; whatever other variables there are.
@pytest.mark.parametrize("names", [["TMPDIR"], ["WORD", "WORDS"]], ids=" ".join)
def test_long_paths_or_environments_run_plain_python(program, monkeypatch, names):
    folder = program.parent / ("f" * 120)
    folder.mkdir()
    for name in names:
        monkeypatch.setenv(name, str(folder) if name == "TMPDIR" else "w" * 100_000)
    out, _, code = ended(program.parent, *OVER, *WARM, "run", str(program), "a")
    assert (out, code) == (f"['a'] passed {program.parent} False typed __main__\n", 7) and not list(folder.iterdir())


@pytest.mark.parametrize("arguments", [["-m", "program"], ["program.py"]], ids=" ".join)
def test_module_runs_by_name_or_path(program, arguments):
    (program.parent / "beside.py").write_text("WORD = 'found'\n", encoding="utf-8")
    program.write_text("import beside, sys; print(beside.WORD, sys.argv[0].endswith('program.py'))", encoding="utf-8")
    assert ended(program.parent, *OVER, *WARM, "run", *arguments) == ("found True\n", "", 0)


ENDS = {
    "": (0, ""),
    "sys.exit()": (0, ""),
    "sys.exit('a reason')": (1, "a reason\n"),
    "1 / 0": (1, "ZeroDivisionError: division by zero\n"),
}


@pytest.mark.parametrize("last", ENDS)
def test_end_of_a_fork_is_that_of_python(program, last):
    program.write_text(f"import atexit, sys; atexit.register(print, 'at the end'); {last}", encoding="utf-8")
    out, error, code = ended(program.parent, *OVER, *WARM, "run", str(program))
    assert (out, code) == ("at the end\n", ENDS[last][0]) and error.endswith(ENDS[last][1])


def test_programs_of_one_command_are_isolated(program):
    program.write_text("import os, sys; print(os.environ.pop('GIVEN'), len(sys.argv)); sys.argv.append('x')", "utf-8")
    one = " ".join([*WARM, "run", str(program)])
    found = ended(program.parent, *OVER, "bash", "-c", f"{one}; {one} a b; exit 3")
    assert found == ("passed 1\npassed 3\n", "", 3)


@contextmanager
def started(program: Path, then: str) -> Generator[tuple[int, IO[bytes]]]:
    """Start a program that says its number and sleeps, and go on with a command; what both print."""
    program.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)", encoding="utf-8")
    command = [*OVER, "bash", "-c", f"{' '.join([*WARM, 'run', str(program)])} & read; {then}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ran:
        fork = int(ran.stdout.readline())
        ran.stdin.write(b"\n")
        ran.stdin.flush()
        yield fork, ran.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_the_fork_and_status_returns(program, number, code):
    with started(program, f"kill -{number} $!; wait $!; echo ended $?") as (_, printed):
        assert printed.readline() == f"ended {code}\n".encode()


def test_fork_ends_with_its_parent_program(program):
    with started(program, "kill -9 $!; wait") as (fork, _):
        # One that ended and was not yet waited for has no command line.
        until(lambda: not command_line(fork), lambda: f"process {fork} still runs", 10)


def command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
