"""Run the tests of paths, numbers, notebooks and the workflow as other machines would: `make portable`.

    python -m workflow.portable [SETTING ...]

Settings are combined, so that all of them take less than six minutes on two cores; two run at a time. Each is printed
with its time and how it ended, and one that fails fails the whole at the end. The environments of other Pythons are
made once, in `.portable/`, outside of that time.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from coupling_lib import paths
from coupling_lib.errors import CouplingError, in_one_line

ROOT = Path(__file__).resolve().parents[1]
# Which tests, and why these.
PATHS = (
    "tests/workflow/test_names.py",  # names made of folders' names
    "tests/workflow/test_settings.py",  # folders in a configuration, a command in a process of its own
    "tests/workflow/test_fetch.py",  # locks and commands of Snakemake
    "tests/workflow/test_measure.py",  # a sweep's shards, from a folder to its receipts
    "tests/coupling_lib/store/test_store.py",  # files named by what was measured, times, texts in any language
    "tests/companion/notebook/test_parameters.py",  # what notebooks are given
    "tests/workflow/test_nbval.py",  # a notebook that runs in a kernel, and is compared
)
NUMBERS = (
    "tests/coupling_lib/metrics/test_coupling.py",  # every definition against a slow reference in float64
    "tests/coupling_lib/metrics/test_variants.py",
    "tests/coupling_lib/metrics/test_fuzz.py",  # matrices that hypothesis finds
    "tests/coupling_lib/metrics/test_trajectory.py",
    "tests/coupling_lib/metrics/test_spectrum.py",
    "tests/coupling_lib/svd",  # singular triplets with their residuals
    "tests/coupling_lib/jacobian/test_tracing.py",  # Jacobians against automatic differentiation of the whole block
    "tests/coupling_lib/jacobian/test_narrow.py",  # in narrow formats; the operator's file takes two minutes
)
BY_THEMSELVES = (
    "tests/coupling_lib/store/test_sweep_memory.py",  # a limit on address space, which counts threads
    "tests/workflow/test_warm.py",  # sockets, signals, the size of an environment
)
OTHER_PYTHON = (
    "tests/coupling_lib/metrics/test_coupling.py",
    "tests/coupling_lib/metrics/test_variants.py",
    *NUMBERS[-2:],
    "tests/coupling_lib/svd",
)

ODD = '- a clone\'s "folder" of 120 characters '.ljust(120, "x")
ODD_PLACE = {"LC_ALL": "C", "TZ": "Pacific/Kiritimati", "HOME": "/dev/null/home", "OMP_NUM_THREADS": "1"}
# More threads than cores: one that waits lets the others work, or each small sum takes a slice of time of the system.
FOUR = {"OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Setting:
    """One way in which a machine may differ."""

    name: str
    tests: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)  # beside the usual ones
    only: tuple[str, ...] | None = None  # of the usual ones; all, where nothing is said
    odd: bool = False  # in a copy of the checkout, in a folder with an odd name
    cores: int = 0  # as many as there are, where it is 0
    python: str = ""  # another Python's program


SETTINGS = (
    Setting("folder '- a clone's ...', one core, LC_ALL=C, TZ, no HOME", PATHS, ODD_PLACE, odd=True, cores=1),
    Setting("default instructions, 4 threads", NUMBERS, {"ATEN_CPU_CAPABILITY": "default", **FOUR}),
    Setting("avx2 instructions, 1 thread", NUMBERS, {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}),
    Setting("plain pytest", BY_THEMSELVES),
    Setting("empty environment", BY_THEMSELVES, only=("PATH",)),
)
SHOULD_TAKE, AT_MOST = 360, 900  # seconds: for all of it on two quiet cores, and after which one is given up
VECTORS = r"sse4_2|avx\w*|fma|f16c|amx\w*|asimd\w*|sve\w*|neon"
# Parses every file, imports every module of the library, and says where it did so.
WHOLE = """
import compileall, importlib, pkgutil, sys
folders = ["coupling_lib", "companion", "workflow", "book", "benchmarks", "notebooks", "tests"]
if not all([compileall.compile_dir(folder, quiet=1) for folder in folders]):
    sys.exit("a file cannot be parsed")
