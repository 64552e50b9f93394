"""Formatting of tables, durations and the machine in the benchmarks' reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STAGES = ("capture", "jacobians", "svd", "pairs", "total")
STAGE_NAMES = "states | Jacobians | SVD | pairs | total"

NB = "\N{NO-BREAK SPACE}"
"""Stands between a number and its unit, so that a narrow column keeps the two in one line."""


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown, its head with bars between the columns."""
    columns = zip(*rows, strict=True) if rows else [()] * (head.count("|") + 1)
    align = ["---:" if all(_is_number(cell) for cell in column) else "---" for column in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in [[head], align, *rows]) + "\n"


def _is_number(cell: str) -> bool:
    return not cell or (cell.lstrip("-")[:1].isdigit() and " " not in cell)


def power(value: float, digits: int = 1) -> str:
    """Format a small number as a multiple of a power of ten."""
    if not value:
        return "0"
    number, exponent = f"{value:.{digits - 1}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{float(number):g}{NB}×{NB}10{raised}"


def seconds(value: float) -> str:
    """Format a duration with three significant digits."""
    number, unit = (f"{value * 1e3:.3g}", "ms") if value < 0.9995 else (f"{float(f'{value:.3g}'):g}", "s")
    return f"{number}{NB}{unit}"


def machine_line(machine: dict[str, Any]) -> str:
    """Return the machine and the date of a run."""
    gpu = f"{machine['gpu']}, " if machine["gpu"] else ""
    threads = f"{machine['threads']} thread{'s' if machine['threads'] != 1 else ''}"
    return (
        f"Measured on {machine['date']} on {gpu}{machine['cpu']}, {machine['cores']} cores, {threads}, "
        f"{machine['memory_gib']} GiB of memory; load average at the start {machine['load_average']}. "
        f"{machine['versions']}. Command: `{machine['command']}`.\n"
    )


def goals_table(outcomes: list[tuple[Any, float, bool]]) -> str:
    """Tabulate goals, each with its measured value and whether it was reached."""
    return table("figure | goal | measured | ", [_goal_row(*outcome) for outcome in outcomes])


def _goal_row(goal: Any, figure: float, reached: bool) -> tuple[str, ...]:
    bound = f"{'at least' if goal.at_least else 'at most'} {_figure(goal.wanted, goal.unit)}"
    return goal.text, bound, _figure(figure, goal.unit), "reached" if reached else "not reached"


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g}{unit.replace(' ', NB)}" if value > 1e-3 else power(value, 3)
