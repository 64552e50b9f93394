"""Leads from the source code of the library back to where each of its names is documented.

viewcode takes one name of a module for all that the module holds: where `coupling_lib` exports one of them, all links
back would lead to the package's own name for it, which only the exported ones are documented as.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

_BACK = re.compile(r'(?P<before><a class="viewcode-back" href="[^"#]*#)(?P<anchor>[\w.]+)"')


def led_back(body: str, module: str, documented: Container[str]) -> str:
    """Lead each link back to a name that is not documented as such to the same name within the module."""

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
    """Take modules without source code off the list of modules: viewcode would link pages that it does not write."""
    modules = getattr(env, "_viewcode_modules", {})
    for name in [name for name, entry in modules.items() if not entry]:
        del modules[name]


def setup(app: Any) -> dict[str, bool]:
    """Correct the pages of source code when they are written."""
    app.connect("env-updated", _forget_unread)
    app.connect("html-page-context", _lead_back)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
