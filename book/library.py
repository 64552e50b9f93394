"""Writes the pages of both houses: what Sphinx documents on each, and where an old address of the one page leads."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from functools import partial

from template import from_template

import companion
import coupling_lib

# Rooms of the library and of the companion, each with a page of its own in `book/api`; the last holds every module
# outside of a folder.
ROOMS = tuple(
    "models inputs blocks jacobian svd measures store datasets metrics figures tables training notebook ground".split()
)


def calls_page() -> str:
    """Write the directives that document what `coupling_lib` exports, and what mends old addresses."""
    order = [module for room in ROOMS for module in _modules(room)]
    exported = _exported()
    lines = ["## The calls\n"]
    for name in sorted(exported, key=lambda name: order.index(exported[name].__module__)):
        kind = "class" if inspect.isclass(exported[name]) else "function"
        lines += _directive(f"auto{kind}:: coupling_lib.{name}", [":members:"] if kind == "class" else [])
    ground = json.dumps([module.rpartition(".")[2] for module in _modules("ground")])
    return "\n".join([*lines, from_template("moved.html.jinja", ground=ground)])


def api_page(room: str) -> str:
    """Write the directives that document the modules of a room, every public one."""
    lines = []
    for module in _modules(room):
        # What `coupling_lib` exports is documented there, and what scikit-learn adds to its estimators by itself.
        # A module's own function of an exported name, as the core's `trace` of tensors, is left to its source code.
        own = vars(importlib.import_module(module))
        here = [*(name for name in _exported() if name in own), "set_score_request"]
        options = [":members:", f":exclude-members: {', '.join(here)}"]
        lines += [f"## {module.partition('.')[2]}\n", *_directive(f"automodule:: {module}", options)]
    return "\n".join(lines)


def _exported() -> dict[str, object]:
    """Return the functions and classes that `coupling_lib` exports, by name."""
    named = {name: getattr(coupling_lib, name) for name in coupling_lib.__all__}
    return {name: thing for name, thing in named.items() if inspect.isclass(thing) or inspect.isfunction(thing)}


def _modules(room: str) -> list[str]:
    """List the public modules of a room, data apart."""
    houses = (coupling_lib, companion)
    walked = [one.name for house in houses for one in pkgutil.walk_packages(house.__path__, f"{house.__name__}.")]
    public = [name for name in walked if "._" not in name and name != "coupling_lib.data"]
    return [name for name in public if (name.split(".")[1] if name.split(".")[1] in ROOMS else "ground") == room]


def _directive(line: str, options: list[str]) -> list[str]:
    return ["```{eval-rst}", f".. {line}", *(f"   {option}" for option in options), "```", ""]


API = {"api/calls": calls_page, **{f"api/{room}": partial(api_page, room) for room in ROOMS}}
