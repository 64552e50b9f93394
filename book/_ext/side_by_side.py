"""Lets Sphinx write pages on all cores: jupyter-book has no option for it, and half of a build is writing.

Pages are still read one after the other, since figures are numbered and glued over all of them.
"""

from __future__ import annotations

import os
from typing import Any


def _write_on_all_cores(app: Any, env: Any) -> list[str]:
    # One of the processes hands out the pages to the others.
    app.parallel = 1 + (os.cpu_count() or 1)
    return []


def setup(app: Any) -> dict[str, bool]:
    """Connects the choice, when all pages have been read."""
    app.connect("env-updated", _write_on_all_cores)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
