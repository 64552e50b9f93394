"""Shared parts of the workflow's commands: records that are whole or absent, journals, and errors of one line."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coupling_lib import paths
from coupling_lib.errors import CouplingError
from coupling_lib.progress import in_one_line


def read(file: str | Path) -> dict[str, Any]:
    """Read a plan, a receipt or another record."""
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CouplingError(f"the record {str(file)!r} cannot be read ({error}); run make sweep again") from None
    if not isinstance(found, dict):
        raise CouplingError(f"the record {str(file)!r} holds a {type(found).__name__}; run make sweep again")
    return found


def write(target: Path, content: dict[str, Any]) -> Path:
    """Write a record atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    paths.write_text(target, json.dumps(content, indent=1) + "\n")
    return target


def lines(journal: Path) -> Iterator[dict[str, Any]]:
    """Read a journal; a last line that was cut off by a kill is ignored."""
    for text in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []:
        try:
            yield json.loads(text)
        except ValueError:
            continue


def note(journal: Path, line: dict[str, Any]) -> None:
    """Append one line in one write, after one that may have been cut off."""
    with journal.open("ab", buffering=0) as file:
        cut_off = journal.read_bytes()[-1:] not in (b"", b"\n")
        file.write(b"\n" * cut_off + json.dumps(line).encode() + b"\n")
        os.fsync(file.fileno())


def run_command(
    run: Callable[..., str], prog: str, arguments: Sequence[str] | None = None, **options: str | None
) -> int:
    """Run a command of the workflow, and return its status."""
    # An option without a default is a place on the command line.
    parser = argparse.ArgumentParser(prog=f"python -m workflow.{prog}", description=run.__doc__)
    for name, default in options.items():
        if default is None:
            parser.add_argument(name, metavar=name.upper())
        else:
            parser.add_argument(f"--{name}", default=default)
    given = vars(parser.parse_args(arguments))
    interrupted = "error: interrupted; what was finished is kept, and the same command goes on"
    return in_one_line(lambda: run(**given), interrupted)
