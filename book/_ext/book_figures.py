"""Figures of notebooks as figures of the book: numbered, linked, described, with their pictures in files.

What `companion.figures.show` writes stands by itself in a notebook. In the book a figure that a chapter shows gets a
number, the same wherever it is shown; every figure gets an anchor `fig-NAME`, an alternative text that says what is
seen, and one line that unfolds to its source. `{numref}` names figures of chapters.
"""

from __future__ import annotations

import hashlib
import html
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import offers
from alt_text import alternative_text, kind_of
from docutils import nodes
from drawing import DARK, light
from myst_nb.ext.glue.crossref import read_glue_cache
from myst_nb.ext.glue.utils import PendingGlueReference
from panels import smallest, windows, written
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.osutil import relative_uri
from template import from_template

from companion.figures.figure_reader import Shown, figures_in

CHAPTERS = "book/"
WIDTH, VIEW_WIDTH, LEAST_TEXT = 720, 540, 10.0
"""Width of a figure in CSS pixels and in the units of its SVG; the least height of its text on a phone, in pixels."""
# The explorer's page shows a chapter's figure on paper and where no script runs.
_BORROWERS = ("book/explorer",)
_VIEW = re.compile(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"')


class Numbered(NamedTuple):
    """A figure of a chapter: its number, its home page and anchor, and the output of `show`."""

    number: int
    page: str
    anchor: str
    markup: str


class BookFigure(nodes.General, nodes.Element):
    """Node that holds the output of `show` for a figure of a chapter."""


class Hold(SphinxTransform):
    """Wrap every figure of a chapter, quoted from a notebook or written out, in a node with its anchor."""

    default_priority = 250

    def apply(self, **_: Any) -> None:
        """Find the figures, and store their names for the numbering."""
        page = self.env.docname
        if not page.startswith(CHAPTERS):
            return
        shown = _all_shown(self.env)[page] = []
        for node in list(self.document.findall(_holds_figure)):
            quoted = isinstance(node, PendingGlueReference)
            name = node.key if quoted else next(figures_in(node.astext())).name
            home = node.refdoc if quoted else page
            anchor = f"fig-{name}"
            if anchor in self.document.ids:
                anchor += f"-{Path(home).parent.name}"
            holder = BookFigure("", ids=[anchor], figure=name, home=home)
            node.replace_self(holder)
            holder += node
            self.document.ids[anchor] = holder
            shown.append((name, home, anchor, "" if quoted else node.astext()))


class Rewrite(SphinxPostTransform):
    """Rewrite the output of `show` once the pages of all figures are known."""

    default_priority = 20
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Rewrite every figure of a page."""
        page, taken = self.env.docname, set()
        for raw in list(self.document.findall(_shows)):
            (shown, *_), text = figures_in(raw.astext()), raw.astext()
            held = raw.parent if isinstance(raw.parent, BookFigure) else None
            home = held["home"] if held else page
            anchor = held["ids"][0] if held else f"fig-{shown.name}"
            if anchor in taken:
                raise ValueError(f"{page} shows the figure {shown.name!r} twice; name one of them otherwise")
            taken.add(anchor)
            made = text.replace(shown.markup, self._figure(shown, anchor, home), 1)
            raw.replace_self(nodes.raw("", made, format="html", classes=raw["classes"]))

    def _figure(self, shown: Shown, anchor: str, home: str) -> str:
        page, known = self.env.docname, numbers(self.env).get((shown.name, home))
        to, links, label = self.app.builder.get_relative_uri, [], ""
        if known:
            where = f"#{anchor}" if page == known.page else f"{to(page, known.page)}#{known.anchor}"
            chapter = "" if page == known.page else f", in {self.env.titles[known.page].astext().split(':')[0]}"
            label = f'<a class="tbc-number" href="{where}">Figure {known.number}{html.escape(chapter)}.</a> '
        else:
            links.append(f'<a href="#{anchor}">Link to this figure</a>')
        if home not in (page, "") and home in self.env.found_docs:
            links.append(f'<a href="{to(page, home)}#fig-{shown.name}">Notebook</a>')
        if entry := self.env.domains["py"].objects.get(shown.drawn_by):
            short = shown.drawn_by.removeprefix("companion.")
            links.append(f'Drawn by <a href="{to(page, entry.docname)}#{entry.node_id}"><code>{short}</code></a>')
        drawn, pictures, description = shown.pictures, files(shown), alternative(shown)
        self._write(drawn, pictures)
        drawing = drawn["light"][1].decode() if drawn["light"][0] == "svg" else ""
        # A narrower figure is shown narrower, so that all have words of one size.
        wide = float(_VIEW.search(drawn["light"][1])[1]) if drawing else VIEW_WIDTH
        cited = (known.page, known.anchor) if known else (page, anchor)
        number = f"Figure {known.number}" if known else ""
        return from_template(
            "figure.html.jinja",
            anchor=anchor,
            # The least width at which the smallest words are large enough.
            least=math.ceil(LEAST_TEXT * wide / smallest(drawing)),
            windows=written(windows(drawing), WIDTH / wide) if drawing else "",
            images=[(theme, _shape(content), pictures[theme]) for theme, (_, content) in drawn.items()],
            address=relative_uri(self.app.builder.get_target_uri(page), "_images/"),
            alternative=description,
            width=round(WIDTH * wide / VIEW_WIDTH),
            label=label,
            caption=html.escape(shown.caption),
            offers=offers.of_figure(self.app, page, shown, number, *cited, pictures["light"], description, links),
        )

    def _write(self, pictures: dict[str, tuple[str, bytes]], names: dict[str, str]) -> None:
        """Write the pictures of a figure; one of a notebook stands in a chapter as well."""
        folder = Path(self.app.outdir) / "_images"
        folder.mkdir(parents=True, exist_ok=True)
        for theme, (kind, content) in pictures.items():
            if "#" not in names[theme] and not (folder / names[theme]).exists():
                dark = pictures["dark"][1] if "#" in names.get("dark", "") else b""
                made = light(content, dark) if kind == "svg" else content
                (folder / names[theme]).write_bytes(made)
                if kind == "svg":
                    (folder / names[theme]).with_suffix(".js").write_text(offers.packed(names[theme], made))


def files(shown: Shown) -> dict[str, str]:
    """Return the name of a figure's picture file in each theme; a drawing has one, its dark colours by a suffix."""
    names = {theme: named(*picture) for theme, picture in shown.pictures.items()}
    if {kind for kind, _ in shown.pictures.values()} == {"svg"} and "dark" in names:
        names["dark"] = f"{names['light']}#{DARK}"
    return names


def alternative(shown: Shown) -> str:
    """Return the alternative text of a figure: its kind, opening and table, or the caption of a drawing."""
    if shown.origin.startswith("a drawing"):
        return html.escape(f"Drawing. {shown.caption}")
    table = shown.table
    return html.escape(f"{kind_of(table)}. {shown.opening} {alternative_text(table)}")


def named(kind: str, content: bytes) -> str:
    """Return a file name for a picture from its content, so that pages share the file."""
    return f"{hashlib.sha256(content).hexdigest()[:16]}.{kind}"


def _shape(content: bytes) -> str:
    """Return the aspect ratio of a drawing, for a browser to reserve its place; an empty text for pixels."""
    size = _VIEW.search(content[:2000])
    return f"{size[1].decode()} / {size[2].decode()}" if size else ""


def numbers(env: Any) -> dict[tuple[str, str], Numbered]:
    """Return the figures of the chapters."""
    return getattr(env, "book_figure_numbers", {})


def numbering(
    order: list[str],
    shown: dict[str, list[tuple[str, str, str, str]]],
    markup: Callable[[str, str], str],
    borrowers: tuple[str, ...] = (),
) -> dict:
    """Number figures in the order of the pages; the front page and others borrow those of chapters where they can."""
    borrowers = (order[0], *borrowers)
    later = {(name, home) for page in order if page not in borrowers for name, home, *_ in shown.get(page, ())}
    found: dict[tuple[str, str], Numbered] = {}
    for page in order:
        for name, home, anchor, text in shown.get(page, ()):
            if (name, home) not in found and not (page in borrowers and (name, home) in later):
                text = text or markup(name, home)
                if any(figures_in(text)):
                    found[name, home] = Numbered(len(found) + 1, page, anchor, text)
    return found


def _number(app: Any, env: Any) -> list[str]:
    folder = env.mystnb_config.output_folder

    def markup(name: str, home: str) -> str:
        return read_glue_cache(folder, home).get(name, {}).get("data", {}).get("text/html", "")

    env.book_figure_numbers = numbering(list(_reading_order(env)), _all_shown(env), markup, _BORROWERS)
    labels = env.domains["std"]
    for page in _all_shown(env):
        env.toc_fignumbers.setdefault(page, {})["figure"] = {}
    for one in env.book_figure_numbers.values():
        env.toc_fignumbers[one.page]["figure"][one.anchor] = (one.number,)
        labels.labels[one.anchor] = (one.page, one.anchor, f"Figure {one.number}")
        labels.anonlabels[one.anchor] = (one.page, one.anchor)
    return []


def _reading_order(env: Any, page: str | None = None) -> Iterator[str]:
    page = page or env.config.root_doc
    yield page
    for below in env.toctree_includes.get(page, ()):
        yield from _reading_order(env, below)


def _all_shown(env: Any) -> dict[str, list[tuple[str, str, str, str]]]:
    return vars(env).setdefault("book_figures_shown", {})


def _holds_figure(node: Any) -> bool:
    if isinstance(node, PendingGlueReference):
        return not node.inline and node.gtype != "text"
    return _shows(node)


def _shows(node: Any) -> bool:
    return isinstance(node, nodes.raw) and any(figures_in(node.astext()))


def _nothing(writer: Any, node: Any) -> None:
    """Write no element around a figure, which has its own."""


def setup(app: Any) -> dict[str, bool]:
    """Connect the two passes over the pages and the numbering between them."""
    app.add_enumerable_node(BookFigure, "figure", html=(_nothing, _nothing), latex=(_nothing, _nothing))
    app.add_transform(Hold)
    app.add_post_transform(Rewrite)
    # After Sphinx has numbered what it knows of.
    app.connect("env-get-updated", _number, priority=900)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
