"""Run a sweep: check its configuration, print what it will take, and hand the plan to Snakemake.

    python -m workflow.sweep CONFIG --profile slurm

Run it again after anything: what is done is not repeated. One runs at a time for each sweep; the lock goes with the
process that holds it, so that one that was killed leaves nothing to clear.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
from pathlib import Path

from coupling_lib.errors import CouplingError
from workflow.plan import estimate, for_the_scheduler, table
from workflow.records import run_command, write
from workflow.settings import ROOT, read

SNAKEMAKE = ROOT / ".venv-sweep" / "bin" / "snakemake"


def command(config: str, profile: str, more: str = "") -> list[str]:
    """Write the plan, and return the command that works through it."""
    known = {file.parent.name: file.parent for file in sorted((ROOT / "workflow" / "profiles").glob("*/config.yaml"))}
    if profile not in known:
        raise CouplingError(
            f"there is no profile {profile!r}; choose from {', '.join(known)}, or add workflow/profiles/"
        )
    folder = known[profile]
    plan = read(config)
    rows = estimate(plan)
    print(table(plan, rows), flush=True)
    for_the_scheduler(plan, rows)
    root = Path(plan["root"])
    root.mkdir(parents=True, exist_ok=True)
    _hold(root / ".lock", plan["name"])
    file = write(root / "plan.json", plan)
    # What is in the environment that runs this runs the jobs. Snakemake reads the values as YAML, where a path with '#'
    # or ': ' needs its quotes.
    named = {"plan": file, "bin": Path(sys.executable).parent}
    given = ["--config", *(f"{name}={json.dumps(str(path), ensure_ascii=False)}" for name, path in named.items())]
    where = ["--snakefile", str(ROOT / "workflow" / "Snakefile"), "--directory", str(root), "--profile", str(folder)]
    return [str(SNAKEMAKE), *where, *shlex.split(more), *given]


def _hold(lock: Path, name: str) -> None:
    """Hold a lock for the lifetime of this process and of the program it is replaced by."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CouplingError(
            f"the sweep {name!r} is running already; wait for it, or give this one another name"
        ) from None
    os.set_inheritable(handle, True)


def _run(config: str, profile: str, more: str) -> str:
    """Run a sweep with Snakemake; --more is handed to it."""
    if not SNAKEMAKE.is_file():
        raise CouplingError("Snakemake is not installed; run: make sweep")
    words = command(config, profile, more)
    sys.stdout.flush()
    os.execv(words[0], words)


if __name__ == "__main__":
    sys.exit(run_command(_run, "sweep", config=None, profile="local", more=""))
