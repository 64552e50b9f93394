"""Names of the library and of the companion in code lead to where they are documented: `cl.sweep`, `depth.draw_map`.

A highlighted name is linked if exactly one documented object can be meant: by the module or the room before its dot, or
by `cl`, which stands for the library. What is imported by its bare name is left as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

HOUSES = ("coupling_lib", "companion")
_NAME = re.compile(
    r'(?P<before><span class="n">(?P<owner>\w+)</span><span class="o">\.</span>)'
    r'(?P<name><span class="n">(?P<word>\w+)</span>)'
)


@cache  # one for all pages
def meant(documented: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """Give the full name that an owner and a word stand for, where there is one."""
    found: list[tuple[tuple[str, str], str]] = []
    for full in documented:
        first, *owners, word = full.split(".")
        if first in HOUSES:
            found += [((owner, word), full) for owner in owners or ["cl"]]
    often = Counter(pair for pair, _ in found)
    return {pair: full for pair, full in found if often[pair] == 1}


def linked(body: str, names: Mapping[tuple[str, str], str], address: Callable[[str], str]) -> str:
    """Link the names in a page's highlighted code; `address` gives where a full name is documented."""

    def link(found: re.Match[str]) -> str:
        full = names.get((found["owner"], found["word"]))
        if full is None:
            return found[0]
        return f'{found["before"]}<a class="cell-link" href="{address(full)}">{found["name"]}</a>'

    return _NAME.sub(link, body)


def _link_code(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    if document is None or "body" not in context:
        return
    objects = app.env.domaindata["py"]["objects"]

    def address(full: str) -> str:
        return f"{app.builder.get_relative_uri(page, objects[full].docname)}#{objects[full].node_id}"

    context["body"] = linked(context["body"], meant(tuple(objects)), address)


def setup(app: Any) -> dict[str, bool]:
    """Link when a page is written."""
    app.connect("html-page-context", _link_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
