"""Fills the page on citing: BibTeX of the paper, and of this copy of the companion with its version and commit.

The directives are `bibtex-of-paper` (its argument is the key in references.bib) and `bibtex-of-companion`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from docutils.parsers.rst import Directive

ROOT = Path(__file__).resolve().parent.parent.parent


def entry(key: str, bibliography: str) -> str:
    """Gives one entry of a bibliography.

    Args:
        key: its key.
        bibliography: BibTeX.

    Returns:
        the entry as it stands there.

    Raises:
        ValueError: if there is none of that key.
    """
    found = re.search(rf"^@\w+\{{{re.escape(key)},.*?^\}}", bibliography, re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError(f"the bibliography has no entry {key!r}; name one of references.bib")
    return found[0]


def commit(root: Path = ROOT) -> str | None:
    """Names the commit that the book is built from.

    Args:
        root: the project.

    Returns:
        twelve digits, with a plus sign behind them where files were changed since; None outside of a clone.
    """
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


def companion(citation: dict[str, Any], of: str | None) -> str:
    """Writes the entry of this companion.

    Args:
        citation: the content of `CITATION.cff`.
        of: the commit, if it is known.

    Returns:
        BibTeX, with the DOI, the day and the address of the release once `CITATION.cff` has them.
    """
    day = str(citation.get("date-released", ""))
    fields = {
        "title": f"{{{citation['title']}}}",
        "author": " and ".join(f"{{{one['name']}}}" for one in citation["authors"]),
        "version": citation["version"],
        "year": day[:4],
        "doi": citation.get("doi"),
        "url": citation.get("repository-code"),
        "note": f"commit {of}" if of else None,
    }
    given = {name: value for name, value in fields.items() if value}
    width = max(map(len, given))
    lines = ",\n".join(f"  {name:<{width}} = {{{value}}}" for name, value in given.items())
    return f"@software{{transformer_block_coupling_companion,\n{lines}\n}}"


class _Entry(Directive):
    """A literal block of BibTeX; what it says depends on files that Sphinx does not watch, so they are named to it."""

    reads = ""

    def run(self) -> list[nodes.Node]:
        file = ROOT / self.reads
        self.state.document.settings.record_dependencies.add(str(file))
        text = self.written(file.read_text(encoding="utf-8"))
        return [nodes.literal_block(text, text, language="bibtex")]


class _Paper(_Entry):
    required_arguments = 1
    reads = "book/references.bib"

    def written(self, text: str) -> str:
        return entry(self.arguments[0], text)


class _Companion(_Entry):
    reads = "CITATION.cff"

    def written(self, text: str) -> str:
        return companion(yaml.safe_load(text), commit())


def setup(app: Any) -> dict[str, bool]:
    """Registers the directives.

    Args:
        app: the Sphinx application.

    Returns:
        what Sphinx asks of an extension.
    """
    app.add_directive("bibtex-of-paper", _Paper)
    app.add_directive("bibtex-of-companion", _Companion)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
