"""Data and citation: every column is described, every file has its digest, every record names one version."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tomllib

import pytest
import yaml
from installed import PROJECT

from coupling_lib import paths
from coupling_lib.metrics.variants import VARIANTS
from workflow.manifest import MANIFEST

TABLES = sorted(paths.DATA.glob("*.csv"))
DESCRIBED = tomllib.loads((paths.DATA / "tables.toml").read_text(encoding="utf-8"))


def head(name: str) -> list[str]:
    """Return the names of a table's columns."""
    with (paths.DATA / f"{name}.csv").open(encoding="utf-8") as file:
        return next(csv.reader(line for line in file if not line.startswith("#")))


def rules_of(name: str) -> dict[str, str]:
    """Return the descriptions of a table's columns, those of the table that it is like included."""
    table = DESCRIBED["table"][name]
    return (rules_of(table["like"]) if "like" in table else {}) | table["columns"]


def description(column: str, rules: dict[str, str]) -> str | None:
    """Return what a column holds, by its name or by the first rule that its name follows."""
    if column in rules:
        return rules[column]
    for rule, text in rules.items():
        if rule.startswith("/") and (match := re.fullmatch(rule.strip("/"), column)):
            words = {group: DESCRIBED["words"][group][part or "none"] for group, part in match.groupdict().items()}
            return text.format(**words)
    return None


# -- the tables


def test_every_table_is_described():
    assert DESCRIBED["table"].keys() == {path.stem for path in TABLES}
    assert all(table["title"] and table["row"] for table in DESCRIBED["table"].values())
    assert DESCRIBED["words"]["variant"].keys() == VARIANTS.keys()


@pytest.mark.parametrize("name", [path.stem for path in TABLES])
def test_every_column_is_described(name):
    rules = rules_of(name)
    found = {column: description(column, rules) for column in head(name)}
    bare = [column for column, text in found.items() if text is None or len(text) <= 3 or "{" in text]
    assert bare == [], "describe them in data/tables.toml"


@pytest.mark.parametrize("name", [path.stem for path in TABLES])
def test_no_description_is_without_its_column(name):
    columns = head(name)
    rules = DESCRIBED["table"][name]["columns"]
    plain = [rule for rule in rules if not rule.startswith("/") and rule not in columns]
    by_rule = [
        rule for rule in rules if rule.startswith("/") and not any(map(re.compile(rule[1:-1]).fullmatch, columns))
    ]
    assert (plain, by_rule) == ([], [])


def test_descriptions_by_rule_name_variant_k_and_mean():
    text = description("released_norm_k_k10_sd", rules_of("suite"))
    assert "pre-release" in text and "K = 10" in text and "standard deviation" in text
    text = description("patch.k3.mismatch_trace_low", rules_of("vit_grid"))
    assert "1-norm" in text and "K = 3" in text and "last patch" in text and "lower end" in text


# -- digests


def test_the_manifest_holds_the_digest_of_every_file():
    lines = (paths.ROOT / MANIFEST).read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path.relative_to(paths.ROOT).as_posix(): path for path in paths.DATA.rglob("*") if path.is_file()}
    kept = {name: path for name, path in files.items() if path.suffix != ".pyc" and name != MANIFEST}
    repair = "data/ has changed: .venv/bin/python -m workflow.manifest"
    assert listed.keys() == kept.keys(), repair
    wrong = [n for n, path in kept.items() if hashlib.sha256(path.read_bytes()).hexdigest() != listed[n]]
    assert wrong == [], repair


# -- the citation


def test_citation_and_deposit_agree_with_the_project():
    project = PROJECT["project"]
    cited = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    deposit = json.loads((paths.ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    for record in (cited, deposit):
        assert {name: record[name] for name in ("version", "license", "keywords")} == {
            name: project[name] for name in ("version", "license", "keywords")
        }
    assert cited["authors"] == deposit["creators"] == project["authors"]
    assert (cited["title"], cited["abstract"]) == (deposit["title"], deposit["description"])
    assert cited.get("doi") == deposit.get("doi") and cited.get("repository-code") == project["urls"].get("Repository")


def test_the_deposit_is_complete_and_supplements_the_paper():
    cited = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    deposit = json.loads((paths.ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    assert (deposit["upload_type"], deposit["access_right"]) == ("software", "open")
    (paper,) = deposit["related_identifiers"]
    assert (paper["relation"], paper["scheme"]) == ("isSupplementTo", "arxiv")
    (identifier,) = cited["preferred-citation"]["identifiers"]
    assert paper["identifier"] == identifier["value"] == "arXiv:2407.07810"
    names = [one["family-names"] for one in cited["preferred-citation"]["authors"]]
    assert names == ["Aubry", "Meng", "Sugolov", "Papyan"]
    assert cited["preferred-citation"]["url"] == PROJECT["project"]["urls"]["Paper"]
