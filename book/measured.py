"""Writes the table of what was measured of which model. Part of `pages`, which writes it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from complete import pages

from coupling_lib import paths


def measured_page() -> str:
    """Writes which notebook was run for which model, as the table of contents lists them."""
    toc = yaml.safe_load((paths.ROOT / "_toc.yml").read_text(encoding="utf-8"))
    places = [Path(page) for page in pages(toc) if page.startswith("results/")]
    models = [place.parent.name for place in places if place.name == "index"]
    notebooks = dict.fromkeys(place.name for place in places if place.parent.name in models and place.name != "index")
    links = [f"[{model}](../results/{model}/index.md)" for model in models]
    lines = [f"| notebook | {' | '.join(links)} |", "| --- |" + " :---: |" * len(models)]
    for notebook in notebooks:
        cells = [
            f"[{notebook}](../results/{model}/{notebook}.ipynb)" if Path("results", model, notebook) in places else "–"
            for model in models
        ]
        lines.append(f"| {title(notebook)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def title(notebook: str) -> str:
    """Read a notebook's title from its text twin."""
    twin = (paths.ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")
    return re.search(r"^# # (.+)$", twin, re.MULTILINE)[1]
