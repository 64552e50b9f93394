"""Check that the shards of a job make up the whole: every prompt is there, as it was written, and none measured twice.

    python -m workflow.merge PLAN JOB

The measurements themselves need no merging: they lie in one store, where a sweep of the whole set finds them. The
record that is written says which files these are, and changes only when they do, so that figures are drawn anew only
then.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from coupling_lib.errors import CouplingError
from coupling_lib.store.files import FOLDER
from workflow.records import lines, read, run_command, write


def merge(plan: dict[str, Any], name: str) -> Path:
    """Check the receipts of one job, and write their sum."""
    job, root = plan["jobs"][name], Path(plan["root"])
    receipts = [_receipt(root / "measured" / name / f"{number}-of-{job['shards']}.json", name)
                for number in range(1, job["shards"] + 1)]  # fmt: skip
    twice = [file for file, times in makers(root, name).items() if len(times) > 1]
    if twice:
        by = " and ".join(f"{line['host']} at {line['at'][:19]}" for line in makers(root, name)[twice[0]])
        raise CouplingError(
            f"{name}: {len(twice)} prompts were measured twice, the first ({twice[0]}) by {by}; were two sweeps run on "
            f"stores of their own? if both may stand, remove {root / 'journals' / name}"
        )
    files = sorted((record for receipt in receipts for record in receipt["files"]), key=lambda record: record["place"])
    count = receipts[0]["prompts"]
    stopped = receipts[0].get("stopped", "")
    wanted = range(len(files) if stopped else count)
    places = Counter(record["place"] for record in files)
    if missing := [place for place in wanted if not places[place]]:
        raise CouplingError(f"{name}: prompt {missing[0] + 1} of {count} is in no shard; measure it again")
    if again := [place for place, times in places.items() if times > 1]:
        raise CouplingError(f"{name}: prompt {again[0] + 1} of {count} is in several shards; measure them again")
    for record in files:
        _check(Path(plan["store"]), record, name)
    kept = ("model", "revision", "precision", "untrained", "measure", "version", "settings")
    written = {"job": name} | {key: job[key] for key in kept}
    written |= {"prompts": len(files), "of": count, "stopped": stopped, "files": files}
    return write(root / "measured" / f"{name}.json", written)


def makers(root: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the makers of each file of a job; more than one where it was measured twice without need."""
    found: dict[str, list[dict[str, Any]]] = {}
    for journal in sorted((root / "journals" / name).glob("*.jsonl")):
        for line in lines(journal):
            if not line["again"]:
                found.setdefault(line["file"], []).append(line)
    return found


def _receipt(path: Path, name: str) -> dict[str, Any]:
    receipt = read(path)
    if receipt.get("job") != name:
        raise CouplingError(f"{name}: the receipt {path.name} is of {receipt.get('job')!r}; measure that shard")
    return receipt


def _check(root: Path, record: dict[str, Any], name: str) -> None:
    """Find a file that a receipt names, unchanged."""
    found = [*root.glob(f"*/{FOLDER}/{record['file']}")]
    place = f"prompt {record['place'] + 1}"
    if not found:
        raise CouplingError(f"{name}: {record['file']} of {place} is not in {root}; copy the stores together")
    if hashlib.sha256(found[0].read_bytes()).hexdigest() != record["sha256"]:
        raise CouplingError(f"{name}: {found[0]} of {place} is not what its shard wrote; measure that shard again")


def _run(plan: str, job: str) -> str:
    """Check that the shards of a job make up the whole."""
    record = read(merge(read(plan), job))
    return f"{job}: {record['prompts']} of {record['of']} prompts, none measured twice"


if __name__ == "__main__":
    sys.exit(run_command(_run, "merge", plan=None, job=None))
