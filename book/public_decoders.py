"""Writes what was measured of the public decoders side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from claims import DECODERS
from markdown_table import table
from named_numbers import Numbers, remembered

from coupling_lib import paths
from coupling_lib.models import registry

NAMES = {
    "smollm2-135m": "SmolLM2-135M-Instruct (Q4_1)",
    "gemma3-270m": "Gemma 3 270M (Q4_K_M)",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M)",
}
"""How pages call the public decoders."""

_DEPTH = (
    "coupling",
    "beyond the stricter null",
    "traceless part",
    "beyond the stricter null",
    "untrained ",
    "by chance ",
)
_CURVE = ("trained ", "untrained ", "random bases ", "curve of width ", "trained minus untrained")


def depth_of_decoders(results: Path = paths.RESULTS) -> str:
    """Write coupling across depth of each public decoder, as it is and beyond the larger of both nulls."""

    def cells(numbers: Numbers) -> tuple[str, ...]:
        effects = (
            "depth-coupled",
            "nulls-stricter-coupled",
            "depth-shared-coupled",
            "nulls-stricter-traceless-coupled",
        )
        plain = (f"{numbers[f'depth-coupling-{name}']:.3f}" for name in ("untrained", "null"))
        return (*(_with_interval(numbers, name) for name in effects), *plain)

    return _side_by_side(_DEPTH, cells, ("depth", "nulls"), results)


def curve_of_decoders(results: Path = paths.RESULTS) -> str:
    """Write the reading that figure 1a may show of each public decoder, beside the curve of its width."""

    def cells(numbers: Numbers) -> tuple[str, ...]:
        names = ("trace-trained", "trace-untrained", "trace-null", "flat")
        change = _with_interval(numbers, "nulls-decisive-trace-change", "+.3f")
        return (*(f"{numbers[f'nulls-decisive-{name}']:.3f}" for name in names), change)

    return _side_by_side(_CURVE, cells, ("nulls",), results)


def _side_by_side(
    head: tuple[str, ...], cells: Callable[[Numbers], tuple[str, ...]], notebooks: tuple[str, ...], results: Path
) -> str:
    """Set a line for each decoder that was measured, and the command for the others."""
    rows, absent = [], []
    for model in DECODERS:
        parts = [remembered(results / model / f"{notebook}.ipynb") for notebook in notebooks]
        if all(parts):
            entry = registry.lookup(model)
            line = cells({name: value for part in parts for name, value in part.items()})
            rows.append((NAMES[model], f"{entry.blocks} of {entry.width}", *line))
        else:
            absent.append(NAMES[model])
    text = table(("public decoder", "blocks and width", *head), rows)
    return text + (
        f"\n{' and '.join(absent)}: not measured here; `make decoders GGUF=FOLDER` measures them.\n" if absent else ""
    )


def _with_interval(numbers: Numbers, name: str, form: str = ".3f") -> str:
    value, low, high = (format(numbers[f"{name}{end}"], form) for end in ("", "-low", "-high"))
    return f"{value} [{low}, {high}]"
