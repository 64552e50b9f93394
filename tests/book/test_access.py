"""For everyone: names of controls, the keyboard's focus, paper, no script; and that faults in these are found."""

from pathlib import Path

import axe
import pages
import pytest
import theme
from browser import HTML, book_pages, pages_by_kind, show
from complete import executed
from docutils import nodes
from docutils.utils import new_document

FRONT, NOTEBOOK = HTML / "book" / "index.html", HTML / "results" / "nano-neox" / "depth.html"
FAINT, WITHOUT_SCRIPT = (
    Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8") for name in ("faint", "without_script")
)


def test_controls_are_named_as_seen_notebooks_by_model():
    link = '<a class="current reference internal" href="#">R&amp;D <em>x</em></a><details open="open">'
    chevron = '<span class="toctree-toggle" role="presentation"></span></summary>'
    search = '<button class="btn search-button-field x" title="Search"{} data-a="b">Search</button>'
    toggle = '<i class="theme-switch fa-sun  fa-lg" data-mode="light"{}></i><i class="other" title="Light"></i>'
    cited = '<div role="list" class="citation-list"><div class="citation" role="{}">A</div></div>'
    named = {
        f"{link}<summary>{chevron}": f'{link}<summary aria-label="Pages below R&amp;D x">{chevron}',
        '<summary aria-label="Toggle hidden content">Show</summary>': "<summary>Show</summary>",
        search.format(' aria-label="Search"'): search.format(""),
        toggle.format(' title="Light"'): toggle.format(""),
        cited.format("doc-biblioentry"): cited.format("listitem"),
    }
    before, after = "".join(named), "".join(named.values())
    assert theme.accessible(before) == theme.accessible(after) == after
    known = {"results/m/index", "results/m/depth", "results/suite/generalization", "book/depth"}
    assert {page for page in known if theme.model_of(page, known)} == {"results/m/depth"}
    assert theme.model_of("results/m/depth", known) == "m"
    document = new_document("a")
    document += nodes.section("", nodes.title("", "Coupling"), nodes.section("", nodes.title("", "Below")))
    app = type("App", (), {"env": type("Env", (), {"docname": "results/m/depth", "found_docs": known})})
    theme._name(app, document)
    assert [title.astext() for title in document.findall(nodes.title)] == ["Coupling: m", "Below"]


def test_one_table_lists_notebooks_measured_for_each_model():
    head, _, *rows = pages.measured_page().splitlines()
    places = [f"results/{page}" for page in executed()]
    models = [page.split("/")[1] for page in places if page.endswith("/index")]
    assert [cell.split("]")[0].strip(" [") for cell in head.split("|")[2:-1]] == models
    linked = {part.split(".ipynb)")[0] for row in rows for part in row.split("(../")[1:]}
    assert linked == {page for page in places if not page.endswith("/index") and page.split("/")[1] in models}
    assert {row.count("|") for row in rows} == {len(models) + 2} and rows[0].startswith("| Coupling across depth |")


@pytest.mark.browser
@pytest.mark.thorough
def test_pages_made_by_sphinx_are_accessible(tab):
    # Addresses that only lead elsewhere are left out.
    signs = ("<title>This page moved", 'http-equiv="Refresh"')
    pages = {page: page.read_text(encoding="utf-8") for page in HTML.glob("*.html")}
    leading = {page for page, text in pages.items() if any(sign in text for sign in signs)}
    made = {*HTML.glob("*.html")} - {*book_pages()} - leading
    assert {"search", "genindex"} <= {page.stem for page in made}
    for page in sorted(made):
        show(tab, page)
        assert axe.findings(tab) + axe.findings(tab, "dark", colours_alone=True) + axe.unseen(tab) == [], page.name


@pytest.mark.browser
def test_keyboard_navigates_pages_with_visible_focus(tab):
    show(tab, FRONT)
    # The link that skips the menu slides into sight.
    tab.add_style_tag(content="* { transition: none !important; scroll-behavior: auto !important }")
    where = """() => {
      const e = document.activeElement, box = e.getBoundingClientRect(), s = getComputedStyle(e);
      const inside = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
      return [e.textContent.trim(), inside, s.outlineStyle, parseFloat(s.outlineWidth)];
    }"""
    seen = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        seen.append(tab.evaluate(where))
    assert seen[0][0] == "Skip to main content" and len({text for text, *_ in seen}) > 20
    assert {tuple(step[1:]) for step in seen} == {(True, "solid", 3)}
    tab.keyboard.press("Control+k")
    tab.keyboard.type("glossary")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/search.html?q=glossary*")
    tab.locator("#search-results li a").first.press("Enter")
    tab.wait_for_url("**/methods.html*")
    assert tab.wrong == []


