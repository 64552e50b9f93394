"""How the benchmarks' reports set a table, a duration and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Set a table in Markdown.

    Args:
        head: the column titles; the columns after the first are aligned to the right.
        rows: the cells.

    Returns:
        the table.
    """
    align = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, align, *rows]) + "\n"


def seconds(value: float) -> str:
    """Write a duration with three significant digits.

    Args:
        value: seconds.

    Returns:
        text with its unit, in one line of a narrow column.
    """
    number, unit = (f"{value * 1e3:.3g}", "ms") if value < 0.9995 else (f"{float(f'{value:.3g}'):g}", "s")
    return f"{number}\N{NO-BREAK SPACE}{unit}"


def machine_line(machine: dict[str, Any]) -> str:
    """Say where and when a run was made.

    Args:
        machine: a record of `machine.facts`.

    Returns:
        a paragraph.
    """
    gpu = f"{machine['gpu']}, " if machine["gpu"] else ""
    return (
        f"Measured on {machine['date']} on {gpu}{machine['cpu']}, {machine['cores']} cores, {machine['threads']} "
        f"threads, {machine['memory_gib']} GiB of memory; load average at the start {machine['load_average']}. "
        f"{machine['versions']}. Command: `{machine['command']}`.\n"
    )
