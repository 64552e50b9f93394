"""Writes the table of every model type of transformers, and the counts above it, from data/families.csv."""

from __future__ import annotations

import csv
from collections import Counter

from markdown_table import plain, table

from coupling_lib import paths

OUTCOMES = ("exact", "wrong", "refused", "not tried")


def any_model_page() -> str:
    """Write the counts by mapping, and one row a type; `any-model.js` puts a search field above the second table."""
    with (paths.DATA / "families.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    counts = []
    for mapping in dict.fromkeys(row["mapping"] for row in rows):
        these = [row for row in rows if row["mapping"] == mapping]
        found = Counter(row["outcome"] for row in these)
        worst = max((float(row["exact_to"]) for row in these if row["outcome"] == "exact"), default=0.0)
        counts.append((mapping, str(len(these)), *(str(found[outcome]) for outcome in OUTCOMES), f"{worst:.0e}"))
    (version,) = {row["transformers"] for row in rows}
    head = ("mapping", "types ", *(f"{outcome} " for outcome in OUTCOMES), "worst of the exact ")
    types = [(f"`{row['type']}`", row["mapping"], f"**{row['outcome']}** {outcome_text(row)}") for row in rows]
    return "\n".join([
        f"The version of transformers is {version}.\n",
        table(head, counts),
        "## The types\n",
        table(("type", "mapping", "what came out"), types),
    ])  # fmt: skip


def outcome_text(row: dict[str, str]) -> str:
    """Write how a type is measured and how exactly, or why not."""
    if row["why"]:
        return plain(f"({row['class']}): {row['why']}" if row["class"] else row["why"])
    errors = f"Jacobians to {row['exact_to']}, states to {row['states_to']}"
    return f"`{row['class']}` by {row['route']}: {errors}"
