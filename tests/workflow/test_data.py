"""Data and citation: every column is described, every file has its digest, every record names one version."""

import csv
import hashlib
import json
import re
import tomllib

import pytest
import yaml
from installed import PROJECT

from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.paths import DATA, ROOT
from workflow.manifest import MANIFEST

TABLES = [path.stem for path in sorted(DATA.glob("*.csv"))]
DESCRIBED = tomllib.loads((DATA / "tables.toml").read_text(encoding="utf-8"))


def rules_of(name: str) -> dict[str, str]:
    """Return the descriptions of a table's columns, those of the table that it is like included."""
    table = DESCRIBED["table"][name]
    return (rules_of(table["like"]) if "like" in table else {}) | table["columns"]


def follows(rule: str, column: str) -> re.Match | None:
    return re.fullmatch(rule[1:-1] if rule.startswith("/") else re.escape(rule), column)


def description(column: str, rules: dict[str, str]) -> str:
    """Return what a column holds, by its name or by the first rule that its name follows."""
    if column in rules:
        return rules[column]
    rule, match = next((rule, match) for rule in rules if (match := follows(rule, column)))
    words = {group: DESCRIBED["words"][group][part or "none"] for group, part in match.groupdict().items()}
    return rules[rule].format(**words)


def test_every_table_is_described():
    assert DESCRIBED["table"].keys() == set(TABLES)
    assert all(table["title"] and table["row"] for table in DESCRIBED["table"].values())
    assert DESCRIBED["words"]["variant"].keys() == VARIANTS.keys()


@pytest.mark.parametrize("name", TABLES)
def test_columns_and_descriptions_belong_together(name):
    with (DATA / f"{name}.csv").open(encoding="utf-8") as file:
        columns = next(csv.reader(line for line in file if not line.startswith("#")))
    rules = rules_of(name)
    bare = [column for column in columns if not any(follows(rule, column) for rule in rules)]
    assert bare == [], "describe them in data/tables.toml"
    texts = {column: description(column, rules) for column in columns}
    assert [column for column, text in texts.items() if len(text) <= 3 or "{" in text] == []
    own = DESCRIBED["table"][name]["columns"]
    assert [rule for rule in own if not any(follows(rule, column) for column in columns)] == []


def test_descriptions_by_rule_name_variant_k_and_mean():
    text = description("released_norm_k_k10_sd", rules_of("suite"))
    assert "pre-release" in text and "K = 10" in text and "standard deviation" in text
    text = description("patch.k3.mismatch_trace_low", rules_of("vit_grid"))
    assert "1-norm" in text and "K = 3" in text and "last patch" in text and "lower end" in text


def test_the_manifest_holds_the_digest_of_every_file():
    listed = dict(line.split("  ")[::-1] for line in (ROOT / MANIFEST).read_text(encoding="utf-8").splitlines())
    files = {path.relative_to(ROOT).as_posix(): path for path in DATA.rglob("*") if path.is_file()}
    digests = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if path.suffix != ".pyc" and name != MANIFEST
    }
    assert listed == digests, "data/ has changed: .venv/bin/python -m workflow.manifest"


# -- the citation

CITED = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
DEPOSIT = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
PAPER = CITED["preferred-citation"]


def test_citation_and_deposit_agree_with_the_project():
    project = PROJECT["project"]
    for name in ("version", "license", "keywords"):
        assert CITED[name] == DEPOSIT[name] == project[name]
    assert CITED["authors"] == DEPOSIT["creators"] == project["authors"]
    assert CITED["authors"] == [{"name": "The Transformer Block Coupling companion authors"}]
    assert (CITED["title"], CITED["abstract"]) == (DEPOSIT["title"], DEPOSIT["description"])
    assert CITED.get("doi") == DEPOSIT.get("doi") and CITED.get("repository-code") == project["urls"].get("Repository")


def test_the_deposit_is_complete_and_supplements_the_paper():
    assert (DEPOSIT["upload_type"], DEPOSIT["access_right"]) == ("software", "open")
    (paper,), (identifier,) = DEPOSIT["related_identifiers"], PAPER["identifiers"]
    assert (paper["relation"], paper["scheme"]) == ("isSupplementTo", "arxiv")
    assert paper["identifier"] == identifier["value"] == "arXiv:2407.07810"


def test_citation_has_required_and_no_unknown_fields():
    asked = {"cff-version", "message", "title", "authors"}
    # The last three come with the first release.
    known = {"abstract", "type", "version", "license", "keywords", "preferred-citation"}
    assert asked <= CITED.keys() <= asked | known | {"date-released", "doi", "repository-code"}
    assert (CITED["cff-version"], CITED["type"]) == ("1.2.0", "software")
    asked = {"type", "title", "authors"}
    assert asked <= PAPER.keys() <= asked | {"year", "conference", "collection-title", "url", "identifiers"}
    assert set(PAPER["conference"]) == {"name"}


def test_citation_names_the_paper_and_its_authors():
    # Given and family names are easily swapped; these are the names as the paper prints them.
    printed = [(author["given-names"], author["family-names"]) for author in PAPER["authors"]]
    assert printed == [("Murdock", "Aubry"), ("Haoming", "Meng"), ("Anton", "Sugolov"), ("Vardan", "Papyan")]
    assert PAPER["title"] == "Transformer Block Coupling and its Correlation with Generalization in LLMs"
    assert (PAPER["type"], PAPER["year"]) == ("conference-paper", 2025)
    assert PAPER["url"] == PROJECT["project"]["urls"]["Paper"] == "https://arxiv.org/abs/2407.07810"
