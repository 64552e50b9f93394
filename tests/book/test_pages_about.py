"""What the book says about itself: how to cite and repeat it, its words, and what stands in the head of each page."""

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import cited
import claims
import head
import previews
import pytest
import reproduce
import yaml
from docutils import nodes
from docutils.utils import new_document
from executed import executed
from PIL import Image
from sphinx import addnodes

from coupling_lib import paths

BOOK = paths.ROOT / "book"
CITATION = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_citations_are_filled_in_with_commit_or_doi():
    text = cited.entry("aubry2025", (BOOK / "references.bib").read_text(encoding="utf-8"))
    assert text.startswith("@inproceedings{aubry2025,") and text.endswith("\n}")
    assert text.count("@") == 1 and "Papyan, Vardan" in text
    page = (BOOK / "reproduce.md").read_text(encoding="utf-8")
    text = cited.filled(page)
    assert page.count("BIBTEX-OF-") == 2 and "BIBTEX-OF-" not in text
    assert "@inproceedings{aubry2025," in text and "@software{transformer_block_coupling_companion," in text
    with pytest.raises(ValueError, match=r"no entry 'nobody'; name one of references\.bib"):
        cited.entry("nobody", "@book{x,\n}")
    before = cited.companion(CITATION, "0123456789ab")
    assert re.search(r"version += \{0\.1\.0\}", before) and "commit 0123456789ab" in before and "doi" not in before
    after = cited.companion({**CITATION, "doi": "10.5281/zenodo.1", "date-released": "2027-01-31"}, None)
    assert re.search(r"doi += \{10\.5281/zenodo\.1\}", after) and re.search(r"year += \{2027\}", after)
    assert "commit" not in after


