"""Sets tables in Markdown, and texts of others so that a page shows them as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "c": ":---:", "r": "---:"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Format a table in Markdown, bars in its cells escaped."""
    # A title that ends in a blank is aligned to the right, or each by its letter; the last holds for all further ones.
    letters = align.ljust(len(head), align[-1]) if align else ["r" if title.endswith(" ") else "l" for title in head]
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, [_RULES[letter] for letter in letters], *cells]) + "\n"


def plain(text: str) -> str:
    """Write a text so that a page shows it as it is: what Markdown or HTML takes for markup becomes entities."""
    return re.sub(r"[^\w\s.,:;/()+-]", lambda found: f"&#{ord(found[0])};", text)


def lines_of(parts: Iterable[str]) -> str:
    """Format several texts in one cell, each on lines of its own that are indented after the first."""
    return " ".join(f'<span class="own-line">{part}</span>' for part in parts)