import companion, coupling_lib
houses = (coupling_lib, companion)
for module in [one for house in houses for one in pkgutil.walk_packages(house.__path__, house.__name__ + ".")]:
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def facts() -> str:
    """Describe the machine: what a report of a failure needs first."""
    listing = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", listing)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)", listing, re.MULTILINE)
    lines = {
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "vectors": " ".join(word for word in flags[1].split() if re.fullmatch(VECTORS, word)) if flags else "unknown",
        "cores": f"{_cores()} of {os.cpu_count()}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "checkout": str(ROOT),
        "results": str(paths.RESULTS),
        "home": os.environ.get("HOME", "none"),
        "temporary": tempfile.gettempdir(),
    }
    return "\n".join(f"{name:10} {said}" for name, said in lines.items())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pythons() -> Iterator[tuple[str, str]]:
    """Find the other Pythons that the project runs on: their versions, and their programs."""
    for minor in (11, 12, 13):
        own = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for program in filter(None, (shutil.which(f"python3.{minor}"), *map(str, reversed(own)))):
            # One of pyenv's names may stand for a version that is switched off.
            asked = [program, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
            said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
            if said == f"3.{minor}" and sys.version_info[:2] != (3, minor):
                yield said, program
                break


def environment_of(version: str, program: str) -> Path:
    """Make the environment of another Python once, with what the library and these tests import."""
    folder = ROOT / ".portable" / version
    ready, asked = folder / ".ready", (ROOT / "requirements.lock").read_text(encoding="utf-8")
    own = folder / "bin" / "python"
    if not (ready.is_file() and ready.read_text(encoding="utf-8") == asked):
        wanted = ["-c", "requirements.lock", "-e", ".[quantised,gguf,adapters,notebooks]", "pytest", "hypothesis"]
        install = [str(own), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        for command in ([program, "-m", "venv", "--clear", str(folder)], [*install, *wanted]):
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise CouplingError(f"the environment of Python {version} was not made: {_last(ended.stderr)}")
        ready.write_text(asked, encoding="utf-8")
    return own


def with_pythons(names: list[str]) -> Iterator[Setting]:
    """Give a setting for each other Python that is wanted, and say what making its environment took."""
    for version, program in pythons():
        if names and not any(name in f"Python {version}" for name in names):
            continue
        start = time.monotonic()
        own = environment_of(version, program)
        print(f"set-up of Python {version}: {time.monotonic() - start:.0f} s, outside of the six minutes", flush=True)
        yield Setting(f"Python {version}", OTHER_PYTHON, {"OMP_NUM_THREADS": "1"}, python=str(own))


def copied(place: Path) -> Path:
    """Copy the checkout, as it is, into a folder with an odd name."""
    left_out = shutil.ignore_patterns(
        ".git", ".venv*", ".audit", ".portable", "results", "runs", "_build", "__pycache__"
    )
    target = shutil.copytree(ROOT, place / ODD / "checkout", ignore=left_out)
    (target / ".venv").symlink_to(ROOT / ".venv")
    return target


def run(setting: Setting) -> tuple[str, float, str]:
    """Run the tests of a setting: its name, its seconds, and why it failed or nothing."""
    start = time.monotonic()
    usual = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MAKEFLAGS")}
    usual = {name: usual[name] for name in setting.only} if setting.only is not None else usual
    with tempfile.TemporaryDirectory() as place:
        folder = copied(Path(place)) if setting.odd else ROOT
        python = setting.python or sys.executable
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not browser", *setting.tests]
        if setting.python:
            command = ["bash", "-ec", '"$0" -c "$1"; shift; exec "$0" "$@"', python, WHOLE, *command[1:]]
        if setting.cores:
            command = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[: setting.cores])), *command]
        # The library's modules lie where the tests do, also for the processes that these start.
        given = {**usual, **setting.variables} | ({} if setting.only else {"PYTHONPATH": str(folder)})
        try:
            ended = subprocess.run(
                command, cwd=folder, env=given, capture_output=True, text=True, errors="replace", timeout=AT_MOST,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return setting.name, time.monotonic() - start, f"not done within {AT_MOST} s"
    if ended.returncode:
        print(ended.stdout[-6000:] + ended.stderr[-2000:], flush=True)
    return setting.name, time.monotonic() - start, "" if ended.returncode == 0 else _last(ended.stdout + ended.stderr)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1][:200]


def portable(names: list[str]) -> str:
    """Run every setting, or those whose names contain one of the given words."""
    print(facts(), flush=True)
    settings = [one for one in SETTINGS if not names or any(name in one.name for name in names)]
    settings += with_pythons(names)
    if not settings:
        raise CouplingError(f"no setting is called {names[0]!r}; there are: {'; '.join(one.name for one in SETTINGS)}")
    start, results = time.monotonic(), []
    with ThreadPoolExecutor(min(2, _cores())) as pool:
        for ended in as_completed([pool.submit(run, one) for one in settings]):
            name, seconds, failure = ended.result()
            results.append((name, failure))
            print(f"{'FAILED' if failure else 'passed'}  {seconds:4.0f} s  {name}  {failure}".rstrip(), flush=True)
    taken = time.monotonic() - start
    late = f", more than the {SHOULD_TAKE} s of two quiet cores" if taken > SHOULD_TAKE else ""
    if failed := [name for name, failure in results if failure]:
        raise CouplingError(f"{len(failed)} of {len(results)} settings failed in {taken:.0f} s: {'; '.join(failed)}")
    return f"{len(results)} settings passed in {taken:.0f} s{late}"


if __name__ == "__main__":
    sys.exit(in_one_line(lambda: portable(sys.argv[1:]), "error: interrupted"))
