"""Writes the table of features: what books of this kind offer, and what this one does. Its source is features.toml."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from markdown_table import table
from template import from_template

MARKS = {"y": "yes", "ready": "ready for a public address", "p": "partly", "n": "no"}
"""What is said of this book."""


def features() -> dict[str, Any]:
    """Read the books and the features."""
    return tomllib.loads((Path(__file__).parent / "features.toml").read_text(encoding="utf-8"))


def status_page() -> str:
    """Write the count, the table and, below it, the rows that are not a plain yes."""
    known = features()
    rows = known["feature"]
    counted = Counter(row["here"] for row in rows)
    counts = ", ".join(f"{counted[mark]} {words}" for mark, words in MARKS.items())
    head = ["", "feature", "this book", *(f'<span class="book-name">{name}</span>' for name in known["books"])]
    lines, lacking = [], {}
    for number, row in enumerate(rows, start=1):
        here = row["shown"]
        if row["here"] in ("p", "n"):
            lacking[number], here = row, "[why](#what-is-missing-and-why)"
        lines.append((str(number), row["name"], f"**{row['here']}** {here}", *row["others"]))
    shown = table(head, lines, align="rllc").rstrip()
    return from_template(
        "status.md.jinja", rows=rows, counts=counts, features=shown, lacking=lacking, marks=MARKS, **known
    )
