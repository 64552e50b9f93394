"""Measure one shard of a sweep's job into the store, and write a receipt of the files found there and of those made.

    python -m workflow.measure PLAN JOB --shard 2/3

Each measurement that is made is noted in a journal as soon as it is in the store, so that what a job did before it was
killed is known. `python -m workflow.merge` reads receipts and journals.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import coupling_lib as cl
from companion.notebook.choices import chosen_prompts
from coupling_lib import store
from coupling_lib.errors import CouplingError
from coupling_lib.store.key import measurement_key, prompt_key
from coupling_lib.store.sweep import in_shard, parse_shard, stream
from workflow import until
from workflow.records import lines, note, read, run_command, write
from workflow.settings import MEASURES


def measure(plan: dict[str, Any], name: str, shard: str) -> Path:
    """Measure a shard, and return its receipt."""
    if name not in plan["jobs"]:
        raise CouplingError(f"the plan has no job {name!r}; it has {', '.join(plan['jobs'])}")
    job, root, (number, count) = plan["jobs"][name], Path(plan["root"]), parse_shard(shard)
    measured, part = MEASURES[job["measure"]], f"{number}-of-{count}"
    how = {key: job[key] for key in ("precision", "untrained", "seed", "revision")}
    model = cl.load_model(job["model"], **how, memory=job["memory"] or None)
    prompts = chosen_prompts(job["prompts"], job["seed"])
    inputs = cl.inputs_for(model, prompts, seed=job["seed"])
    key = measurement_key(measured, model, job["settings"])
    if key["version"] != job["version"]:
        raise CouplingError(f"{name} was planned with version {job['version']}, and the library has {key['version']} "
                            "now; plan the sweep again")  # fmt: skip
    chosen = in_shard(inputs, shard)
    places = [store.place(plan["store"], key | {"prompt": prompt_key(model, prompt)}) for _, prompt in chosen]
    journal = root / "journals" / name / f"{part}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    values: list[float] = []  # what decides whether to end early
    datasets = stream(measured, model, inputs, store=plan["store"], shard=shard, **job["settings"])
    files = []
    for (place, _), path in zip(chosen, places, strict=True):
        noted, before = path.name in {line["file"] for line in lines(journal)}, _inode(path)
        ds = next(datasets)
        if not path.exists():
            raise CouplingError(f"{path} could not be written, so that prompt {place + 1} would be lost; see above")
        record = {"place": place, "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        files.append(record)
        if _inode(path) != before:
            # Files that were damaged, or removed since, are rightly measured again.
            again = "damaged" if before else "removed" if noted else ""
            note(journal, record | {"again": again} | _whereabouts())
        if job["until"] is not None:
            values.append(until.number_of(ds, job["of"]))
            if until.is_reached(values, job["until"]):
                break
    receipt = {"job": name, "shard": shard, "prompts": len(inputs), "files": files}
    target = root / "measured" / name / f"{part}.json"
    return write(target, receipt | (until.record(values, job["until"], job["of"], len(inputs)) if values else {}))


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # not there, nor can it be
        return None
    return found.st_ino, found.st_mtime_ns


def _whereabouts() -> dict[str, Any]:
    slurm = os.environ.get("SLURM_JOB_ID", "")
    return {"host": platform.node(), "pid": os.getpid(), "slurm": slurm, "at": datetime.now(UTC).isoformat()}


def _run(plan: str, job: str, shard: str) -> str:
    """Measure one shard of a sweep's job."""
    receipt = read(measure(read(plan), job, shard))
    return f"{job}, shard {shard}: {len(receipt['files'])} prompts are in the store"


if __name__ == "__main__":
    sys.exit(run_command(_run, "measure", plan=None, job=None, shard="1/1"))
