"""A small book of a sweep: its figures, and a page on its measurements."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from coupling_lib.errors import CouplingError
from workflow.records import read, run_command


def pages(plan: dict[str, Any]) -> Path:
    """Write the sources of the book and build it."""
    root = Path(plan["root"])
    book = root / "book"
    shutil.rmtree(book, ignore_errors=True)
    book.mkdir(parents=True)
    for figure in plan["figures"]:
        shutil.copy(root / "figures" / f"{figure}.ipynb", book / f"{figure}.ipynb")
    (book / "index.md").write_text(front(plan), encoding="utf-8")
    toc = {"format": "jb-book", "root": "index", "chapters": [{"file": figure} for figure in plan["figures"]]}
    settings = {"title": f"Sweep {plan['name']}", "execute": {"execute_notebooks": "off"}, "only_build_toc_files": True}
    for name, content in (("_toc.yml", toc), ("_config.yml", settings)):
        (book / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    # As a file of Python: a system may refuse the first line of a program whose path is long.
    command = [sys.executable, str(Path(sys.executable).with_name("jupyter-book")), "build", str(book), "--all"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    page = book / "_build" / "html" / "index.html"
    if built.returncode or not page.is_file():
        last = [line for line in built.stderr.splitlines() if line.strip()][-1:]
        raise CouplingError(f"the book was not built ({''.join(last)[:200]}); run: jupyter-book build {book}")
    return page


def front(plan: dict[str, Any]) -> str:
    """Write the first page: a table of the measurements."""
    rows = []
    for name in plan["jobs"]:
        record = read(Path(plan["root"]) / "measured" / f"{name}.json")
        state = "untrained" if record["untrained"] else "trained"
        cells = [record["model"], record["revision"] or "", state, record["precision"], record["measure"]]
        cells += [record["version"], f"{record['prompts']} of {record['of']}", record["stopped"]]
        rows.append([_plain(str(cell)) for cell in cells])
    head = ["model", "revision", "network", "precision", "measure", "version", "prompts", "ended early"]
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"# Sweep {plan['name']}\n\nWhat was measured, and is shown on the pages that follow.\n\n{text}\n"


def _plain(text: str) -> str:
    """Escape a text so that it is shown literally: without markup, and within its cell."""
    text = html.escape(text.replace("\n", " "), quote=False)
    return re.sub(r"[\\`*_{}\[\]()#+!|<>$~-]", lambda found: f"&#{ord(found[0])};", text)


def _run(plan: str) -> str:
    """Build a small book of a sweep."""
    return f"the book of the sweep is {pages(read(plan))}"


if __name__ == "__main__":
    sys.exit(run_command(_run, "pages", plan=None))
