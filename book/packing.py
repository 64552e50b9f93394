"""Writes arrays and values as classic scripts that set a global: a page from the disk may fetch nothing else."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np


def packed(values: np.ndarray, dtype: str) -> str:
    """Writes an array, little end first, as gzip in base64."""
    return base64.b64encode(gzip.compress(np.ascontiguousarray(values, dtype=dtype).tobytes(), mtime=0)).decode()


def in_bytes(matrices: np.ndarray) -> dict[str, str]:
    """Rounds |A| (..., K, K) to bytes: an entry is its byte times the matrix's `scale`, 1/127 of the largest."""
    # Signs are not shown, and finer steps would not be seen: both would only make the data larger.
    scale = np.abs(matrices).max(axis=(-2, -1)).astype("<f4") / np.float32(127)
    steps = np.rint(np.abs(matrices) / np.where(scale > 0, scale, 1)[..., None, None])
    return {"scale": packed(scale, "<f4"), "entries": packed(steps, "u1")}


def in_sixteen_bits(values: np.ndarray) -> dict[str, Any]:
    """Rounds values to 16 bits on one scale: a value is `low` plus its number times `step`."""
    low = float(values.min())
    step = (float(values.max()) - low) / 65535 or 1.0
    return {"low": low, "step": step, "numbers": packed(np.rint((values - low) / step), "<u2")}


def script(kind: str, name: str, content: Any, page: str = "couplingExplorer") -> str:
    """Writes a classic script that adds an entry to the global of a page."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'((window.{page} ??= {{}}).{kind} ??= {{}})["{name}"] = {text};\n'


def read(text: str) -> Any:
    """Reads the content of a `script` again."""
    return json.loads(text.partition(" = ")[2].rstrip().removesuffix(";"))
