"""Fetch one model's files to this machine, once, before anything that needs them runs without a network.

    python -m workflow.fetch PLAN WEIGHTS

One writer a model: while one process fetches, another waits. A lock that was left behind by a download that was killed
belongs to nobody and is removed. A gated model asks for its token here and nowhere else: measuring and drawing run with
HF_HUB_OFFLINE=1 and see none.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from coupling_lib.errors import CouplingError
from coupling_lib.models import sources
from workflow.records import read, run_command, write


def fetch(plan: dict[str, Any], weights: str) -> Path:
    """Fetch a model's files, and record their names."""
    if weights not in plan["weights"]:
        raise CouplingError(f"the plan has no model {weights!r}; it has {', '.join(plan['weights'])}")
    model, root = plan["weights"][weights], Path(plan["root"])
    folder, entry = sources.find_local(model["model"])
    hub_id = entry.hub_id if entry else model["model"]
    with alone(root / "models" / f".{weights}.lock"):
        if folder is None:
            # Only its own: another process may be writing those of other models.
            locks = Path(constants.HF_HUB_CACHE) / ".locks" / f"models--{hub_id.replace('/', '--')}"
            for path in clear_stale_locks(locks):
                print(f"{weights}: {path.name}, left by a download that was killed, is removed", file=sys.stderr)
        found = sources.locate(model["model"], model["revision"])
        sources.fetch_weights(found)
    files = sorted(found.folder.glob("*.safetensors"))
    record = {"model": model["model"], "source": found.source, "revision": found.revision}
    return write(root / "models" / f"{weights}.json", record | {"bytes": {f.name: f.stat().st_size for f in files}})


@contextmanager
def alone(lock: Path) -> Generator[None]:
    """Wait until no other process holds a lock; the system releases it when its holder ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clear_stale_locks(folder: Path) -> list[Path]:
    """Remove lock files that no process holds."""
    cleared = []
    for path in sorted(folder.rglob("*.lock")) if folder.is_dir() else []:
        # One that is somebody else's, gone or in use stays.
        with suppress(OSError), path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            cleared.append(path)
    return cleared


def _run(plan: str, weights: str) -> str:
    """Fetch one model's files to this machine."""
    return f"{weights}: {read(fetch(read(plan), weights))['source']} is at hand"


if __name__ == "__main__":
    sys.exit(run_command(_run, "fetch", plan=None, weights=None))
