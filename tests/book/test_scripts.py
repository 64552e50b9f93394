"""The scripts of pages: small enough to be read and loaded, and none asks for anything from a network."""

from __future__ import annotations

import gzip
import re

import pytest

from coupling_lib.paths import ROOT

STATIC = ROOT / "book" / "_static"
MOST = {"claims.js": 5000, "claims.css": 7000, "previews.js": 3000, "figures.js": 8000, "any-model.js": 1500}


@pytest.mark.parametrize("name", MOST)
def test_what_a_page_loads_is_small_and_asks_nothing_of_a_network(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert len(text.encode()) < MOST[name]
    assert re.findall(r"fetch|XMLHttpRequest|\bimport\b|https?:", text) == []


def test_the_explorer_and_one_s_own_prompt_are_light_and_each_script_has_one_subject():
    assert sum(len(gzip.compress(path.read_bytes())) for path in (STATIC / "explorer").glob("*.js")) < 40_000
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in (STATIC / "own-prompt").iterdir()]
    assert len(lengths) == 6 and max(lengths) < 300
