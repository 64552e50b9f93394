"""Writes what was measured of the public decoders side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from claims import DECODERS
from markdown_table import table
from named_numbers import remembered

from coupling_lib import paths
from coupling_lib.models import registry

NAMES = {
    "smollm2-135m": "SmolLM2-135M-Instruct (Q4_1)",
    "gemma3-270m": "Gemma 3 270M (Q4_K_M)",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M)",
}
"""How pages call the public decoders."""
_PLAIN = ("neighbours-trained", "coupling-untrained", "coupling-null")
_HEAD = ("public decoder", "blocks and width", "coupling", "traceless part", "neighbours ", "untrained ", "by chance ")


def depth_of_decoders(results: Path = paths.RESULTS) -> str:
    """Write coupling across depth of each public decoder; of one that was not measured, the command."""
    rows, absent = [], []
    for model in DECODERS:
        numbers = remembered(results / model / "depth.ipynb")
        if "depth-coupled" not in numbers:
            absent.append(model)
            continue
        entry = registry.lookup(model)
        means = (_with_interval(numbers, f"depth-{name}") for name in ("coupled", "shared-coupled"))
        plain = (f"{numbers[f'depth-{name}']:.3f}" for name in _PLAIN)
        rows.append((NAMES[model], f"{entry.blocks} of {entry.width}", *means, *plain))
    text = table(_HEAD, rows)
    if absent:
        names = " and ".join(NAMES[model] for model in absent)
        text += f"\n{names}: not measured here; `make decoders GGUF=FOLDER` measures them.\n"
    return text


def _with_interval(numbers: Mapping[str, float | str], name: str) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*(numbers[f"{name}{end}"] for end in ("", "-low", "-high")))
