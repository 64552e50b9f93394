"""Fills the page on citing: BibTeX of the paper, and of this copy of the companion with its version and commit.

A page asks for an entry by BIBTEX-OF- and its key in references.bib, or by BIBTEX-OF-COMPANION.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent


@cache  # one for all pages
def software() -> dict[str, Any]:
    """Read this software's citation."""
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def entry(key: str, bibliography: str) -> str:
    """Return one entry of a bibliography in BibTeX, unchanged."""
    found = re.search(rf"^@\w+\{{{re.escape(key)},.*?^\}}", bibliography, re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError(f"the bibliography has no entry {key!r}; name one of references.bib")
    return found[0]


def commit(root: Path = ROOT) -> str | None:
    """Return the commit that the book is built from, with a plus sign where files changed; None outside a clone."""
    git = ["git", "-C", str(root)]
    try:
        inside = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True)
        if inside.returncode or Path(inside.stdout.strip()).resolve() != root.resolve():
            return None
        named = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return named.stdout.strip() + ("+" if changed.stdout.strip() else "")


def companion(citation: dict[str, Any], of: str | None, part: str = "", **own: str) -> str:
    """Write this companion's entry from `CITATION.cff`: with DOI, day and address once it has them; or a part's."""
    day = str(citation.get("date-released", ""))
    fields = {
        "title": f"{{{citation['title']}}}",
        "author": " and ".join(f"{{{one['name']}}}" for one in citation["authors"]),
        "howpublished": citation["title"] if part else None,
        "version": citation["version"],
        "year": day[:4],
        "doi": citation.get("doi"),
        "url": citation.get("repository-code"),
        "note": f"commit {of}" if of else None,
    } | own
    given = {name: value for name, value in fields.items() if value}
    width = max(map(len, given))
    lines = ",\n".join(f"  {name:<{width}} = {{{value}}}" for name, value in given.items())
    kind, key = ("misc", part) if part else ("software", "transformer_block_coupling_companion")
    return f"@{kind}{{{key},\n{lines}\n}}"


def filled(text: str) -> str:
    """Insert entries at the marks of a page, BIBTEX-OF-COMPANION or BIBTEX-OF- and a key."""
    if "BIBTEX-OF-COMPANION" in text:
        text = text.replace("BIBTEX-OF-COMPANION", companion(software(), commit()))
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    return re.sub(r"BIBTEX-OF-(\w+)", lambda found: entry(found[1], bibliography), text)


def _fill(app: Any, page: str, source: list[str]) -> None:
    if "BIBTEX-OF-" in source[0]:
        source[0] = filled(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Fill in each page when it is read."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
