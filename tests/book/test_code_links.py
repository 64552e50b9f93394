"""Names in code cells: what is linked, what is left, and that links of the built book arrive."""

from __future__ import annotations

import re

import code_links
import pytest

from coupling_lib import paths

DOCUMENTED = (
    "coupling_lib.sweep",
    "coupling_lib.Model",
    "coupling_lib.Model.n_blocks",
    "companion.figures.depth.draw_map",
    "companion.figures.depth.draw",
    "companion.figures.tokens.draw",
    "xarray.Dataset.sel",
)


def highlighted(owner: str, word: str) -> str:
    return f'<span class="n">{owner}</span><span class="o">.</span><span class="n">{word}</span>'


def test_ambiguous_names_are_not_linked():
    assert code_links.unambiguous_names(DOCUMENTED) == {
        ("cl", "sweep"): "coupling_lib.sweep",
        ("cl", "Model"): "coupling_lib.Model",
        ("Model", "n_blocks"): "coupling_lib.Model.n_blocks",
        ("figures", "draw_map"): "companion.figures.depth.draw_map",
        ("depth", "draw_map"): "companion.figures.depth.draw_map",
        ("depth", "draw"): "companion.figures.depth.draw",
        ("tokens", "draw"): "companion.figures.tokens.draw",
    }


def test_only_known_words_are_linked():
    body = f"{highlighted('cl', 'sweep')}({highlighted('texts', 'sel')}, cl.sweep)"
    link = '<a class="cell-link" href="api.html#coupling_lib.sweep"><span class="n">sweep</span></a>'
    names = {("cl", "sweep"): "coupling_lib.sweep"}
    found = code_links.linked(body, names, "api.html#{}".format)
    assert found == body.replace('<span class="n">sweep</span>', link)


@pytest.mark.browser
def test_built_code_links_to_the_library():
    page = paths.ROOT / "_build" / "html" / "results" / "nano-neox" / "depth.html"
    links = re.findall(r'class="cell-link" href="([^"#]+)#([^"]+)"', page.read_text(encoding="utf-8"))
    assert ("../../book/api.html", "coupling_lib.sweep") in links
    assert ("../../book/api/figures.html", "companion.figures.depth.draw_map") in links


@pytest.mark.browser
def test_index_lists_terms_and_library_names():
    index = (paths.ROOT / "_build" / "html" / "genindex.html").read_text(encoding="utf-8")
    assert "#coupling_lib.metrics." in index and ">generalization" in index and "#companion." not in index
