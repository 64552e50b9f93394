"""The table of features: a row a feature, and behind every yes a page or a file that is there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import complete
import pytest
import status
import yaml
from browser import HTML

from coupling_lib import paths

KNOWN = status.features()
ROWS = KNOWN["feature"]
BOOK = paths.ROOT / "book"
LISTED = complete.pages(yaml.safe_load((paths.ROOT / "_toc.yml").read_text(encoding="utf-8")))


def targets(text: str) -> tuple[list[str], list[str]]:
    """Pages and files that a text links, relative to book/."""
    return re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text), re.findall(r"\{download\}`[^<`]+<([^>]+)>`", text)


def test_there_are_forty_four_features_each_with_a_letter_for_every_book():
    assert len(ROWS) == 44 == len({row["name"] for row in ROWS})
    assert {len(row["others"]) for row in ROWS} == {len(KNOWN["books"])} == {12}
    assert {"Distill", "transformer-circuits.pub", "circuit-tracer"} <= set(KNOWN["books"])
    assert set("".join(row["others"] for row in ROWS)) <= set("ynp?-")
    assert {row["here"] for row in ROWS} <= set(status.MARKS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_yes_leads_to_what_is_there_and_anything_else_says_why(row):
    pages, files = targets(row["shown"])
    if row["here"] in ("y", "ready"):
        assert pages or files
    else:
        assert re.search(r"\.$", row["shown"]) and len(row["shown"]) > 40
    for page in pages:
        assert Path(os.path.normpath(Path("book") / page)).with_suffix("").as_posix() in LISTED
    assert [file for file in files if not (BOOK / file).resolve().is_file()] == []


def test_the_page_counts_its_rows_and_explains_what_is_missing():
    page = status.status_page()
    rows = re.findall(r"^\| (\d+) \| (.+?) \| \*\*(\w+)\*\*", page, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 45))
    counts = {words: int(n) for n, words in re.findall(r"(\d+) (yes|ready|partly|no)\b", page.splitlines()[0])}
    assert sum(counts.values()) == 44 and counts["yes"] == sum(mark == "y" for *_, mark in rows)
    explained = re.findall(r"^- Row (\d+)\. ", page, re.MULTILINE)
    assert explained == [number for number, _, mark in rows if mark in ("p", "n")]
    # A heading stands over something, and a link to it is there if it is.
    assert bool(explained) == ("## What is missing" in page) == ("#what-is-missing-and-why" in page)


def test_nothing_is_missing_without_a_heading_over_nothing(monkeypatch):
    whole = KNOWN | {"feature": [row for row in ROWS if row["here"] in ("y", "ready")]}
    monkeypatch.setattr(status, "features", lambda: whole)
    assert "What is missing" not in status.status_page()


@pytest.mark.browser
def test_every_yes_of_the_built_page_leads_to_a_file_of_the_built_book():
    text = (HTML / "book" / "status.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td[^>]*><p><strong>(y|ready)</strong>(.*?)</td>", text, re.DOTALL)
    assert len(cells) == sum(row["here"] in ("y", "ready") for row in ROWS)
    # That links lead to files which are there holds for every page (`test_book`).
    assert all(re.search(r'href="[^"#]+', cell) for _, cell in cells)


SETTINGS = yaml.safe_load((paths.ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
REDIRECTS = SETTINGS["redirects"]


def test_every_redirect_leads_to_a_page_and_hides_none():
    assert REDIRECTS
    for old, new in REDIRECTS.items():
        assert old not in LISTED and (Path(old).parent / new).with_suffix("").as_posix() in LISTED
    template = (paths.ROOT / SETTINGS["redirect_html_template_file"]).read_text(encoding="utf-8")
    assert template.count("${to_uri}") == 2 and "<title>" in template and 'lang="en"' in template


@pytest.mark.browser
def test_every_redirect_is_built():
    for old, new in REDIRECTS.items():
        stub = HTML / f"{old}.html"
        assert f'href="{new}"' in stub.read_text(encoding="utf-8") and (stub.parent / new).is_file()
