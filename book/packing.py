"""Writes arrays and values as classic scripts that set a global: a page from the disk may fetch nothing else."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np


def packed(values: np.ndarray, dtype: str) -> str:
    """Write an array, little end first, as gzip in base64."""
    return base64.b64encode(gzip.compress(np.ascontiguousarray(values, dtype=dtype).tobytes(), mtime=0)).decode()


def unpacked(text: str, dtype: str, *shape: int) -> np.ndarray:
    """Read an array that `packed` wrote."""
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype=dtype).reshape(shape)


LEVELS = 18
"""Levels of an entry's size. Finer ones would hardly be seen, and make the data larger."""


ABSENT = 255
"""Level of the entries of a matrix that was not kept, whose own are NaN."""


def in_levels(matrices: np.ndarray) -> dict[str, Any]:
    """Round |A| (..., K, K), whose signs are not shown: an entry is its level times the matrix's `scale`."""
    scale = np.nan_to_num(np.abs(matrices).max(axis=(-2, -1))) / LEVELS
    entries = np.rint(np.abs(matrices) / np.where(scale > 0, scale, 1)[..., None, None])
    return {"scale": in_sixteen_bits(scale), "entries": packed(np.nan_to_num(entries, nan=ABSENT), "u1")}


def in_sixteen_bits(values: np.ndarray, step: float | None = None) -> dict[str, Any]:
    """Round values to 16 bits: a value is `low` plus its number times `step`, by default the finest."""
    low = float(values.min())
    step = step or (float(values.max()) - low) / 65535 or 1.0
    return {"low": low, "step": step, "numbers": packed(np.rint((values - low) / step), "<u2")}


def script(kind: str, name: str, content: Any, page: str = "couplingExplorer") -> str:
    """Write a classic script that adds an entry to the global of a page."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'((window.{page} ??= {{}}).{kind} ??= {{}})["{name}"] = {text};\n'


def read(text: str) -> Any:
    """Read the content of a `script` again."""
    return json.loads(text.partition(" = ")[2].rstrip().removesuffix(";"))
