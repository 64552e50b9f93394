"""Change single operators and numbers of the code at random, and see which changes the tests notice.

    python -m workflow.mutants run [--core 300] [--companion 150] [--seed 0] [--out results/mutants.csv]
    python -m workflow.mutants compare BEFORE.csv AFTER.csv

A mutant is one file with one change: a comparison or an operator by its neighbour, a number by the next one, `and` by
`or`, `min` by `max`, a `not` left out. Each is tried in a copy of what git tracks, by the tests of the mirrored folder
that execute its line. Rows are written as they come, and a run that was stopped goes on.
`compare` fails where a mutant that one run caught survives in the other: tests that were rewritten have lost a check.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import coverage

from coupling_lib.errors import ParameterError
from coupling_lib.paths import RESULTS, ROOT
from coupling_lib.progress import in_one_line

CORE = [f"coupling_lib/{room}/*.py" for room in ("metrics", "svd", "blocks", "jacobian")]
COMPANION = ["companion/tables/*.py", "companion/figures/*.py", "book/verdicts.py"]
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "/", "/": "*",
    "//": "*", "%": "*", "**": "*", "and": "or", "or": "and", "min": "max", "max": "min",
}  # fmt: skip
CAUGHT, SURVIVED = "caught", "survived"
_SECONDS = 600  # a loop that no longer ends counts as caught
_MOST = 60.0  # seconds of tests against one mutant, so that 450 of them take two hours of two cores


class Mutant(NamedTuple):
    """One change of one file: `before` stands at `start`, counted in bytes, and `after` takes its place."""

    file: str
    line: int
    start: int
    before: str
    after: str


def mutants_of(file: str, text: bytes) -> Iterator[Mutant]:
    """List every mutant of a file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    def swapped(left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        between = text[(start := place(left.end_lineno, left.end_col_offset)) : place(right.lineno, right.col_offset)]
        symbol = between.decode().replace("(", " ").replace(")", " ").strip()
        if symbol in SWAPPED:
            yield Mutant(file, right.lineno, start + between.find(symbol.encode()), symbol, SWAPPED[symbol])

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.BinOp(left=left, right=right):
                yield from swapped(left, right)
            case ast.Compare(left=left, comparators=[right]):
                yield from swapped(left, right)
            case ast.BoolOp(values=[left, right, *_]):
                yield from swapped(left, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                start = place(node.lineno, node.col_offset)
                yield Mutant(
                    file, node.lineno, start, text[start : place(operand.lineno, operand.col_offset)].decode(), ""
                )
            case ast.Constant(value=value) if type(value) in (int, float):
                start = place(node.lineno, node.col_offset)
                written = text[start : place(node.end_lineno, node.end_col_offset)].decode()
                yield Mutant(file, node.lineno, start, written, repr(value + 1))
            case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
                yield Mutant(file, node.lineno, place(node.lineno, node.col_offset), name, SWAPPED[name])


def drawn(patterns: list[str], n: int, seed: int) -> list[Mutant]:
    """Draw mutants of the files that patterns name, the same ones for the same code and seed."""
    files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    every = [one for path in files for one in mutants_of(path.relative_to(ROOT).as_posix(), path.read_bytes())]
    return random.Random(seed).sample(sorted(set(every)), min(n, len(every)))


def tests_of(file: str, root: Path) -> list[str]:
    """List the tests of a file of code: its doctests, and those of the folder that mirrors its own."""
    source, folder = Path(file), root / "tests" / Path(file).parent
    # The book's code lies in one folder, and so do its tests.
    some = (path for path in sorted(folder.glob("test_*.py")) if source.parts[0] != "book" or source.stem in path.stem)
    return [file, *(str(path.relative_to(root)) for path in some)]


def run_tests(tests: list[str], root: Path, under: Sequence[str] = (), seconds: float | None = None, **set_: str):
    """Run tests in a copy of the tree until the first that fails, and return the process that has ended."""
    # Most of a short run is the import of torch, which a fork has (`workflow/warm.py`); coverage fails there.
    warm = [] if under else [str(ROOT / "workflow" / "warm.py"), "run"]
    # anyio's plugin fails after nnsight, and no test here needs it.
    command = [sys.executable, *warm, *under, "-m", "pytest", "-q", "-x", "-p", "no:anyio", "-p", "no:cacheprovider"]
    command += ["--hypothesis-seed=0", "-m", "not browser and not thorough"]
    alone = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **set_}
    return subprocess.run(
        [*command, *tests], cwd=root, env=os.environ | alone, capture_output=True, timeout=seconds, check=False
    )


def passes(tests: list[str], root: Path) -> bool:
    """Run tests in a copy of the tree; too slow is failed."""
    try:
        ran = run_tests(tests, root, seconds=_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    # 2: a file that no longer imports; 4: so does the file of a test that is named
    if ran.returncode not in (0, 1, 2, 4):
        raise ParameterError(f"pytest ended with status {ran.returncode}: {ran.stdout.decode()[-500:]}")
    return ran.returncode == 0


class Executed(NamedTuple):
    """Which tests execute a line of a file, and how many seconds each test takes."""

    lines: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]

    @classmethod
    def record(cls, files: Iterable[str], root: Path, jobs: int) -> Executed:
        """Run the tests of files once, folder by folder, and note what they execute."""
        lines, seconds = defaultdict(dict), {}

        def note(folder: str) -> None:
            tests = sorted({test for file in files if os.path.dirname(file) == folder for test in tests_of(file, root)})
            under = ["-m", "coverage", "run", f"--data-file={root}/{folder}.lines", f"--include={root}/{folder}/*"]
            plugin = ["-p", "workflow.executed"]
            ran = run_tests([*plugin, *tests], root, under, EXECUTED=f"{root}/{folder}.json")
            if ran.returncode:
                end = (ran.stdout + ran.stderr).decode()[-500:]
                raise ParameterError(f"tests of {folder} fail as they are; mutants can be tried once they pass: {end}")
            seconds.update(json.loads(Path(f"{root}/{folder}.json").read_text(encoding="utf-8")))
            data = coverage.CoverageData(f"{root}/{folder}.lines")
            data.read()
            for file in data.measured_files():
                for line, some in data.contexts_by_lineno(file).items():
                    lines[str(Path(file).relative_to(root))][str(line)] = sorted(filter(None, some))

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(note, sorted({os.path.dirname(file) for file in files})))
        return cls(lines, seconds)

    def tests(self, mutant: Mutant, text: bytes, most: float = _MOST) -> list[str]:
        """List the tests that execute a mutant's line, quick ones first, as many as some seconds hold."""
        known = self.lines.get(mutant.file, {})
        some = {test for line in statement(text, mutant.line) for test in known.get(str(line), ())}
        # What an import alone executes counts as executed by every test that executes a line of the file.
        some = some or {test for each in known.values() for test in each}
        found = [test for test in self.seconds if {test, test.split("::")[0]} & some]
        found.sort(key=self.seconds.get)
        until = list(accumulate(self.seconds[test] for test in found))
        return [test for test, total in zip(found, until, strict=True) if total <= most] or found[:1]


