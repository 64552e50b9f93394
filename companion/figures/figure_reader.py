"""Reader of the figures of an executed notebook or of a page, with their tables, from the HTML of `show`."""

import base64
import html
import io
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

import pandas as pd

FIGURE = re.compile(
    r'(?:<style>[^<]*</style>)?<figure class="tbc-figure"(?: data-drawn-by="(?P<drawn_by>[^"]*)")?>(?P<images>.*?)'
    r'<figcaption>(?P<caption>[^<]*?) (?:<a download="(?P<name>[^"]*)\.csv" href="data:text/csv[^,]*,'
    r'(?P<csv>[^"]*)">[^<]*</a>|\(data: [^)]*\))<span class="tbc-provenance">(?P<origin>[^<]*)</span></figcaption>'
    r"</figure>",
    re.DOTALL,
)
_IMAGE = re.compile(r'<img class="only-(light|dark)" src="data:image/(svg\+xml|png);base64,([^"]+)"')


class Shown(NamedTuple):
    """A figure as shown. One made for print has neither name nor table if the table is long."""

    markup: str
    name: str
    caption: str
    origin: str
    drawn_by: str
    csv: str
    images: str

    @property
    def opening(self) -> str:
        """First sentence of the caption."""
        return re.split(r"(?<=[.?!])\s", self.caption)[0]

    @property
    def table(self) -> pd.DataFrame:
        """Table under the figure."""
        return pd.read_csv(io.StringIO(self.csv), comment="#")

    @property
    def pictures(self) -> dict[str, tuple[str, bytes]]:
        """Format (svg or png) and content of the picture in each theme."""
        found = _IMAGE.finditer(self.images)
        return {one[1]: (one[2].partition("+")[0], base64.b64decode(one[3])) for one in found}


def figures_in(markup: str) -> Iterator[Shown]:
    """Iterate over the figures of a text."""
    for found in FIGURE.finditer(markup):
        texts = {name: html.unescape(found[name] or "") for name in ("name", "caption", "origin", "drawn_by")}
        yield Shown(found[0], **texts, csv=unquote(found["csv"] or ""), images=found["images"])
