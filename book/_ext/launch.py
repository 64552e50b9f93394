"""Features that need the repository's address: launch on Colab or Binder, live code, edit, issue, repository, comments.

The address is BOOK_REPOSITORY in the environment of the build (https://github.com/OWNER/NAME) or `repository: url` of
`_config.yml`; without one there are no buttons. What is launched lies on the branch `launch`, to which the workflow
*pages* pushes the book's notebooks, each as it ran for its model. On Colab the library is not installed, so that each
copy begins with a cell that installs it there. Live code (Thebe, on Binder) and comments (utterances, which are issues)
run scripts of others: a page loads them when its reader asks for them, and nothing before.
"""

from __future__ import annotations

import json
import os
import re
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from template import from_template

BRANCH = "launch"
COLAB, BINDER = "https://colab.research.google.com", "https://mybinder.org"
_GENERATED = re.compile(r"results/[\w-]+/index\.md")
_EXECUTED = re.compile(r"results/[\w-]+/([\w-]+)\.ipynb")


def options(address: str) -> dict[str, Any]:
    """Return the theme's options for a repository."""
    buttons = dict.fromkeys(("use_repository_button", "use_issues_button", "use_edit_page_button"), True)
    launched = {"colab_url": COLAB, "binderhub_url": BINDER, "notebook_interface": "jupyterlab", "thebe": True}
    place = {"repository_url": address, "repository_branch": BRANCH, "path_to_docs": ""}
    return {**place, **buttons, "launch_buttons": launched}


def comments(address: str) -> str:
    """Return the end of a page under which its comments open."""
    given = {"repo": urlsplit(address).path.strip("/"), "issue-term": "pathname", "theme": "preferred-color-scheme"}
    attributes = "".join(f' data-{name}="{escape(value)}"' for name, value in given.items())
    return f'<details class="reader-comments"{attributes}><summary>Comments</summary></details>\n'


def edited(url: str) -> str | None:
    """Return the text twin of an executed notebook; None for a page that is generated."""
    return None if _GENERATED.search(url) else _EXECUTED.sub(r"notebooks/\1.py", url)


def with_install(notebook: dict[str, Any], address: str) -> dict[str, Any]:
    """Add a first cell that installs the project, with all that it ships, where Colab runs the notebook."""
    lines = from_template("install.py.jinja", address=address).splitlines(keepends=True)
    cell = {"cell_type": "code", "execution_count": None, "id": "install", "metadata": {}, "outputs": []}
    return {**notebook, "cells": [{**cell, "source": lines}, *notebook["cells"]]}


def _take_address(app: Any, config: Any) -> None:
    given = os.environ.get("BOOK_REPOSITORY") or config.html_theme_options.get("repository_url") or ""
    config.book_repository = given.rstrip("/")
    if config.book_repository:
        config.html_theme_options.update(options(config.book_repository))
        config.thebe_config = {"repository_url": config.book_repository, "repository_branch": BRANCH}


def _edit_on_main(app: Any) -> None:
    """Separate the branch that readers propose changes to; the theme has one option for this and for launching."""
    for name in [name for name in app.config.html_context if name.endswith("_version")]:
        app.config.html_context[name] = "main"


def _lead_to_sources(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    for group in context.get("header_buttons", []):
        if group.get("label") == "source-buttons":
            for button in [one for one in group["buttons"] if one["label"] == "source-edit-button"]:
                button["url"] = edited(button["url"])
            group["buttons"] = [button for button in group["buttons"] if button["url"]]


def _comment(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    if app.config.book_repository and document is not None:
        app.add_js_file("comments.js", loading_method="defer")
        context["body"] += comments(app.config.book_repository)


def _finish(app: Any, failed: Exception | None) -> None:
    if failed or app.builder.name != "html" or not app.config.book_repository:
        return
    for path in (Path(app.outdir) / "_sources").rglob("*.ipynb"):
        notebook = with_install(json.loads(path.read_text(encoding="utf-8")), app.config.book_repository)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Connect the address, its effects on each page, and the copies for launching."""
    app.add_config_value("book_repository", "", "html")
    app.connect("config-inited", _take_address)
    app.connect("builder-inited", _edit_on_main, priority=900)
    app.connect("html-page-context", _lead_to_sources, priority=900)
    app.connect("html-page-context", _comment)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