def statement(text: bytes, line: int) -> range:
    """Return the lines of the innermost statement at a line; of a compound one its head, of a function all."""
    inner = max(
        (
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno
        ),
        key=lambda node: node.lineno,
    )
    if isinstance(inner, ast.FunctionDef) or not getattr(inner, "body", None):
        return range(inner.lineno, inner.end_lineno + 1)
    return range(inner.lineno, inner.body[0].lineno)


def judge(mutant: Mutant, root: Path, executed: Executed) -> str:
    """Insert a mutant into a copy of the tree, run the tests that execute it, and remove it again."""
    path = root / mutant.file
    text, end = path.read_bytes(), mutant.start + len(mutant.before.encode())
    tests = executed.tests(mutant, text)
    path.write_bytes(text[: mutant.start] + mutant.after.encode() + text[end:])
    try:
        return SURVIVED if not tests or passes(tests, root) else CAUGHT
    finally:
        path.write_bytes(text)


def read(table: Path) -> dict[Mutant, str]:
    """Return the outcome of each mutant in a table."""
    if not table.exists():
        return {}
    with table.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {
        Mutant(row["file"], int(row["line"]), int(row["start"]), row["before"], row["after"]): row["end"]
        for row in rows
    }


def run(given: argparse.Namespace) -> None:
    """Try every mutant that is not in the table yet."""
    mutants = drawn(CORE, given.core, given.seed) + drawn(COMPANION, given.companion, given.seed)
    random.Random(given.seed).shuffle(mutants)  # a run that is stopped leaves a sample of both
    known, missing = read(given.out), SimpleQueue()
    for mutant in mutants:
        if mutant not in known:
            missing.put(mutant)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        copies = [Path(folder) / str(job) for job in range(given.jobs)]
        for copy in copies:
            subprocess.run(["git", "checkout-index", "--all", f"--prefix={copy}/"], cwd=ROOT, check=True)
        kept = given.out.with_suffix(".executed.json")
        if kept.exists():
            executed = Executed(*json.loads(kept.read_text(encoding="utf-8")))
        else:
            executed = Executed.record({mutant.file for mutant in mutants}, copies[0], given.jobs)
            kept.write_text(json.dumps(executed), encoding="utf-8")

        def work(copy: Path) -> None:
            while not missing.empty():
                mutant = missing.get()
                row = [*mutant, judge(mutant, copy, executed)]
                new = not given.out.exists()
                with given.out.open("a", encoding="utf-8", newline="") as lines:
                    csv.writer(lines).writerows([[*Mutant._fields, "end"], row] if new else [row])
                print(f"{row[-1]}: {mutant.file}:{mutant.line}: {mutant.before!r} -> {mutant.after!r}", flush=True)

        list(pool.map(work, copies))
    found = [end for mutant, end in read(given.out).items() if mutant in set(mutants)]
    print(f"{found.count(CAUGHT)} of {len(found)} mutants caught")


def compare(before: Path, after: Path) -> int:
    """Print every mutant that one run caught and the other did not, and return 1 if there is one."""
    then, now = read(before), read(after)
    if not then.keys() & now.keys():
        raise ParameterError(f"{before} and {after} have no mutant in common; give two runs of the same code and seed")
    lost = [mutant for mutant, end in then.items() if end == CAUGHT and now.get(mutant) == SURVIVED]
    for mutant in lost:
        print(f"no longer caught: {mutant.file}:{mutant.line}: {mutant.before!r} -> {mutant.after!r}")
    print(f"{len(lost)} of {len(then.keys() & now.keys())} mutants are no longer caught")
    return int(bool(lost))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="try mutants")
    running.add_argument("--core", type=int, default=300, help="mutants of metrics, svd, blocks and jacobian")
    running.add_argument("--companion", type=int, default=150, help="mutants of tables, figures and verdicts")
    running.add_argument("--seed", type=int, default=0, help="the seed of the draw")
    running.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants tried at a time")
    running.add_argument("--out", type=Path, default=RESULTS / "mutants.csv", help="the table of what became of each")
    comparing = commands.add_parser("compare", help="what one run caught and the other did not")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "run":
        return in_one_line(lambda: run(given) or 0, f"interrupted; {given.out} holds what was tried")
    return in_one_line(lambda: compare(given.before, given.after), "interrupted")


if __name__ == "__main__":
    sys.exit(main())
