"""The book as files, without a browser: the parts that are generated, and after `make book` the pages."""

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import complete
import library
import links
import markdown_docstrings
import pages
import pandas as pd
import pytest
import template
import yaml
from browser import HTML, book_pages, requested, show
from executed import executed, figure
from links import built

from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.models.registry import entries
from coupling_lib.paths import ROOT


def test_contents_are_in_order_and_missing_pages_named(tmp_path):
    toc = yaml.safe_load("root: a\nparts: [{chapters: [{file: b, sections: [{file: c}, {file: d}]}, {file: e}]}]")
    assert complete.pages(toc) == ["a", "b", "c", "d", "e"]
    (tmp_path / "_toc.yml").write_text("root: a\nchapters: [{file: b/c}, {file: d}]")
    html = tmp_path / "_build" / "html"
    html.mkdir(parents=True)
    (html / "a.html").write_text("<p>")
    (html / "d.html").touch()
    assert complete.missing(tmp_path) == ["index.html", "b/c.html", "d.html"]


def test_broken_links_are_named_with_their_page(tmp_path):
    (tmp_path / "_modules").mkdir()
    (tmp_path / "_static").mkdir()
    (tmp_path / "a b.html").write_text('<p id="here"><a name="too">')
    (tmp_path / "index.html").write_text(
        '<a href="a%20b.html#here"><a href="a%20b.html#too"><a href="#top"><p id="top"><a href="https://x.org/none">'
        '<a href="a%20b.html#there"><img src="lost.png"><link href="a%20b.html">'
    )
    (tmp_path / "_modules" / "m.html").write_text('<a href="../index.html#top"><a href="../none.html">')
    (tmp_path / "_static" / "template.html").write_text('<a href="{{ pathto }}">')
    broken = ["_modules/m.html -> ../none.html", "index.html -> a%20b.html#there", "index.html -> lost.png"]
    assert links.all_broken(tmp_path) == broken


def test_template_with_a_missing_variable_raises():
    with pytest.raises(NameError, match="a template asks for 'root', which it is not given"):
        template.from_template("views.html.jinja", views=[("A", "l=1")])


def test_pages_list_models_cards_and_readings_of_coupling():
    page = pages.models_page()
    aliases = re.findall(r"^\| `([^`]+)` \| (?:\[|in this)", page, re.MULTILINE)
    assert sorted(aliases) == sorted(entry.alias for entry in entries())
    offered = re.findall(r"<\.\./(data/checkpoints/[\w-]+/README\.md)>", page)
    assert len(offered) == sum(entry.embedded for entry in entries()) == 4
    assert all((ROOT / name).is_file() for name in offered)
    rows = pages.variants_page().splitlines()[2:]
    assert [row.split("|")[1].strip(" `") for row in rows] == list(VARIANTS)
    assert {row.count("|") for row in rows} == {4}


def test_numbers_are_written_without_exponents_and_spare_digits():
    written = {None: "", 12: "12", 4096: "4096", 0.0015: "0.0015", 62.354: "62.35"}
    assert {value: pages.number(value, 4) for value in written} == written
    assert pages.number(0.00004096, 2) == "0.000041"


def test_model_page_shows_the_first_figure_per_notebook(tmp_path):
    table, names = pd.DataFrame({"block": [1, 2]}), {"suite": "another", "tokens-grid": "m", "tokens-pair": "m"}
    figures = [figure(name, table, f"model {model} (revision)") for name, model in names.items()]
    executed(tmp_path / "m" / "tokens.ipynb", figures=figures)
    shown = "## [Coupling across tokens](tokens.ipynb)\n\n```{glue} tokens-grid\n:doc: tokens.ipynb\n```"
    assert "\n".join(pages.model_page(tmp_path / "m", ["depth", "tokens"]).splitlines()[-5:]) == shown


