"""How the benchmarks' reports set a table, a duration and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NB = "\N{NO-BREAK SPACE}"
"""Stands between a number and its unit, so that a narrow column keeps the two in one line."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Set a table in Markdown.

    Args:
        head: the column titles; a column of numbers, which have no blank in them, is aligned to the right.
        rows: the cells.

    Returns:
        the table.
    """
    columns = zip(*rows, strict=True) if rows else [()] * len(head)
    align = ["---:" if all(_is_number(cell) for cell in column) else "---" for column in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, align, *rows]) + "\n"


def _is_number(cell: str) -> bool:
    return not cell or (cell.lstrip("-")[:1].isdigit() and " " not in cell)


def power(value: float, digits: int = 1) -> str:
    """Write a small number as a multiple of a power of ten.

    Args:
        value: a number above 0, or 0.
        digits: how many digits stand before the power.

    Returns:
        the text, in one line of a narrow column.
    """
    if not value:
        return "0"
    number, exponent = f"{value:.{digits - 1}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{float(number):g}{NB}×{NB}10{raised}"


def seconds(value: float) -> str:
    """Write a duration with three significant digits.

    Args:
        value: seconds.

    Returns:
        text with its unit, in one line of a narrow column.
    """
    number, unit = (f"{value * 1e3:.3g}", "ms") if value < 0.9995 else (f"{float(f'{value:.3g}'):g}", "s")
    return f"{number}{NB}{unit}"


def machine_line(machine: dict[str, Any]) -> str:
    """Say where and when a run was made.

    Args:
        machine: a record of `machine.facts`.

    Returns:
        a paragraph.
    """
    gpu = f"{machine['gpu']}, " if machine["gpu"] else ""
    threads = f"{machine['threads']} thread{'s' if machine['threads'] != 1 else ''}"
    return (
        f"Measured on {machine['date']} on {gpu}{machine['cpu']}, {machine['cores']} cores, {threads}, "
        f"{machine['memory_gib']} GiB of memory; load average at the start {machine['load_average']}. "
        f"{machine['versions']}. Command: `{machine['command']}`.\n"
    )
