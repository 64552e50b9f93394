"""Record every number that the book rests on, and compare two such records.

    python workflow/golden.py write FILE [--results FOLDER]
    python workflow/golden.py compare OLD NEW [--tolerance 1e-6]

A rewriting of the library that is meant to change no number is compared with the record from before. A record is
sorted text, one entry a line: a name that says where it stands, a tabulator, the number with every digit that is kept
there. It holds what executed notebooks keep for the prose (`glue`), the table under each figure, and the verdicts and
rows of tables on the pages that are made. `compare` lists what was added, removed and changed, and ends with 1 if there
is any beyond the tolerance.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat

from companion.figures.figure_reader import figures_in
from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.progress import in_one_line

_LABEL = re.compile(r"\((claim-[\w-]+)\)=")
_VERDICT = re.compile(r'data-place="([^"]*)" data-verdict="([^"]*)"')
# Versions of programs, the machine and its times: no numbers of the book.
_OTHER_PAGES = ("versions.md", "machine.md", "reproduce.md")
_OTHER_COLUMNS = ("versions", "command")

Line = tuple[str, str]


def collect(results: Path) -> dict[str, str]:
    """Read every number and verdict under a folder that `make book` filled, by name."""
    notebooks = sorted(path for path in results.glob("*/*.ipynb") if not path.name.startswith("."))
    if not notebooks:
        raise ParameterError(f"{str(results)!r} holds no executed notebook; run `make book` first")
    found: dict[str, str] = {}
    lines = [line for path in notebooks for line in _notebook(path, f"{path.parent.name}/{path.stem}")]
    for path in sorted(results.glob("*/*.md")):
        if path.name not in _OTHER_PAGES:
            lines += _page(path.read_text(encoding="utf-8"), f"{path.parent.name}/{path.name}")
    times: Counter[str] = Counter()
    for name, value in lines:
        times[name] += 1
        found[f"{name} ({times[name]})" if times[name] > 1 else name] = value
    return dict(sorted(found.items()))


def write(file: Path, results: Path) -> int:
    """Write a record outside of what git tracks, and count its numbers."""
    inside = file.resolve().is_relative_to(paths.ROOT.resolve())
    if inside and not file.resolve().is_relative_to((paths.ROOT / "results").resolve()):
        raise ParameterError(f"{str(file)!r} lies in the repository; a record belongs outside of it, or into results/")
    found = collect(results)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{name}\t{value}\n" for name, value in found.items()), encoding="utf-8")
    return len(found)


def read(file: Path) -> dict[str, str]:
    """Read the numbers of a record by their names."""
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").split("\n") if line]
    if not all(len(line) == 2 for line in lines):
        raise ParameterError(f"{str(file)!r} is no record; write one with: python workflow/golden.py write FILE")
    return dict(lines)


def differences(old: dict[str, str], new: dict[str, str], tolerance: float = 0.0) -> list[str]:
    """List the differences beyond a relative tolerance, a line each; with 0 the texts must agree."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            lines.append(f"removed  {name}: {old[name]}")
        elif name not in old:
            lines.append(f"added    {name}: {new[name]}")
        elif old[name] != new[name]:
            size = _relative(old[name], new[name])
            if size is None or not size <= tolerance or tolerance == 0:
                note = "" if size is None else f" (relative difference {size:.1e})"
                lines.append(f"changed  {name}: {old[name]} -> {new[name]}{note}")
    return lines


def _relative(old: str, new: str) -> float | None:
    """Return the relative difference of two printed numbers; None where one is no number."""
    try:
        a, b = (float(text.replace(",", "").replace("−", "-")) for text in (old, new))
    except ValueError:
        return None
    return abs(a - b) / (max(abs(a), abs(b)) or 1.0)


def _notebook(path: Path, name: str) -> Iterator[Line]:
    """Read the stored results of an executed notebook."""
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            record, data = output.get("metadata", {}).get("scrapbook"), output.get("data", {})
            if record and "text/html" in data:
                yield from _figures(data["text/html"], name)
            elif record:
                yield f"{name}/glue/{record['name']}", _line(next(iter(data.values())))


