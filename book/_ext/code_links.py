"""Links from code to its documentation and back: names in cells and pages, as `cl.sweep`, and pages of source code.

A highlighted name is linked if exactly one documented object can be meant: by the module or the room before its dot, or
by `cl`, which stands for the library. What is imported by its bare name is left as it is. On pages of source code,
viewcode takes one name of a module for all that the module holds: where `coupling_lib` exports one of them, all links
back would lead to the package's own name for it, which only the exported ones are documented as.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping
from functools import cache
from typing import Any

HOUSES = ("coupling_lib", "companion")
_NAME = re.compile(
    r'(?P<before><span class="n">(?P<owner>\w+)</span><span class="o">\.</span>)'
    r'(?P<name><span class="n">(?P<word>\w+)</span>)'
)
_BACK = re.compile(r'(?P<before><a class="viewcode-back" href="[^"#]*#)(?P<anchor>[\w.]+)"')


@cache  # one for all pages
def unambiguous_names(documented: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """Return the full name that an owner and a word stand for, where there is one."""
    found: list[tuple[tuple[str, str], str]] = []
    for full in documented:
        first, *owners, word = full.split(".")
        if first in HOUSES:
            found += [((owner, word), full) for owner in owners or ["cl"]]
    often = Counter(pair for pair, _ in found)
    return {pair: full for pair, full in found if often[pair] == 1}


def linked(body: str, names: Mapping[tuple[str, str], str], address: Callable[[str], str]) -> str:
    """Link the names in a page's highlighted code; `address` maps a full name to the address of its documentation."""

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

    context["body"] = linked(context["body"], unambiguous_names(tuple(objects)), address)


def led_back(body: str, module: str, documented: Container[str]) -> str:
    """Redirect each link back to an undocumented name to the same name within the module."""

    def lead(found: re.Match[str]) -> str:
        anchor = found["anchor"]
        # What follows the name that viewcode took for the module, of which a part may be the exporting package.
        names = [anchor, *(f"{module}.{'.'.join(anchor.split('.')[at:])}" for at in range(1, anchor.count(".") + 1))]
        return f'{found["before"]}{next((name for name in names if name in documented), anchor)}"'

    return _BACK.sub(lead, body)


def _lead_back(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    if page.startswith("_modules/") and "body" in context:
        module = page.removeprefix("_modules/").replace("/", ".")
        context["body"] = led_back(context["body"], module, app.env.domaindata["py"]["objects"])


def _forget_unread(app: Any, env: Any) -> None:
    """Remove modules without source code from viewcode's list, which would link pages that it does not write."""
    modules = getattr(env, "_viewcode_modules", {})
    for name in [name for name, entry in modules.items() if not entry]:
        del modules[name]


def _index_the_library(app: Any, env: Any) -> None:
    """Leave the companion's names out of the index, which is of terms and of the library; the search finds them."""
    for entries in env.domaindata["index"]["entries"].values():
        entries[:] = [entry for entry in entries if not entry[2].startswith("companion.")]


def setup(app: Any) -> dict[str, bool]:
    """Connect the hooks that add links when a page is written."""
    app.connect("env-updated", _forget_unread)
    app.connect("env-updated", _index_the_library)
    app.connect("html-page-context", _lead_back)
    app.connect("html-page-context", _link_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