def test_the_reference_covers_every_public_module_once():
    modules = re.findall(r"automodule:: (\S+)", "\n".join(make() for make in library.API.values()))
    files = [path for house in ("coupling_lib", "companion") for path in (ROOT / house).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    public = [name for name in names if "._" not in name and name not in ("coupling_lib", "companion")]
    assert sorted(modules) == sorted(public)


def test_markdown_docstrings_become_what_sphinx_reads():
    markdown = {
        "Norm `|x|` of $x_i$, or |y|.": r"Norm ``|x|`` of :math:`x_i`, or \|y\|.",
        "the `V`s": r"the ``V``\ s",
        "J_ is `f_`": r"J\_ is ``f_``",
        "Seen at hub id@commit.": r"Seen at hub id\@commit.",
        "See :func:`f` and ``g``.": "See :func:`f` and ``g``.",
        "Costs\n- one\n- two": "Costs\n\n- one\n- two",
        "Say $$a\n  = b$$ then.": "Say\n\n.. math:: a = b\n\nthen.",
        "Use:\n\n    J @ V  # $\n\nEnd `x`.": "Use:\n\n::\n\n    J @ V  # $\n\nEnd ``x``.",
        "Example:\n    >>> f(`x`)\n    |1|\n\nAfter |": "Example:\n    >>> f(`x`)\n    |1|\n\nAfter \\|",
    }
    assert {text: markdown_docstrings.to_restructured_text(text) for text in markdown} == markdown


def on_pages(wrong: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is wrong on pages of the book; all pages in one process, so that each is parsed once."""
    found = {page.relative_to(HTML).as_posix(): wrong(page) for page in book_pages()}
    return {page: faults for page, faults in found.items() if faults}


@pytest.mark.browser
def test_pages_render_whole_without_network_and_link_safely():
    unset = re.compile(r"<p>[^<]*\$\\\S+|<p>(?:(?!</p>).)*[a-z,]</p>\s*<p>\S+", re.DOTALL)

    def wrong(page: Path) -> list[str]:
        text = page.read_text(encoding="utf-8")
        loaded = [address for address in built(page).loads if urlsplit(address).scheme not in ("", "data")]
        insecure = [link for link in built(page).links if urlsplit(link).scheme == "http"]
        return [*loaded, *insecure, *unset.findall(text), *re.findall(r"unpkg|jsdelivr|cdnjs|googleapis", text)]

    assert on_pages(wrong) == {} and links.all_broken(HTML) == []
    assert "book/index.html" in (HTML / "index.html").read_text(encoding="utf-8")


@pytest.mark.browser
def test_figures_and_tables_are_described_and_offer_data():
    def lacking(page: Path) -> Iterator[str]:
        text = page.read_text(encoding="utf-8")
        figures = re.findall(r'<figure class="tbc-figure"[^>]*>.*?</figure>', text, re.DOTALL)
        if page.stem in ("depth", "index") and not figures:
            yield "figures"
        data, origin = r'<a [^>]*download="[\w-]+\.(csv|csv\.gz)"', r'class="tbc-provenance">[^<]{20,}<'
        for markup in figures:
            for part in (data, origin, "@misc{coupling-", "&lt;figcaption&gt;", "data sha256 "):
                if not re.search(part, markup):
                    yield f"{part}: {markup[:80]}"
            described = re.findall(r'<img [^>]*class="only-(?:light|dark)"[^>]*alt="([^"]{10,})"', markup)
            # What is seen, not the caption once more.
            (caption,) = re.findall(r'class="tbc-caption">(?:<a [^>]*>[^<]*</a> )?(.*?)</div>', markup, re.DOTALL)
            if len(described) != 2 or caption in described:
                yield f"description: {markup[:80]}"
        tables = re.findall(r'<table[^>]*class="[^"]*\b(?:table|dataframe)\b[^>]*>\s*<thead', text)
        anchors = re.findall(r'<table id="(table-[^"]+)"', text)
        if {len(tables), len({*anchors}), text.count("Cite this table</summary>")} != {len(anchors)}:
            yield f"citations of tables: {anchors}"

    assert on_pages(lambda page: list(lacking(page))) == {}


def origins(page: Path) -> list[str]:
    return re.findall(r'class="tbc-provenance">([^<]*)<', page.read_text(encoding="utf-8"))


@pytest.mark.browser
@pytest.mark.parametrize("model", ["nano-neox", "smollm2-135m"])
def test_model_pages_show_figures_of_that_model(model):
    # The schematic shows no model.
    measured = [origin for origin in origins(HTML / "results" / model / "depth.html") if origin.startswith("model ")]
    assert measured and all(f"model {model}" in origin for origin in measured), measured


@pytest.mark.browser
@pytest.mark.parametrize("model", ["nano-neox", "smollm2-135m", "nano-vit", "nano-vit-sd"])
def test_model_index_shows_one_figure_per_notebook(model):
    folder = HTML / "results" / model
    notebooks = [path for path in folder.glob("*.html") if path.name != "index.html"]
    found = origins(folder / "index.html")
    assert len(found) == len(notebooks) >= 1
    assert all(origin.startswith(f"model {model} ") for origin in found), found


@pytest.mark.browser
def test_site_pages_and_their_files_keep_within_limits():
    # Of these, 9 are the drawings, a third of that packed for a page on a disk to save as pixels, 7 the data of the
    # explorer (half of them the traceless part's), 6 the model that runs in a page, and 5 the sources of the library.
    assert sum(path.stat().st_size for path in HTML.rglob("*") if path.is_file()) < 42_000_000
    shared = ("_static/", "searchindex.js")  # what every page loads is read once
    alone, sizes = {}, {}
    for page in HTML.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        own = {(page.parent / unquote(part)).resolve() for part in re.findall(r' (?:src|href)="([^"#?:]+)', text)}
        own = {file for file in own if file.is_file() and file.suffix in (".svg", ".png", ".js", ".gz", ".csv")}
        own = {file for file in own if not file.relative_to(HTML).as_posix().startswith(shared)}
        name = page.relative_to(HTML).as_posix()
        alone[name] = page.stat().st_size
        sizes[name] = alone[name] + sum(file.stat().st_size for file in own)
    assert len(sizes) > 40 and {name: size for name, size in alone.items() if size > 1_500_000} == {}
    assert {name: size for name, size in sizes.items() if size > 3_000_000} == {}


@pytest.mark.browser
def test_the_front_page_loads_at_most_800_kilobytes(tab):
    with requested(tab) as loaded:
        show(tab, HTML / "book" / "index.html")
    files = {Path(unquote(urlsplit(address).path)) for address in loaded if address.startswith("file:")}
    assert len(files) > 10
    # Every server packs text; pictures that are drawn in text are text too.
    packed = {path.name: len(gzip.compress(path.read_bytes())) for path in files}
    assert sum(packed.values()) < 800_000, sorted(packed.items(), key=lambda one: -one[1])[:5]