def _figures(markup: str, name: str) -> Iterator[Line]:
    """Read the tables under figures."""
    for figure in figures_in(markup):
        if figure.csv:
            yield from _table(figure.csv, f"{name}/figure {figure.name}")


def _table(text: str, name: str) -> Iterator[Line]:
    """Read a table, each row by the cells that identify it."""
    head, *rows = csv.reader(io.StringIO(re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)))
    kept = [column for column, title in enumerate(head) if title not in _OTHER_COLUMNS]
    head, rows = [head[column] for column in kept], [[row[column] for column in kept] for row in rows]
    keys = _keys(rows)
    for row in rows:
        key = ", ".join(f"{head[column]} {_line(row[column])}" for column in keys)
        for column, (title, value) in enumerate(zip(head, row, strict=True)):
            if column not in keys and value:
                yield f"{name}/{key}/{title}", _line(value)


def _keys(rows: Sequence[Sequence[str]]) -> list[int]:
    """Choose the first columns of texts and whole numbers, as few as distinguish the rows."""
    columns = list(enumerate(zip(*rows, strict=True)))
    decimal = [number for number, values in columns if any(_is_decimal(value) for value in values)]
    # Where these do not suffice, settings such as a rate help: they repeat, as measured decimal numbers hardly do.
    repeated = [number for number in decimal if len(set(columns[number][1])) < len(rows)]
    keys: list[int] = []
    for column in [*(number for number, _ in columns if number not in decimal), *repeated]:
        keys.append(column)
        if len({tuple(row[key] for key in keys) for row in rows}) == len(rows):
            break
    return sorted(keys)


def _is_decimal(text: str) -> bool:
    return not re.fullmatch(r"-?\d+", text) and _relative(text, text) is not None


def _page(text: str, name: str) -> Iterator[Line]:
    """Read a generated page: its figures, verdicts by claim, and the rows of its tables by their first cell."""
    yield from _figures(text, name)
    claim = "all claims"
    for line in text.splitlines():
        if label := _LABEL.fullmatch(line):
            claim = label[1]
        yield from ((f"{name}/{claim}/{place}", verdict) for place, verdict in _VERDICT.findall(line))
        if line.startswith("| ") and not line.startswith("| -"):
            first, rest = re.sub(r"</?[a-z][^>]*>", "", line).strip("| ").partition("|")[::2]
            yield f"{name}/{_line(first)}", _line(rest)


def _line(text: str) -> str:
    """Join a text into one line without tabs."""
    return " ".join(str(text).replace("\\", "\\\\").replace("\n", "\\n").split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 1 if records differ, 2 after an error."""
    parser = argparse.ArgumentParser(description="Every number that the book rests on, in one sorted file.")
    commands = parser.add_subparsers(dest="command", required=True)
    written = commands.add_parser("write", help="write a record of a folder of results")
    written.add_argument("file", type=Path)
    written.add_argument("--results", type=Path, default=paths.ROOT / "results", help="the folder `make book` fills")
    compared = commands.add_parser("compare", help="list what differs between two records")
    compared.add_argument("old", type=Path)
    compared.add_argument("new", type=Path)
    compared.add_argument("--tolerance", type=float, default=0.0, help="relative difference that counts as none")
    given = parser.parse_args(arguments)
    return in_one_line(lambda: _run(given), "interrupted", failed=2)


def _run(given: argparse.Namespace) -> str | int:
    if given.command == "write":
        return f"{write(given.file, given.results)} numbers written to {given.file}"
    old, new = read(given.old), read(given.new)
    lines = differences(old, new, given.tolerance)
    counts = [f"{sum(line.startswith(kind) for line in lines)} {kind}" for kind in ("changed", "added", "removed")]
    print("\n".join([*lines, f"{', '.join(counts)}; {len(old)} numbers before, {len(new)} after"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
