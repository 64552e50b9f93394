"""Reads the text of a page: its sentences, headings, titles, captions and cells as plain text, in their order.

A number that is put in from a notebook reads `{}`. Markup, links and line breaks are gone, so that a sentence is the
same however it is set.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

from companion.figures.figure_reader import figures_in

EXTENSIONS = {"amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"}

# Directives whose text is read, and those whose argument is a title.
_TITLED = {"admonition"}
_HOLDS_TEXT = {"admonition", "note", "tip", "warning", "important", "dropdown", "div", "margin"}
# A role that shows something else than its text.
_SHOWN = {"glue:text": "{}", "cite:p": "", "cite:t": "", "numref": "Figure {}"}
# A full stop that ends no sentence.
_SHORT = re.compile(r"(?:\b(?:e\.g|i\.e|vs|al|cf|approx|Fig|No)\.)$")


def sentences_of(markdown: str) -> list[str]:
    """Extract the sentences of a page's source; a heading, a title and a cell of a table count as one."""
    return [sentence for text in _texts(_parser().parse(markdown)) for sentence in split(text)]


def split(text: str) -> list[str]:
    """Cut a paragraph into sentences."""
    found: list[str] = []
    begun = ""
    for part in re.split(r"(?<=[.?!]) +|(?<=[.?!][)\"”’*]) +", text):
        # A quotation that ends in a full stop may stand in the middle of a sentence.
        if begun and not (_SHORT.search(begun) or (begun.endswith(('."', ".”")) and part[:1].islower())):
            found.append(begun)
            begun = ""
        begun = f"{begun} {part}".lstrip()
    return [*found, begun] if begun else found


def _texts(tokens: list[Token]) -> Iterator[str]:
    """Yield the text of every paragraph, heading, cell and title."""
    for token in tokens:
        if token.type == "inline":
            yield _tidy(_plain(token.children or []))
        elif token.type in ("fence", "colon_fence"):
            name, _, title = token.info.strip().partition(" ")
            name = name.strip("{}:")
            if name in _TITLED and title:
                yield from _texts(_parser().parse(title))
            if name == "glossary":
                # A term stands on a line of its own, its definition indented below; a blank line makes both paragraphs.
                content = re.sub(r"^(?! |$)(.*)$", r"\1\n", token.content, flags=re.MULTILINE)
                yield from _texts(_parser().parse(re.sub(r"^ +", "", content, flags=re.MULTILINE)))
            elif name in _HOLDS_TEXT:
                yield from _texts(_parser().parse(re.sub(r"\A(?::[\w-]+:.*\n)+", "", token.content)))
            elif name == "raw":
                yield from _shown(token.content)
        elif token.type == "html_block":
            yield from _shown(token.content)


def _shown(markup: str) -> Iterator[str]:
    """Yield the text of HTML; of a figure its caption."""
    yield from (_tidy(figure.caption) for figure in figures_in(markup))
    markup = re.sub(r"<(script|style|svg|table|figure)\b.*?</\1>", "", markup, flags=re.DOTALL)
    # Every other element ends the sentence before it.
    markup = re.sub(r"</?(?:b|i|em|strong|code|span|a|sub|sup)\b[^>]*>", "", markup)
    yield from filter(None, (_tidy(html.unescape(part)) for part in re.split(r"<[^>]+>", markup)))


def _plain(tokens: list[Token]) -> str:
    """Write a line's text without its markup."""
    parts = []
    for token in tokens:
        match token.type:
            case "text" | "code_inline":
                parts.append(token.content)
            case "softbreak" | "hardbreak":
                parts.append(" ")
            case "math_inline" | "math_inline_double":
                parts.append(f"${token.content}$")
            case "myst_role":
                name = token.meta["name"]
                words = re.sub(r"\s*<[^<>]*>$", "", token.content).removeprefix("~").removeprefix("!")
                parts.append(_SHOWN.get(name, words))
            case "image":
                parts.append(token.content)
    return "".join(parts)


def _tidy(text: str) -> str:
    """Write a text in one line, without what a role without text leaves before a full stop."""
    return re.sub(r" +([.,;:])(?= |$)", r"\1", " ".join(text.split()))


@functools.cache
def _parser() -> MarkdownIt:
    return create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), RendererHTML)