def test_commit_is_marked_changed_or_absent_without_git(tmp_path):
    assert cited.commit(tmp_path) is None
    me = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    (tmp_path / "file").write_text("one")
    for command in (["init", "-q"], ["add", "file"], [*me, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    of = cited.commit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{12}", of)
    (tmp_path / "file").write_text("two")
    assert cited.commit(tmp_path) == f"{of}+"


def test_claims_have_possible_commands_rounded_times_and_tolerances(tmp_path):
    for name in ("smollm2-135m/spectra", "nano-neox/spectra"):
        executed(tmp_path / f"{name}.ipynb", seconds=90.0)
    executed(tmp_path / "suite" / "generalization.ipynb", seconds=50.0)
    known = claims.read_claims()
    of_one = next(c for c in known if claims.notebooks_of(c) == {"spectra"})
    make = "make results/smollm2-135m/spectra.ipynb results/nano-neox/spectra.ipynb"
    assert reproduce.repeated(of_one, tmp_path) == (make, 180.0, "the verdict; numbers within 0.2%")
    found = [reproduce.allowed(run) for run in (["depth", "readings"], ["dynamics"], ["nulls"], ["edits", "nulls"])]
    assert found == [f"the verdict; numbers within {share}%" for share in (0.9, 0.3, 0.2, 0.2)]
    assert reproduce.allowed(["depth", "precision"]) == reproduce.ROUNDED["precision"]
    of_suite = next(c for c in known if c["models"] == ["suite"])
    command, seconds, allowed = reproduce.repeated(of_suite, tmp_path)
    assert (command, seconds) == (".venv/bin/papermill notebooks/generalization.ipynb out.ipynb", 50.0)
    assert allowed.startswith("the same digits")
    rows = re.findall(r"^\| (.+?) \| `((?:make|\.venv/bin/papermill) [^`]+)` \| [^|]+ \| [^|]+ \|$",
                      reproduce.reproduce_page(tmp_path), re.MULTILINE)  # fmt: skip
    assert [words for words, _ in rows] == [claim["claim"] for claim in known]
    makefile = (paths.ROOT / "Makefile").read_text(encoding="utf-8")
    for claim in claims.read_claims():
        command, *_ = reproduce.repeated(claim, paths.ROOT / "nothing")
        for model, notebook in re.findall(r"results/([\w-]+)/([\w-]+)\.ipynb", command):
            assert (paths.ROOT / "notebooks" / f"{notebook}.ipynb").is_file()
            assert re.search(rf"^[A-Z_]+ :=.*\b{re.escape(model)}\b", makefile, re.MULTILINE)
    written = {None: "not run here", 1: "5 s", 58: "60 s", 117: "115 s", 118: "2 min", 700: "12 min"}
    assert {seconds: reproduce.time_text(seconds) for seconds in written} == written


def test_the_machine_is_described():
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", reproduce.machine_page(), re.MULTILINE))
    assert {"processor", "cores", "memory", "graphics processor", "made on"} <= rows.keys()
    assert int(rows["cores"]) >= 1 and rows["memory"].endswith("GiB")


def test_sorted_glossary_holds_terms_linked_once_a_page():
    text = (BOOK / "methods.md").read_text(encoding="utf-8").split("glossary}\n")[1].split("```")[0]
    terms = re.findall(r"^(\S.*)$", text, re.MULTILINE)
    assert len(terms) >= 30
    assert terms == sorted(terms, key=lambda term: re.sub(r"\W", " ", term).lower())
    used = set()
    for page in BOOK.glob("*.md"):
        roles = re.findall(r"\{term\}`([^`]+)`", page.read_text(encoding="utf-8"))
        targets = [" ".join(re.sub(r".*<(.+)>", r"\1", role, flags=re.DOTALL).split()) for role in roles]
        assert len(targets) == len(set(targets)), page.name
        used |= {*targets}
    assert used and used <= set(terms)


def document(*children: nodes.Node) -> nodes.document:
    made = new_document("page")
    made += children
    return made


def paragraph(*parts: nodes.Node | str) -> nodes.paragraph:
    return nodes.paragraph("", "", *(nodes.Text(part) if isinstance(part, str) else part for part in parts))


def test_links_carry_previews_of_their_targets():
    definition = nodes.definition("", paragraph("By chance\nalone."), paragraph("More."))
    item = nodes.definition_list_item("", nodes.term("", "null", ids=["term-null"]), definition)
    glossary = document(addnodes.glossary("", nodes.definition_list("", item)))
    assert previews.definitions(glossary) == {"term-null": "By chance alone."}
    behind = {
        "term-null": {"preview": 'a "b" & c'},
        "id2": {"preview": "Somebody. 2025."},
        "fig-a": {"preview": "Figure 1. A", "light": "../_images/a.svg"},
    }
    link = '<a class="reference internal" href="{}">'.format
    other = link("idea.html#blocks") + link("#id2") + link("figures.html#fig-b")
    term, citation, figure = link("methods.html#term-null"), link("../bibliography.html#id2"), link("#fig-a")
    titled = citation[:-1] + ' title="Somebody">'
    assert previews.marked(other + term + titled + figure, behind) == (
        f'{other}{term[:-1]} data-preview="a &quot;b&quot; &amp; c">{citation[:-1]} data-preview="Somebody. 2025.">'
        f'{figure[:-1]} data-preview="Figure 1. A" data-light="../_images/a.svg">'
    )


def test_head_describes_a_page_and_names_configured_addresses():
    mathematics = paragraph("a paragraph that is long enough and has ", nodes.math("", "J"), " in its middle")
    short, plain = paragraph("Too short."), paragraph("word " * 60)
    cell = nodes.entry("", paragraph("a long cell of a table, which is no description of a page"))
    text = head.description(document(nodes.section("", mathematics, cell, short, plain)), "otherwise")
    assert text.startswith("word word") and text.endswith("word …") and len(text) <= 202
    assert head.description(document(paragraph("Too short.")), "otherwise") == "otherwise"
    assert head.description(None, "otherwise") == "otherwise"
    without = head.metatags('A "title"', "What it is.", "Site", None, None)
    assert '<meta name="description" content="What it is." />' in without
    assert 'property="og:title" content="A &quot;title&quot;"' in without
    assert "og:url" not in without and "og:image" not in without and "https:" not in without
    address = "https://example.org/book/"
    with_one = head.metatags("T", "D", "S", f"{address}a.html", f"{address}_static/card.png")
    assert f'property="og:url" content="{address}a.html"' in with_one
    assert f'property="og:image" content="{address}_static/card.png"' in with_one
    assert "summary_large_image" in with_one


def test_linked_data_name_paper_and_software():
    text = head.scholarly({**CITATION, "abstract": "a </script> b", "doi": "10.5281/z"}, "https://example.org/")
    assert text.count("</script>") == 1
    record = json.loads(re.fullmatch(r'<script type="application/ld\+json">(.+)</script>\n', text)[1])
    paper, software = record["@graph"]
    assert record["@context"] == "https://schema.org"
    assert paper["@type"] == "ScholarlyArticle" and len(paper["author"]) == 4 and paper["datePublished"] == "2025"
    assert paper["author"][0] == {"@type": "Person", "givenName": "Murdock", "familyName": "Aubry"}
    assert software["isBasedOn"] == {"@id": paper["@id"]} and software["url"] == "https://example.org/"
    assert software["identifier"] == "https://doi.org/10.5281/z" and "codeRepository" not in software
    assert "identifier" not in json.loads(head.scholarly(CITATION, None).partition(">")[2][:-10])["@graph"][1]


def test_configured_address_is_taken_and_its_site_mapped(monkeypatch, tmp_path):
    one, other = "https://a.org/b/", "https://c.org/d/"
    for configured, environment, taken in (("", "", ""), (one[:-1], "", one), (one, other, other), ("", "/", "")):
        monkeypatch.setenv("BOOK_ADDRESS", environment)
        config = SimpleNamespace(html_baseurl=configured)
        head._take_address(None, config)
        assert config.html_baseurl == taken
    config = SimpleNamespace(html_baseurl="", html_title="Transformer Block Coupling", project="p")
    builder = SimpleNamespace(name="html", get_target_uri=lambda page: f"{page}.html")
    env = SimpleNamespace(found_docs={"book/idea", "book/index"})
    app = SimpleNamespace(config=config, builder=builder, env=env, outdir=str(tmp_path))
    head._finish(app, None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    config.html_baseurl = "https://example.org/book/"
    head._finish(app, None)
    places = [place.text for place in ET.parse(tmp_path / "sitemap.xml").iter() if place.tag.endswith("}loc")]
    assert places == ["https://example.org/book/book/idea.html", "https://example.org/book/book/index.html"]
    with Image.open(paths.ROOT / "book" / head.CARD) as card:
        assert card.size == (1200, 630)


def test_container_builds_the_book_with_allowed_python():
    text = (paths.ROOT / "Containerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["docker.io/library/python:3.12-slim"]
    assert "make book" in text and "RUN make .venv/.ready" in text
    ignored = (paths.ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".venv", "_build", "results"} <= set(ignored)


@pytest.mark.parametrize("page", sorted(BOOK.glob("*.md")), ids=lambda page: page.stem)
def test_quantised_model_is_first_named_in_full(page):
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if "SmolLM2-135M" in line]
    full = "SmolLM2-135M-Instruct (Q4_1)"
    # Headings, and the buttons of the explorer, are short.
    prose = [line for line in lines if not line.startswith("#") and " | model=" not in line]
    assert not prose or re.search(r"SmolLM2-135M.{16}", prose[0])[0] == full
    assert [line for line in prose if line.startswith("|") and "SmolLM2-135M" in line.replace(full, "")] == []


def test_pages_on_coupling_link_the_reversed_claim():
    assert claims.read_claims()[0]["claim"].startswith("Blocks share their strongest directions")
    texts = [(BOOK / f"{page}.md").read_text(encoding="utf-8") for page in ("index", "depth")]
    assert ["<claim-blocks-share-directions>` depends" in text for text in texts] == [True, True]
