"""The directive `explorer`: views of the explorer that a chapter offers, opened in the chapter when one is chosen.

Each line of it is the text of a view and, after a bar, its address on the explorer's page. Nothing of the explorer is
loaded before; on paper and without script the chapter's figure stands for it.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from template import from_template


def offered(lines: list[str], root: str) -> str:
    """Write views as HTML from lines of text, bar and address; the first is the explorer's default."""
    views = [[part.strip() for part in line.split("|")] for line in lines if line.strip()]
    if not views or any(len(view) != 2 or "=" not in view[1] for view in views):
        raise ValueError("the directive explorer takes lines such as: Blocks 3 and 4 | model=nano-neox&l=3&m=4")
    return from_template("views.html.jinja", views=views, root=root)


class Views(Directive):
    """Offer views of the explorer."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the views to HTML, and nothing to other formats."""
        page = self.state.document.settings.env.docname
        try:
            content = offered(list(self.content), "../" * page.count("/"))
        except ValueError as error:
            raise self.error(str(error)) from error
        return [nodes.raw("", content, format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("explorer", Views)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
