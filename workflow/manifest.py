"""Rewrite the digests of all data, `data/MANIFEST.sha256`: `python -m workflow.manifest`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coupling_lib import paths

MANIFEST = "data/MANIFEST.sha256"


def manifest(root: Path = paths.ROOT) -> str:
    """List the sha256 of every file in data/, as `sha256sum --check data/MANIFEST.sha256` reads it."""
    names = sorted(
        path.relative_to(root).as_posix()
        for path in (root / "data").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    )
    digests = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names if name != MANIFEST}
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


if __name__ == "__main__":
    (paths.ROOT / MANIFEST).write_text(manifest(), encoding="utf-8")
