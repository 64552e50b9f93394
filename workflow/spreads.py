"""Measure the differences between CPUs: each notebook as it is stored is compared with runs under other settings.

    python -m workflow.spreads [NAME ...]

The largest relative difference between any two goes into `notebooks/spreads.json`, apart for what is shown
and what is remembered. `notebooks/conftest.py` reads it there, and allows that and no more. Every setting begins with
an empty store, so that everything is computed. What was executed lies in `results/spreads/`, and is executed anew once
the notebook or the library is newer: a run that was stopped goes on. A processor that measures the same code adds
itself; the larger spread stands.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import permutations, product
from pathlib import Path
from typing import Any

import nbformat
import torch

from benchmarks import machine
from coupling_lib import paths
from coupling_lib.errors import CouplingError
from coupling_lib.progress import in_one_line
from notebooks.conftest import (
    ALONE,
    MOST,
    REMEMBERED,
    SHOWN,
    SPREADS,
    allowed,
    apart,
    difference,
    kind,
    pairs,
    texts_of,
)
from workflow.refresh import HERE, execute

# What torch, MKL, oneDNN, OpenBLAS and numpy compute with, as on an older processor: each library chooses for itself,
# and one variable reaches one of them. MKL obeys AVX2 on Intel's processors only; numpy forgets each set by its name.
CHOSEN_BY = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")
NEWER = "X86_V4 AVX512_ICL AVX512_SPR"
INSTRUCTIONS = {
    "default": dict(zip(CHOSEN_BY, ("default", "COMPATIBLE", "SSE41", "Nehalem", f"X86_V3 {NEWER}"), strict=True)),
    "avx2": dict(zip(CHOSEN_BY, ("avx2", "AVX2", "AVX2", "Haswell", NEWER), strict=True)),
}
# Four threads that wait for each other in turns would take a smaller machine's cores from those that compute; and MKL
# would give torch no more threads than there are cores.
THREADS = {
    "1 thread": {"OMP_NUM_THREADS": "1"},
    "4 threads": {"OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE", "MKL_DYNAMIC": "FALSE"},
}
# The notebook as it is stored was made with what its processor has, on one thread.
STORED = "as stored"
SETTINGS = {f"{i}, {t}": INSTRUCTIONS[i] | THREADS[t] for i, t in product(INSTRUCTIONS, THREADS)}
if torch.backends.cpu.get_cpu_capability() == "AVX512":
    SETTINGS["avx512, 1 thread"] = THREADS["1 thread"]


def measure(name: str, made: Path) -> dict[str, Any]:
    """Execute a notebook under every setting, and return its spreads."""
    runs = {STORED: _stored(name)} | {setting: _executed(name, setting, made) for setting in SETTINGS}
    spread, alone = {SHOWN: (0.0, ""), REMEMBERED: (0.0, "")}, {}
    for one, other in permutations(runs, 2):
        for place, new, old in differences(runs[one], runs[other]):
            found, where = apart(new, old), f"cell {place[0]}: {' '.join(f'{new} and {old}'.split())[:80]}"
            if found > MOST and difference(new, old) < math.inf:
                at = " ".join(map(str, place))
                alone[at] = max(alone.get(at, 0.0), float(f"{difference(new, old):.2e}"))
            elif math.isinf(found):
                raise CouplingError(f"{name}, {where}: a word, a whole number or a nothing depends on the setting "
                                    f"({one}; {other}); no rounding allows that")  # fmt: skip
            else:
                of = kind(place[2])
                spread[of] = max(spread[of], (found, where))
    processor = f"{machine.facts()['cpu']}: {'; '.join(runs)}"
    found = {of: float(f"{value:.2e}") for of, (value, _) in spread.items()}
    where = {f"{of}_at": at for of, (value, at) in spread.items() if value}
    return {"code": _code(name), **found, **where, "measured_on": [processor], **({ALONE: alone} if alone else {})}


def differences(one: nbformat.NotebookNode, other: nbformat.NotebookNode) -> Iterator[tuple[tuple, str, str]]:
    """Compare two executed copies of a notebook as nbval does, piece by piece of a text: its place, and both pieces."""
    for at, (first, second) in enumerate(zip(_compared(one), _compared(other), strict=True)):
        if len(first) != len(second):
            yield (at, 0, "", 0), f"{len(first)} outputs", f"{len(second)} outputs"
        for output, (new, old) in enumerate(zip(first, second, strict=False)):
            for mime in sorted(set(new) | set(old)):
                if isinstance(text := new.get(mime, ""), str) and isinstance(stored := old.get(mime, ""), str):
                    yield from (((at, output, mime, n), *pair) for n, pair in enumerate(pairs(text, stored)))


def _compared(notebook: nbformat.NotebookNode) -> list[list[dict[str, str]]]:
    """Return the texts of all cells of code, none of a cell that nbval skips."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    skipped = "nbval-ignore-output"
    return [[texts_of(o) for o in c.outputs if skipped not in c.metadata.get("tags", [])] for c in cells]


