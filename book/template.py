"""Fills the templates of `book/templates`: the text of generated pages and parts of pages."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from markdown_table import table
from sphinx.util.template import FileRenderer

_PAGES = FileRenderer([str(Path(__file__).with_name("templates"))])
_PAGES.env.trim_blocks = _PAGES.env.lstrip_blocks = _PAGES.env.keep_trailing_newline = True
_PAGES.env.filters["e"] = html.escape
_PAGES.env.globals |= {"table": table}


def _unknown(name: str = "", **_: Any) -> None:
    raise NameError(f"a template asks for {name!r}, which it is not given")


_PAGES.env.undefined = _unknown


def from_template(name: str, **given: Any) -> str:
    """Fill a template with the values given; an undefined name is an error."""
    return _PAGES.render(name, given)
