r"""How a figure reaches its reader: in the theme of the page, with its data and where it came from.

A notebook cell ends in `show(...)`. The figure is drawn twice, for light and for dark pages, and the page shows the
one that suits it: the book, JupyterLab and plain notebooks alike, and always the light one on paper.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from urllib.parse import quote

import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from coupling_lib.figures import style

LARGEST_SVG = 400_000
"""Bytes above which a drawing is shown as an image of pixels (two per CSS pixel) instead of SVG."""

# The book sets data-theme on <html>, JupyterLab data-jp-theme-light on <body>; a page that says neither is light.
_CSS = """
.tbc-figure{margin:1em 0;text-align:center}
.tbc-figure img{max-width:100%;height:auto}
.tbc-figure .only-dark{display:none}
.tbc-figure figcaption{font-size:.875em;line-height:1.4;text-align:left}
.tbc-figure .tbc-provenance{display:block;margin-top:.4em;font-size:.85em;opacity:.8;overflow-wrap:anywhere}
html[data-theme=dark] .tbc-figure .only-light,body[data-jp-theme-light=false] .tbc-figure .only-light{display:none}
html[data-theme=dark] .tbc-figure .only-dark,body[data-jp-theme-light=false] .tbc-figure .only-dark{display:inline}
@media print{html body .tbc-figure img.only-light{display:inline!important}
html body .tbc-figure img.only-dark{display:none!important}}
"""


class BookFigure:
    """A figure ready for a page; its plain text is its name, so that records of a notebook do not change."""

    def __init__(self, name: str, data: str) -> None:
        self.name = name
        self.data = data

    def __repr__(self) -> str:
        return f"<figure {self.name}>"

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, object]]:
        record = {"scrapbook": {"name": self.name, "mime_prefix": ""}}
        return {"text/html": self.data, "text/plain": repr(self)}, record


def show(draw: Callable[[], Figure], data: pd.DataFrame, name: str, caption: str, provenance: str) -> BookFigure:
    """Draws a figure for light and dark pages and puts its data and its origin underneath."""
    images = []
    for theme in ("light", "dark"):
        with style.theme(theme):
            source = _data_address(draw())
        images.append(f'<img class="only-{theme}" src="{source}" alt="{html.escape(caption)}" width="720">')
    table = "data:text/csv;charset=utf-8," + quote(csv_text(data, name, provenance), safe=",:/-+@*()=")
    markup = (
        f'<style>{_CSS}</style><figure class="tbc-figure">{"".join(images)}'
        f"<figcaption>{html.escape(caption)} "
        f'<a download="{html.escape(name)}.csv" href="{table}">Data (CSV)</a>'
        f'<span class="tbc-provenance">{html.escape(provenance)}</span></figcaption></figure>'
    )
    return BookFigure(name, markup)


def csv_text(data: pd.DataFrame, name: str, provenance: str) -> str:
    """Writes a table as CSV that says where it comes from."""
    head = "".join(f"# {part}\n" for part in [f"figure {name}", *provenance.split(" · ")])
    return head + data.to_csv(index=False, float_format="%.5g", lineterminator="\n")


def remember(name: str, value: float | str) -> None:
    """Keeps a number for the prose of the book, without showing it here."""
    prefix = "application/papermill.record/"
    text = value if isinstance(value, str) else repr(float(value))
    record = {"scrapbook": {"name": name, "mime_prefix": prefix}}
    display({f"{prefix}text/plain": text}, raw=True, metadata=record)


def _data_address(figure: Figure) -> str:
    kind, picture = "svg+xml", style.save_svg(figure)
    if len(picture) > LARGEST_SVG:
        kind, picture = "png", style.save_png(figure)
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"
