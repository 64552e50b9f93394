"""The directive `explorer`: views of the explorer that a chapter offers, opened in the chapter when one is chosen.

Each line of it is the text of a view and, after a bar, its address on the explorer's page. Nothing of the explorer is
loaded before; on paper and without script the chapter's figure stands for it.
"""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive


def offered(lines: list[str], root: str) -> str:
    """Writes views as HTML from lines of text, bar and address; the first is what the explorer falls back to."""
    views = [[part.strip() for part in line.split("|")] for line in lines if line.strip()]
    if not views or any(len(view) != 2 or "=" not in view[1] for view in views):
        raise ValueError("the directive explorer takes lines such as: Blocks 3 and 4 | model=nano-neox&l=3&m=4")
    first = html.escape(views[0][1])
    page = f"{root}book/explorer.html"
    item = '<li><a href="{}" data-view="{}">{}</a></li>'
    links = "".join(item.format(page, html.escape(to), html.escape(said)) for said, to in views)
    return (
        f'<link rel="stylesheet" href="{root}_static/explorer/explorer.css">\n'
        f'<div class="cx-play">\n<ul class="cx-views" aria-label="Views of the explorer">{links}</ul>\n'
        f'<div id="coupling-explorer" data-view="{first}"></div>\n</div>\n'
        f'<script src="{root}_static/address.js"></script>\n'
        f'<script src="{root}_static/explorer/start.js"></script>\n'
    )


class Views(Directive):
    """Offers views of the explorer."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Gives the views to HTML, and nothing to other formats."""
        page = self.state.document.settings.env.docname
        try:
            content = offered(list(self.content), "../" * page.count("/"))
        except ValueError as error:
            raise self.error(str(error)) from error
        return [nodes.raw("", content, format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("explorer", Views)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