@pytest.mark.browser
@pytest.mark.parametrize("page", [pytest.param(FRONT, marks=pytest.mark.thorough), NOTEBOOK], ids=["front", "notebook"])
def test_dark_pages_print_in_the_light_theme(tab, page):
    tab.emulate_media(color_scheme="dark")
    show(tab, page)
    assert len(tab.evaluate(FAINT)) > 3
    tab.emulate_media(media="print", color_scheme="dark")
    tab.wait_for_function("document.documentElement.dataset.theme === 'light'")
    assert tab.evaluate(FAINT) == []
    light, dark = (tab.locator(f"figure.tbc-figure img.only-{theme}:visible").count() for theme in ("light", "dark"))
    assert light >= 1 and dark == 0
    tab.emulate_media(media="screen", color_scheme="dark")
    tab.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    noted = "addEventListener(kind, () => printed.push(document.documentElement.dataset.theme))"
    tab.evaluate(f"window.printed = []; for (const kind of ['beforeprint', 'afterprint']) {noted}")
    assert tab.pdf()[:5] == b"%PDF-"
    tab.wait_for_function("printed.length === 2")
    assert tab.evaluate("printed") == ["light", "dark"]


@pytest.mark.browser
@pytest.mark.thorough
@pytest.mark.parametrize("others", [False, True])
def test_pages_without_script_show_text_figures_and_tables(plain_tab, others):
    wrong = {}
    for page in pages_by_kind()[others]:
        plain_tab.goto(page.as_uri(), wait_until="load")
        shown = plain_tab.evaluate(WITHOUT_SCRIPT)
        if shown.pop("words") <= 20 or shown != {"title": True, "hidden": [], "images": 0, "double": 0}:
            wrong[page.relative_to(HTML).as_posix()] = shown
    assert wrong == {}


INSTEAD = {
    "explorer": {"#coupling-explorer tbody tr": 12, ".cx-static figure:visible": 1, "#own-prompt-here tbody tr": 4}
    | {"p:visible:text('needs JavaScript')": 2, "pre:has-text('cl.measure_depth(')": 2},
    "claims": {".claim:visible": 27, ".claim details:visible": 27, ".scorecard-line:visible": 3},
}
"""What stands without script for what one would make there."""


@pytest.mark.browser
@pytest.mark.parametrize("name", INSTEAD)
def test_pages_without_script_show_static_numbers_instead(plain_tab, name):
    plain_tab.goto((HTML / "book" / f"{name}.html").as_uri(), wait_until="load")
    assert {selector: plain_tab.locator(f"article {selector}").count() for selector in INSTEAD[name]} == INSTEAD[name]


FAULTY = """<!DOCTYPE html><html lang="en" data-theme="light"><title>A</title><style>
a:focus {{ outline: none }} p {{ color: #595959 }} html[data-theme=dark] body {{ background: #111 }}
</style><main><h1 style="color: #666">A</h1>{}<p style="opacity: 0.6">Faint</p><details><summary></summary>B</details>
<button aria-label="Go">Stop</button><a href="#x">C</a></main></html>"""


@pytest.mark.browser
def test_each_kind_of_accessibility_fault_is_found(tab, tmp_path):
    (tmp_path / "page.html").write_text(FAULTY.format("<p>Grey</p>" * 50), encoding="utf-8")
    show(tab, tmp_path / "page.html")
    found = axe.findings(tab)
    kinds = ["color-contrast", "label-content-name-mismatch", "summary-name"]
    assert sorted(line.split(":")[0] for line in found) == kinds
    dark = axe.findings(tab, "dark", colours_alone=True)
    # Two of the fifty paragraphs that look the same, and the faint one, whose look is another.
    assert [line.split(":")[0] for line in dark] == ["color-contrast"] * 3
    assert [line for line in axe.unseen(tab) if line.startswith("<a ")] == ['<a href="#x">C</a>']
