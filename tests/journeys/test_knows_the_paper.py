"""Ten steps of a reader who knows the paper and has a machine with a GPU. Commands are read off the pages and run."""

import csv
import gzip
import re
import shlex

import nbformat
import pytest
import yaml
from playwright.sync_api import expect
from reader import Reader, shell

from coupling_lib.paths import ROOT

pytestmark = pytest.mark.browser


@pytest.fixture
def reader(tab) -> Reader:
    return Reader(tab)


def figure_three(reader: Reader) -> str:
    """Find the command that draws figure 3 of the paper for the paper's own model."""
    reader.follow("claims.html", text="claims")
    reader.tab.locator("summary", has_text="The commands").click()
    block = reader.block("-p model llama3-8b")
    (command,) = re.findall(r"^# (?:.*, )?figure 3(?:,.*)?\n(.+)$", block, re.MULTILINE)
    return command


def test_1_figure_3_command_is_two_clicks_away(reader, tab):
    assert shlex.split(figure_three(reader))[1:5] == ["notebooks/depth.ipynb", "out.ipynb", "-p", "model"]


@pytest.mark.thorough
def test_2_printed_command_draws_figure_3(tab, tmp_path):
    command = figure_three(Reader(tab)).replace("out.ipynb", str(tmp_path / "out.ipynb"))
    # Of what is given twice papermill takes the last: a model of twelve blocks that fits any machine.
    small = "-p model nano-neox -p precision float32 -p blocks 5-8 -p k 4 -p others '' --no-progress-bar"
    shell(f"{command} {small}", tmp_path)
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    outputs = {o.get("metadata", {}).get("scrapbook", {}).get("name"): o for c in cells for o in c.get("outputs", [])}
    assert "model nano-neox" in outputs["depth-matrices"]["data"]["text/html"]


def test_3_time_and_memory_are_one_click_away(reader, tab):
    reader.follow("scale.html", text="scale")
    table = tab.locator("article table").filter(has_text="llama3-8b")
    head = [text.strip() for text in table.locator("th").all_text_contents()]
    row = [text.strip() for text in table.locator("tr", has_text="llama3-8b").locator("td").all_text_contents()]
    cells = dict(zip(head, row, strict=True))
    for wanted in ("hours", "held"):
        (text,) = [text for name, text in cells.items() if wanted in name]
        assert float(text.replace(",", "")) > 0


def test_4_figure_3_links_to_its_drawing_function(reader, tab):
    reader.follow("claims.html", text="claims")
    tab.locator("summary", has_text="one by one").click()
    tab.locator("tr", has_text="blocks 9 to 16 of Llama-3 8B").locator("a[href*='draw_matrices']").first.click()
    named = tab.locator("dt[id='companion.figures.depth.draw_matrices']")
    reader.arrived("#companion.figures.depth.draw_matrices")
    assert "draw_matrices(" in named.inner_text()
    expect(named).to_be_in_viewport()
    assert 0 <= named.evaluate("e => e.getBoundingClientRect().top") < 844


def test_5_null_chapter_is_one_click_away(reader, tab):
    reader.follow("definitions.html", text="no coupling|null|chance")
    assert tab.locator("article h1").first.is_visible() and "random" in tab.locator("article").inner_text()
    assert tab.locator("article figure.tbc-figure").count() >= 1


def test_6_figure_data_are_two_clicks_away(reader, tab):
    figure = tab.locator("figure.tbc-figure:has(.tbc-offers):visible").first
    figure.locator(".tbc-offers summary").click()
    name, found = reader.downloaded(figure.locator("a[download*='.csv']"))
    packed = name.endswith(".csv.gz")  # as a large table is
    lines = (gzip.decompress(found) if packed else found).decode("utf-8").splitlines()
    assert any(line.startswith("# model ") for line in lines) and any(
        re.search(r"papermill|make book", line) for line in lines
    )
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len(rows) > 100 and all(rows[0])


def test_7_citation_has_version_and_commit(reader, tab):
    reader.follow("reproduce.html#cite", text="cite")
    version = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    assert "Papyan, Vardan" in reader.block("@inproceedings")
    entry = reader.block("@software")
    assert re.search(rf"version += \{{{re.escape(version)}\}}", entry) and re.search(r"commit [0-9a-f]{12}", entry)


@pytest.mark.parametrize(
    ("words", "leads_to"),
    [
        ("figure 3", "claims.html"),
        pytest.param("cite", "reproduce.html", marks=pytest.mark.thorough),
        pytest.param("table 1", "claims.html", marks=pytest.mark.thorough),
    ],
)
def test_8_search_leads_to_the_answering_page(reader, tab, words, leads_to):
    best = [address for _, address in reader.search(words)[:3]]
    assert [address for address in best if leads_to in address], best
    tab.locator(f"#search-results li > a[href*='{leads_to}']").first.click()
    reader.arrived(leads_to)


def test_8_search_results_have_distinct_titles(tab):
    found = Reader(tab).search("miscoupling")
    assert len(found) >= 9
    notebooks = [title for title, address in found if "results/" in address]
    assert notebooks and len(notebooks) == len(set(notebooks))


def test_9_data_match_the_manifest_digests(reader, tab, tmp_path):
    reader.follow("reproduce.html#cite", text="cite")
    command = reader.block("MANIFEST.sha256").strip()
    assert command.startswith("sha256sum ") and shell(command, tmp_path) == ""


def test_10_the_lines_of_the_front_page_run(reader, tab, tmp_path):
    lines = reader.block("cl.load_model(").replace("smollm2-135m", "nano-neox")
    lines = re.sub(r"block=(\d+)", lambda found: f"block={int(found[1]) // 2}", lines)
    (tmp_path / "a.py").write_text(f"{lines.rstrip()}\nprint(float(cl.miscoupling(A, normalized=True)))\n")
    value = float(shell(f".venv/bin/python {tmp_path / 'a.py'}", tmp_path))
    assert 0 < value < 1
