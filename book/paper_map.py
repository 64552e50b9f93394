"""The map from every figure and table of the paper to what draws it here. Part of `pages`, which writes it."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from chapters import NAMES, command_of
from markdown_table import table
from template import from_template

from coupling_lib import paths

STATES = ("faithful", "partly", "lost", "not drawn")
"""States that a row of the map may give an item; the page has the rule."""

PAPERS_VALUES = ("generalization.draw_paper",)
"""Functions that draw values of the paper itself, whatever else their item may add by a command."""

Row = dict[str, str]


def read_map(file: Path | None = None) -> list[Row]:
    """Read the map."""
    lines = (file or paths.DATA / "paper_map.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def items_of(row: Row) -> list[str]:
    """Return the single items that a row stands for: 1c, 1d and 1e for "1c-e"."""
    item = row["item"]
    if "-" not in item:
        return [item]
    first, last = item.split("-")
    return [f"{first[:-1]}{chr(letter)}" for letter in range(ord(first[-1]), ord(last) + 1)]


def listed(row: Row, column: str) -> list[str]:
    """Split a cell that may name several things."""
    return [part for part in row[column].split(";") if part]


def in_full(function: str) -> str:
    """Return the full name of a function of the map, such as depth.draw_map, in `companion.figures`."""
    return f"companion.{function}" if function.count(".") > 1 else f"companion.figures.{function}"


def by_command(row: Row) -> bool:
    """Mark an item as one that takes a command: the book's page draws models other than the paper's."""
    return bool(row["parameters"] or row["before"]) and not set(listed(row, "functions")) & set(PAPERS_VALUES)


def named(item: str) -> str:
    """State in words which item is meant: "figure 3", "table 1", or "figures 1c-e"."""
    if item.startswith("T"):
        return f"table {item[1:]}"
    return f"figure{'s' if '-' in item else ''} {item}"


def map_page() -> str:
    """Write the map: what became of all items, one by one, and the commands."""
    rows = read_map()
    numbers = {state: sum(len(items_of(row)) for row in rows if row["state"] == state) for state in STATES}
    faithful = [row for row in rows if row["state"] == "faithful"]
    shown = Counter(by_command(row) for row in faithful for _ in items_of(row))
    instead = Counter(Path(row["page"]).parent.name for row in faithful if by_command(row) for _ in items_of(row))
    lost = {kind: _joined([row["item"] for row in rows if row["caption"] == kind]) for kind in ("lost", "partly lost")}
    return from_template(
        "paper-figures.md.jinja",
        numbers=numbers,
        own=shown[False],
        by_command=shown[True],
        others=", ".join(f"{count} for {NAMES.get(model, model)}" for model, count in instead.most_common()),
        lost=lost,
        items=_table(rows),
        commands=_commands(rows),
    )


def _table(rows: list[Row]) -> str:
    """Format one line per item: its content, its place here, its functions, and its state."""
    lines = []
    for row in rows:
        names, page = listed(row, "figures"), row["page"]
        target = f"../{page}.ipynb" if row["notebook"] else f"../{page}.md"
        places = [f"[{name}]({target})" for name in names or [Path(page).name]] if page else []
        folder = Path(page).parent.name
        where = ", ".join(places) + (f", of {NAMES.get(folder, folder)}" if page and by_command(row) else "")
        drawn = [f"{{py:func}}`{name} <{in_full(name)}>`" for name in listed(row, "functions")]
        note = f": {row['note']}" if row["note"] else ""
        # Entries of the index, by which the search of the book finds an item: of a number alone it makes nothing.
        items = ", ".join(f"{{index}}`{item} <!{named(item)}>`" for item in items_of(row))
        how = ", by a command not run here" if row["state"] == "faithful" and by_command(row) else ""
        lines.append((items, row["shows"], where, ", ".join(drawn), f"*{row['state']}*{how}{note}"))
    return table(("item", "what it shows", "drawn here", "by", "state"), lines)


def _commands(rows: list[Row]) -> dict[str, str]:
    """Return the commands of each notebook, each once, under the items that it draws."""
    drawn: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row["notebook"]:
            before = f".venv/bin/python {row['before']}\n" if row["before"] else ""
            command = f"{before}{command_of(row['notebook'], row['parameters'])}"
            drawn.setdefault(row["notebook"], {}).setdefault(command, []).append(named(row["item"]))
    return {
        notebook: "\n".join(f"# {', '.join(items)}\n{command}" for command, items in commands.items())
        for notebook, commands in drawn.items()
    }


def _joined(items: list[str]) -> str:
    """Write a list as a reader expects it."""
    kinds = {"figure": [item for item in items if not item.startswith("T")]}
    kinds["table"] = [item[1:] for item in items if item.startswith("T")]
    named = {f"{kind}{'s' * (len(found) > 1)}": found for kind, found in kinds.items() if found}
    return " and of ".join(f"{kind} {', '.join(found)}" for kind, found in named.items())
