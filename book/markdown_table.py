"""Sets tables in Markdown, and texts of others so that a page shows them as they are."""

from __future__ import annotations

import re


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Sets a table in Markdown; a title that ends in a blank is aligned to the right, and bars in cells are escaped."""
    align = ["---:" if title.endswith(" ") else "---" for title in head]
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(head), align, *cells]) + "\n"


def plain(text: str) -> str:
    """Writes a text so that a page shows it as it is: what Markdown or HTML takes for markup becomes entities."""
    return re.sub(r"[^\w\s.,:;/()+-]", lambda found: f"&#{ord(found[0])};", text)
