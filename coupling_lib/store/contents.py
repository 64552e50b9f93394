"""What the store holds, as a table."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from coupling_lib import paths
from coupling_lib.store import files

COLUMNS = (
    *("model", "measure", "version", "settings", "revision", "precision", "untrained", "seed"),
    *("prompt", "made", "bytes", "source", "weights", "code", "path"),
)
"""Columns of `listing`: what fixes a measurement, when it was made, and its file."""


def listing(model: str | None = None, root: str | Path | None = None) -> pd.DataFrame:
    """List the measurements that are kept, without reading their numbers."""
    start = paths.RESULTS if root is None else Path(root)
    found = sorted(start.glob(f"*/{files.FOLDER}/*{files.SUFFIX}"))
    records = [(path, files.open_record(path)) for path in found]
    rows = [_row(record, path) for path, record in records if record and model in (None, record["key"].get("model"))]
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values(["made", "path"], ignore_index=True)


def _row(record: dict[str, Any], path: Path) -> dict[str, Any]:
    key = record["key"]
    row = {name: "" if key.get(name) is None else key[name] for name in COLUMNS}
    prompts = [v["texts"][0] for v in record["variables"] if v["name"] == "prompt" and v.get("texts")]
    row |= {"prompt": prompts[0] if prompts else "", "settings": json.dumps(key.get("settings", {}), sort_keys=True)}
    return row | {"made": record["made"], "bytes": path.stat().st_size, "path": str(path)}
