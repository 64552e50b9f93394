"""Buttons that need an address: with one they are there and lead to the right files, without one there are none."""

import os
import re
import subprocess
import sys
from html import unescape

import nbformat
import pytest
from installed import EXTRAS
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from coupling_lib import paths

ADDRESS = "https://github.com/someone/coupling"
BOOK = paths.ROOT / "book"
CONF = """
import sys
sys.path[:0] = [{book!r}, {ext!r}]
extensions = ["myst_nb", "sphinx_thebe", "launch"]
html_theme = "sphinx_book_theme"
html_static_path = [{static!r}]
nb_execution_mode = "off"
exclude_patterns = ["out"]
"""


def built(folder, address: str):
    """A book of three pages, of the kinds that this one has, built with that address."""
    model = folder / "results" / "tiny"
    model.mkdir(parents=True)
    (folder / "conf.py").write_text(CONF.format(book=str(BOOK), ext=f"{BOOK}/_ext", static=f"{BOOK}/_static"))
    (folder / "index.md").write_text("# Book\n\n```{toctree}\nresults/tiny/depth\nresults/tiny/index\n```\n")
    (model / "index.md").write_text("# Tiny\n")
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [new_markdown_cell("# Depth"), new_code_cell("model = 'tiny'")]
    nbformat.write(new_notebook(cells=cells, metadata=metadata), model / "depth.ipynb")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(folder), str(folder / "out")]
    subprocess.run(command, check=True, env={**os.environ, "BOOK_REPOSITORY": address})
    return folder / "out"


def outside(page) -> dict[str, str]:
    """Links of a page to other machines, by the tooltip of their button."""
    links = re.findall(r'<a href="(https://[^"]+)"[^>]*?title="([^"]+)"', page.read_text(encoding="utf-8"), re.DOTALL)
    return {" ".join(title.split()): unescape(address) for address, title in links if "sphinx" not in address}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    return built(tmp_path_factory.mktemp("with"), ADDRESS + "/")


def test_notebooks_are_launched_as_executed_and_edited_as_written(book):
    names = ("results/tiny/depth.html", "index.html", "results/tiny/index.html")
    notebook, page, made = (outside(book / name) for name in names)
    of = "results/tiny/depth.ipynb"
    assert notebook["Launch on Colab"] == f"https://colab.research.google.com/github/someone/coupling/blob/launch/{of}"
    assert notebook["Launch on Binder"] == f"https://mybinder.org/v2/gh/someone/coupling/launch?urlpath=lab/tree/{of}"
    assert notebook["Suggest edit"] == f"{ADDRESS}/edit/main/notebooks/depth.py"
    assert page["Suggest edit"] == f"{ADDRESS}/edit/main/index.md" and "Launch on Colab" not in page
    assert "Suggest edit" not in made
    assert {links["Source repository"] for links in (notebook, page, made)} == {ADDRESS}
    assert all(links["Open an issue"].startswith(f"{ADDRESS}/issues/new?") for links in (notebook, page, made))


def test_cells_and_comments_load_only_on_request(book):
    page = (book / "results" / "tiny" / "depth.html").read_text(encoding="utf-8")
    assert "initThebeSBT()" in page and "initThebeSBT()" not in (book / "index.html").read_text(encoding="utf-8")
    config = re.search(r'<script type="text/x-thebe-config">(.*?)</script>', page, re.DOTALL)[1]
    assert re.search(r'repo: "someone/coupling",\s+ref: "launch"', config)
    given = 'data-repo="someone/coupling" data-issue-term="pathname"'
    assert page.count(f'<details class="reader-comments" {given}') == 1 and "comments.js" in page
    # Nothing of another machine is loaded with the page.
    assert not re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="https?:', page)
    assert (book / "_static" / "comments.js").is_file()


def test_launched_notebook_installs_the_library_on_colab_only(book, monkeypatch):
    notebook = nbformat.read(book / "_sources" / "results" / "tiny" / "depth.ipynb", as_version=4)
    nbformat.validate(notebook)
    install, *rest = [cell.source for cell in notebook.cells]
    assert rest == ["# Depth", "model = 'tiny'"]
    assert f"    !git clone --quiet --depth 1 {ADDRESS} checkout" in install.splitlines()
    extras = re.search(r'%pip install --quiet --editable "\.\[(.+)\]"', install)[1].split(",")
    assert set(extras) <= EXTRAS.keys()
    installing = re.sub(r"[!%]\w.*", "raise SystemExit", install)
    exec(installing, {})
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    with pytest.raises(SystemExit):
        exec(installing, {})


def test_without_an_address_pages_have_no_outside_links(tmp_path):
    out = built(tmp_path, "")
    assert [outside(out / name) for name in ("results/tiny/depth.html", "index.html")] == [{}, {}]
    assert "reader-comments" not in (out / "index.html").read_text(encoding="utf-8")
    assert len(nbformat.read(out / "_sources" / "results" / "tiny" / "depth.ipynb", as_version=4).cells) == 2
