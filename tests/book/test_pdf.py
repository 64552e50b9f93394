"""The book on paper: its order, its contents, its links, and two pages printed by Chromium."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pdf
import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import Link

TOC = {"root": "a", "parts": [{"caption": "Part", "chapters": [{"file": "b", "sections": [{"file": "c"}]}]}]}


def test_pages_follow_contents_that_name_titles_and_numbers():
    found = pdf.entries(TOC, Path("/site"))
    places = [("a.html", 0, ""), ("b.html", 0, "Part"), ("c.html", 1, "Part")]
    assert [(entry.path.name, entry.depth, entry.caption) for entry in found] == places
    with pytest.raises(ValueError, match="pages in a form"):
        pdf.entries({**TOC, "chapters": [{"file": "d"}]}, Path("/site"))
    for entry, title, first in zip(found, ("A", "B & b", "C"), (0, 3, 5), strict=True):
        entry.title, entry.first = title, first
    text = pdf.contents(found, "Book", offset=2)
    assert text.count("<h2>Part</h2>") == 1 and "B &amp; b</a><span>6</span>" in text
    assert "<span>3</span>" in text and "<span>8</span>" in text


def part(folder: Path, name: str, sheets: int, *links: Link) -> PdfReader:
    writer = PdfWriter()
    for _ in range(sheets):
        writer.add_blank_page(595, 842)
    for link in links:
        writer.add_annotation(0, link)
    writer.write(folder / name)
    return PdfReader(folder / name)


def test_joined_links_lead_to_pages_or_the_web(tmp_path):
    found = pdf.entries(TOC, tmp_path)
    addresses = (found[2].path.as_uri() + "#there", (tmp_path / "data.csv").as_uri(), "https://example.org/")
    links = [Link(rect=(0, at, 9, at + 9), url=url) for at, url in enumerate(addresses)]
    parts = [part(tmp_path, "contents", 1), *(part(tmp_path, n, 2, *(links if n == "b" else [])) for n in "abc")]
    for entry, title in zip(found, "ABC", strict=True):
        entry.title = title
    pdf.join(parts, found, part(tmp_path, "numbers", 7), "Book").write(tmp_path / "all.pdf")
    joined = PdfReader(tmp_path / "all.pdf")
    assert len(joined.pages) == 7 and joined.metadata.title == "Book"
    kept = [one.get_object() for one in joined.pages[3]["/Annots"]]
    assert [link["/A"]["/URI"] for link in kept if "/A" in link] == ["https://example.org/"]
    (inside,) = [link["/Dest"] for link in kept if "/Dest" in link]
    assert inside[0] in (5, joined.pages[5].indirect_reference)
    assert b"file:" not in (tmp_path / "all.pdf").read_bytes()
    first, second, (third,) = joined.outline
    assert [one.title for one in (first, second, third)] == ["A", "B", "C"]
    assert [joined.get_destination_page_number(one) for one in (first, second, third)] == [1, 3, 5]


@pytest.mark.browser
def test_two_pages_are_printed_with_contents_and_numbers(tmp_path):
    page = "<!DOCTYPE html><article><h1>{0}<a class='headerlink'>#</a></h1><p>Text of {0}.</p>{1}</article>"
    more = "<a href='b.html'>on</a><div style='break-before: page'>more</div>"
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.html").write_text(page.format("First", more))
    (site / "b.html").write_text(page.format("Second", "<details class='hide'>folded</details>"))
    toc, out = {"root": "a", "chapters": [{"file": "b"}]}, tmp_path / "out" / "book.pdf"
    with ThreadPoolExecutor(1) as aside:  # in this thread, another browser may be open
        count = aside.submit(pdf.print_book, site, toc, "Book", out).result()
    printed = PdfReader(tmp_path / "out" / "book.pdf").pages
    sheets = [sheet.extract_text() for sheet in printed]
    assert {sheet["/Contents"]["/Filter"] for sheet in printed} == {"/FlateDecode"}
    assert len(sheets) == count == 4
    assert "First" in sheets[0] and "Second" in sheets[0] and "4" in sheets[0]
    assert "Text of First." in sheets[1] and "#" not in sheets[1] and "Text of Second." in sheets[3]
    assert [sheet.split()[-1] for sheet in sheets] == ["1", "2", "3", "4"]
    assert str(tmp_path).encode() not in (tmp_path / "out" / "book.pdf").read_bytes()
