"""Writes what every chapter of the book has in common: the verdicts on its claims, and how to run it."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import claims
import public_decoders
from complete import executed
from named_numbers import remembered
from reproduce import duration, time_text
from template import from_template

from companion.tables import origin
from coupling_lib import paths

NAMES = public_decoders.NAMES | {"suite": "the suite"}
"""Names of models on pages, where not their aliases."""


def display_name(model: str) -> str:
    """Return the name of a network without the suffixes of its tuning and of its file format."""
    return NAMES.get(model, model).partition(" (")[0].removesuffix("-Instruct")


class Chapter(NamedTuple):
    """Requirements of a chapter's last section; `chapters.toml` defines each."""

    measured: list[str]
    drawn: list[str]
    further: Mapping[str, str] = MappingProxyType({})
    page: str = ""


CHAPTERS = {
    name: Chapter(**chapter)
    for name, chapter in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""Chapters by the name of their notebook."""


def page_of(chapter: str) -> str:
    """Return the page of a notebook; a page that has no notebook of its own goes by its name."""
    return CHAPTERS[chapter].page or chapter if chapter in CHAPTERS else chapter


PAGES = {page: [name for name in CHAPTERS if page_of(name) == page] for page in map(page_of, CHAPTERS)}
"""The notebooks of each page."""


def models_of(chapter: str) -> list[str]:
    """Return the folders of `results/` that have a chapter's notebook, in the order of the table of contents."""
    return [page.parent.name for page in executed() if page.name == chapter]


def in_full(name: str) -> str:
    """Return a function of `Chapter.measured` with its module."""
    return name if "." in name else f"coupling_lib.{name}"


def parameters_of(given: str) -> dict[str, str]:
    """Read the parameters of a notebook from NAME=VALUE, with blanks between them."""
    return dict(part.split("=", 1) for part in shlex.split(given))


def command_of(chapter: str, given: str) -> str:
    """Format a command as it is typed, from parameters as NAME=VALUE or a whole command after a `$`."""
    if given.startswith("$ "):
        return given[2:]
    return f".venv/bin/{origin.papermill_command(chapter, parameters_of(given))}"


def run_part(chapter: str, results: Path = paths.RESULTS) -> str:
    """Write the commands of a chapter: each in a block of its own, with its time and its results."""
    made, models = CHAPTERS[chapter], models_of(chapter)
    first = models[0]
    decoders = claims.DECODERS if first in claims.DECODERS else ()
    return from_template(
        "run.md.jinja",
        chapter=chapter,
        names={model: NAMES.get(model, model) for model in models},
        times={model: time_text(duration(results / model / f"{chapter}.ipynb")) for model in models},
        first=first,
        shipped=bool(decoders),
        absent=[NAMES[model] for model in decoders if not remembered(results / model / f"{chapter}.ipynb")],
        command=command_of(chapter, "" if first == "suite" else f"model={first}"),
        further=[(text, command_of(chapter, given)) for text, given in made.further.items()],
        measured=", ".join(f"{{py:func}}`~{in_full(name)}`" for name in made.measured),
        drawn=", ".join(f"{{py:func}}`~companion.figures.{name}`" for name in made.drawn),
    )


def run_page(page: str, results: Path = paths.RESULTS) -> str:
    """Write the commands of all notebooks of a page."""
    names = PAGES[page]
    heads = {name: f"**{name.capitalize()}.** " if len(names) > 1 else "" for name in names}
    return "\n".join(heads[name] + run_part(name, results) for name in names)


def verdicts_part(page: str, results: Path = paths.RESULTS) -> str:
    """Write the verdicts on the claims that a page is about, in the words of the page of claims."""
    about: list[tuple[str, str, dict[str, list[str]]]] = []
    for claim, found in claims.judge_all(results):
        if page not in map(page_of, claim.get("chapters", [claim["notebook"]])):
            continue
        places: dict[str, list[str]] = {}
        for place, words in claims.PLACES.items():
            # Some claims are tried on measurements alone, some on the values that the paper prints alone.
            scopes = {test.get("scope", "here") for test in claim["test"]}
            verdict = claims.verdict_at(claim, found, place)
            judged = {one.model for one in claims.at_place(claim, found, place) or [] if one.decides}
            alone = place == "decoder" and len(judged) == 1
            if verdict and ("paper" if place == "paper" else "here") in scopes:
                places.setdefault(verdict, []).append("in one public decoder" if alone else words)
        about.append((claim["id"], claim["claim"], places))
    return from_template("verdicts.md.jinja", about=about)
