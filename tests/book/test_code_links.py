"""Names in code cells: what is linked, what is left, and that links of the built book arrive."""

import re

import code_links
import pytest
from browser import HTML

# As a cell calls them, what is documented: `draw` of `figures` could be either of two.
NAMES = {
    ("cl", "sweep"): "coupling_lib.sweep",
    ("cl", "Model"): "coupling_lib.Model",
    ("Model", "n_blocks"): "coupling_lib.Model.n_blocks",
    ("figures", "draw_map"): "companion.figures.depth.draw_map",
    ("depth", "draw_map"): "companion.figures.depth.draw_map",
    ("depth", "draw"): "companion.figures.depth.draw",
    ("tokens", "draw"): "companion.figures.tokens.draw",
}


def highlighted(owner: str, word: str) -> str:
    return f'<span class="n">{owner}</span><span class="o">.</span><span class="n">{word}</span>'


def test_known_unambiguous_names_are_linked_and_led_back():
    documented = (*dict.fromkeys(NAMES.values()), "xarray.Dataset.sel")
    assert code_links.unambiguous_names(documented) == NAMES
    body = f"{highlighted('cl', 'sweep')}({highlighted('texts', 'sel')}, cl.sweep)"
    link = '<a class="cell-link" href="api.html#coupling_lib.sweep"><span class="n">sweep</span></a>'
    found = code_links.linked(body, NAMES, "api.html#{}".format)
    assert found == body.replace('<span class="n">sweep</span>', link)
    documented = ["coupling_lib.trace", "coupling_lib.store.sweep.Shard.read", "coupling_lib.store.sweep.cut"]
    named = ["coupling_lib.trace", "coupling_lib.Shard.read", "coupling_lib.store.cut", "coupling_lib.unknown"]
    body = " ".join(f'<a class="viewcode-back" href="../api.html#{name}">' for name in named)
    found = code_links.led_back(body, "coupling_lib.store.sweep", {*documented})
    assert re.findall(r"#([\w.]+)", found) == [*documented, "coupling_lib.unknown"]


@pytest.mark.browser
def test_built_code_and_index_lead_to_the_library():
    page = (HTML / "results" / "nano-neox" / "depth.html").read_text(encoding="utf-8")
    links = re.findall(r'class="cell-link" href="([^"#]+)#([^"]+)"', page)
    assert ("../../book/api.html", "coupling_lib.sweep") in links
    assert ("../../book/api/figures.html", "companion.figures.depth.draw_map") in links
    index = (HTML / "genindex.html").read_text(encoding="utf-8")
    assert "#coupling_lib.metrics." in index and ">generalization" in index and "#companion." not in index
