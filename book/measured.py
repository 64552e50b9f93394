"""Writes the table of what was measured of which model. Part of `pages`, which writes it."""

from __future__ import annotations

import re

from complete import executed
from markdown_table import table

from coupling_lib import paths


def measured_page() -> str:
    """Writes which notebook was run for which model, as the table of contents lists them."""
    places = executed()
    models = [place.parent.name for place in places if place.name == "index"]
    notebooks = dict.fromkeys(place.name for place in places if place.parent.name in models and place.name != "index")
    links = [f"[{model}](../results/{model}/index.md)" for model in models]
    rows = []
    for notebook in notebooks:
        given = {place.parent.name for place in places if place.name == notebook}
        cells = (f"[{notebook}](../results/{m}/{notebook}.ipynb)" if m in given else "–" for m in models)
        rows.append((title(notebook), *cells))
    return table(("notebook", *links), rows, align="lc")


def title(notebook: str) -> str:
    """Read a notebook's title from its text twin."""
    twin = (paths.ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")
    return re.search(r"^# # (.+)$", twin, re.MULTILINE)[1]