def _executed(name: str, setting: str, made: Path) -> nbformat.NotebookNode:
    """Execute a notebook under one setting, or find it executed."""
    target = made / name / f"{re.sub(r'[^a-z0-9]+', '-', setting)}.ipynb"
    source = HERE / f"{name}.ipynb"
    newest = max(path.stat().st_mtime for path in (source, *paths.PACKAGE.rglob("*.py")))
    if not (target.is_file() and target.stat().st_mtime > newest):
        notebook = _stored(name)
        with tempfile.TemporaryDirectory() as empty:
            execute(notebook, SETTINGS[setting] | {"COUPLING_RESULTS": empty})
        target.parent.mkdir(parents=True, exist_ok=True)
        paths.write_text(target, nbformat.writes(notebook))
    return nbformat.read(target, as_version=4)


def _stored(name: str) -> nbformat.NotebookNode:
    """Read a notebook as it is stored."""
    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


def _code(name: str) -> str:
    """Hash a notebook's code: spreads of two processors belong together where it is the same."""
    cells = _stored(name).cells
    return hashlib.sha256("\0".join(c.source for c in cells if c.cell_type == "code").encode()).hexdigest()[:12]


def merged(known: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """Add the measurements of one processor to those of others for the same code."""
    others = [on for on in (known or {}).get("measured_on", []) if on not in new["measured_on"]]
    if known is None or known["code"] != new["code"] or not others:
        return dict(new)
    both = dict(new) | {"measured_on": sorted([*others, *new["measured_on"]])}
    for of in (SHOWN, REMEMBERED):
        if known[of] > new[of]:
            both |= {of: known[of], f"{of}_at": known[f"{of}_at"]}
    alone = [of.get(ALONE, {}) for of in (known, new)]
    if any(alone):
        both[ALONE] = {at: max(of.get(at, 0.0) for of in alone) for at in alone[0] | alone[1]}
    return both


def written(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the table."""
    return json.dumps(table, indent=1, sort_keys=True) + "\n"


def spreads(names: list[str], table: Path = SPREADS) -> str:
    """Measure notebooks, each into the table as soon as it is measured."""
    known = sorted(path.stem for path in HERE.glob("*.ipynb"))
    if unknown := [name for name in names if name not in known]:
        raise CouplingError(f"there is no notebook {unknown[0]!r}; choose from {', '.join(known)}")
    refused = []
    for name in names or known:
        start = time.monotonic()
        try:
            found = measure(name, paths.RESULTS / "spreads")
        except CouplingError as error:
            refused.append(name)
            print(f"error: {error}", flush=True)
            continue
        entries = read(table)
        entries[name] = merged(entries.get(name), found)
        paths.write_text(table, written({name: entry for name, entry in entries.items() if name in known}))
        limits = ", ".join(f"{of} {allowed(HERE / name, table)[of]:g}" for of in (SHOWN, REMEMBERED))
        print(f"{name}: {limits}; {time.monotonic() - start:.0f} s", flush=True)
    if refused:
        raise CouplingError(f"no spread was written for {', '.join(refused)}; see above")
    return f"{table.name} has {len(read(table))} of {len(known)} notebooks"


def read(table: Path = SPREADS) -> dict[str, dict[str, Any]]:
    """Read the table; nothing where it is not there yet."""
    return json.loads(table.read_text(encoding="utf-8")) if table.is_file() else {}


if __name__ == "__main__":
    stopped = "error: interrupted; what was executed is kept, and the same command goes on"
    sys.exit(in_one_line(lambda: spreads(sys.argv[1:]), stopped))
