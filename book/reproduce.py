"""Writes what it takes to repeat each claim (command, time, tolerance), and what this copy of the book was made on."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from claims import notebooks_of, read_claims
from complete import executed
from markdown_table import table

from benchmarks import machine
from companion.tables import decoders
from coupling_lib import paths

TOLERANCE = 0.002
"""Least relative difference that is allowed to another machine's float32 arithmetic; some notebooks differ by more."""

EXACT = dict.fromkeys(("generalization", "edits"), "the same digits: read from tables that are shipped")
"""Notebooks whose numbers come from tables in data/, not from a measurement, and what that means."""

ROUNDED = {"precision": "the verdict; how narrow formats are rounded depends on the processor"}
"""Notebooks whose numbers depend on the machine by design."""


KINDS = ("shown", "remembered")
"""Kinds of numbers that differ from CPU to CPU: in outputs, and those that prose quotes."""


def _spreads() -> dict[str, Any]:
    """Read the largest differences of each notebook's numbers from CPU to CPU."""
    return json.loads((paths.ROOT / "notebooks" / "spreads.json").read_text(encoding="utf-8"))


def duration(notebook: Path) -> float | None:
    """Return the seconds that papermill wrote into an executed notebook; None if it was not run here."""
    if not notebook.is_file():
        return None
    return json.loads(notebook.read_text(encoding="utf-8"))["metadata"].get("papermill", {}).get("duration")


def time_text(seconds: float | None) -> str:
    """Write a time rounded to what repeats on another day."""
    if seconds is None:
        return "not run here"
    return f"{max(5, round(seconds / 5) * 5)} s" if seconds < 117.5 else f"{round(seconds / 60)} min"


def repeated(claim: Mapping[str, Any], results: Path) -> tuple[str, float | None, str]:
    """State how a claim is repeated: a command, the seconds that it takes, and what has to come out the same."""
    known = {path.stem for path in (paths.ROOT / "notebooks").glob("*.ipynb")}
    names = [claim["notebook"], *sorted((notebooks_of(claim) & known) - {claim["notebook"]})]
    # Weights of some decoders do not ship; `make decoders` measures those.
    models = [model for model in claim["models"] if model not in decoders.MODELS]
    files = [f"{model}/{name}.ipynb" for model in models for name in names]
    # Other notebooks that a claim reads need not have been made for every one of its models.
    files = [file for file in files if Path(file).stem == claim["notebook"] or (results / file).is_file()]
    times = [duration(results / file) for file in files]
    total = None if None in times else sum(times)
    command, run = "make " + " ".join(f"results/{file}" for file in files), {Path(file).stem for file in files}
    if claim["models"] == ["suite"]:  # by itself: make would first run all others, whose results it lists
        command, run = f".venv/bin/papermill notebooks/{claim['notebook']}.ipynb out.ipynb", {claim["notebook"]}
    return command, total, allowed(run)


def allowed(notebooks: Collection[str]) -> str:
    """State what has to come out the same on another machine that runs these notebooks."""
    for known, some in ((ROUNDED, any), (EXACT, all)):
        if some(name in known for name in notebooks):
            return next(known[name] for name in sorted(notebooks) if name in known)
    spreads = _spreads()
    most = max((spreads[name][kind] for name in notebooks if name in spreads for kind in KINDS), default=0.0)
    return f"the verdict; numbers within {math.ceil(1000 * max(TOLERANCE, most)) / 1000:.1%}"


def reproduce_page(results: Path = paths.RESULTS) -> str:
    """Write the table from claims to commands."""
    rows = []
    for claim in read_claims():
        command, seconds, allowed = repeated(claim, results)
        rows.append((claim["claim"], f"`{command}`", time_text(seconds), allowed))
    times = [
        (f"[{', '.join(page.parts)}](../results/{page}.ipynb)", time_text(duration(results / f"{page}.ipynb")))
        for page in executed()
        if page.name != "index"
    ]
    claims = table(("claim", "command", "time", "what you should get"), rows, align="llrl")
    return f"{claims}\n## How long each notebook ran\n\n{table(('notebook', 'time'), times, align='lr')}"


def spreads_page() -> str:
    """Write what differs from CPU to CPU."""
    spreads = _spreads()
    rows = [
        (name, *(f"{entry[kind]:.0e}" if entry[kind] else "last digit" for kind in KINDS))
        for name, entry in spreads.items()
    ]
    lines = [table(("notebook", "shown", "remembered for prose"), rows, align="lr")]
    limits = [f"{name} {len(entry['alone'])}" for name, entry in spreads.items() if "alone" in entry]
    lines += [f"Small differences of large numbers have limits of their own: {', '.join(limits)}.\n"] * bool(limits)
    measured_on = sorted({on for entry in spreads.values() for on in entry["measured_on"]})
    return "\n".join([*lines, *(f"- {on}" for on in measured_on)]) + "\n"


def machine_page() -> str:
    """Write what this copy of the book was made on."""
    facts = machine.facts()
    rows = {
        "processor": facts["cpu"],
        "cores": str(facts["cores"]),
        "memory": f"{facts['memory_gib']:g} GiB",
        "graphics processor": facts["gpu"] or "none",
        "made on": facts["date"],
    }
    return table(("part", "machine"), rows.items(), align="l")
