"""How the benchmarks' reports set a table, a duration and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STAGES = ("capture", "jacobians", "svd", "pairs", "total")
STAGE_NAMES = ("states", "Jacobians", "SVD", "pairs", "total")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Set a table in Markdown."""
    align = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, align, *rows]) + "\n"


def seconds(value: float) -> str:
    """Write a duration with three significant digits."""
    number, unit = (f"{value * 1e3:.3g}", "ms") if value < 0.9995 else (f"{float(f'{value:.3g}'):g}", "s")
    return f"{number}\N{NO-BREAK SPACE}{unit}"


def machine_line(machine: dict[str, Any]) -> str:
    """Say where and when a run was made."""
    gpu = f"{machine['gpu']}, " if machine["gpu"] else ""
    return (
        f"Measured on {machine['date']} on {gpu}{machine['cpu']}, {machine['cores']} cores, {machine['threads']} "
        f"threads, {machine['memory_gib']} GiB of memory; load average at the start {machine['load_average']}. "
        f"{machine['versions']}. Command: `{machine['command']}`.\n"
    )


def goals_table(outcomes: list[tuple[Any, float, bool]]) -> str:
    """Set goals, each with what was measured and whether it was reached."""
    return table(("figure", "goal", "measured", ""), [_goal_row(*outcome) for outcome in outcomes])


def _goal_row(goal: Any, figure: float, reached: bool) -> tuple[str, ...]:
    bound = f"{'at least' if goal.at_least else 'at most'} {goal.wanted:g}{goal.unit}"
    return goal.text, bound, f"{figure:.3g}{goal.unit}", "reached" if reached else "not reached"
