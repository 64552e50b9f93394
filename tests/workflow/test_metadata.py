"""What catalogues read about the project: it is what follows from the project, and has what each format asks for."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from datetime import date

import pytest

from coupling_lib import paths
from coupling_lib.metrics.variants import VARIANTS
from workflow import croissant, metadata

TABLES = sorted((paths.DATA).glob("*.csv"))
REPAIR = "what follows from the project has changed; write it anew: .venv/bin/python -m workflow.metadata"


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return metadata.records()


@pytest.fixture(scope="module")
def known() -> dict:
    return metadata.sources()


def committed(name: str) -> dict:
    return json.loads((paths.ROOT / name).read_text(encoding="utf-8"))


def head(path) -> list[str]:
    return next(csv.reader(line for line in path.open(encoding="utf-8") if not line.startswith("#")))


@pytest.mark.parametrize(
    "name",
    [
        *("CITATION.cff", "codemeta.json", ".zenodo.json", "ro-crate-metadata.json", "sbom.json"),
        *(metadata.CROISSANT, metadata.MANIFEST),
    ],
)
def test_each_record_is_what_the_project_gives(written, name):
    assert (paths.ROOT / name).read_text(encoding="utf-8") == written[name], REPAIR


def test_all_records_name_one_version_and_one_licence():
    crate = {part["@id"]: part for part in committed("ro-crate-metadata.json")["@graph"]}["./"]
    code, deposit, tables = map(committed, ("codemeta.json", ".zenodo.json", metadata.CROISSANT))
    assert {record["version"] for record in (crate, code, deposit, tables)} == {"0.1.0"}
    licence = "https://spdx.org/licenses/Apache-2.0"
    assert [code["license"], tables["license"], crate["license"]["@id"]] == [licence] * 3
    assert deposit["license"] == "Apache-2.0"


# -- software


def test_codemeta_has_what_the_format_asks_for_and_every_dependency_with_its_range():
    record = committed("codemeta.json")
    assert record["@context"] == "https://w3id.org/codemeta/3.0"
    assert record["@type"] == "SoftwareSourceCode"
    assert {"name", "description", "author", "programmingLanguage", "runtimePlatform"} <= record.keys()
    ranges = {need["name"]: need["softwareVersion"] for need in record["softwareRequirements"]}
    assert [f"{name}{range_}" for name, range_ in ranges.items()] == metadata.sources()["project"]["dependencies"]
    people = [one["familyName"] for one in record["referencePublication"]["author"]]
    assert people == ["Aubry", "Meng", "Sugolov", "Papyan"]


def test_zenodo_has_what_a_deposit_needs_and_points_to_the_paper():
    record = committed(".zenodo.json")
    assert {"title", "upload_type", "description", "creators", "access_right", "license"} <= record.keys()
    assert (record["upload_type"], record["access_right"]) == ("software", "open")
    assert all(one["name"] for one in record["creators"])
    (paper,) = record["related_identifiers"]
    assert (paper["identifier"], paper["relation"], paper["scheme"]) == ("arXiv:2407.07810", "isSupplementTo", "arxiv")


# -- the research object


def test_the_crate_describes_itself_its_root_and_whatever_it_names():
    record = committed("ro-crate-metadata.json")
    parts = {part["@id"]: part for part in record["@graph"]}
    assert len(parts) == len(record["@graph"])
    about = parts["ro-crate-metadata.json"]
    assert (about["@type"], about["about"]) == ("CreativeWork", {"@id": "./"})
    assert about["conformsTo"]["@id"] in record["@context"] == "https://w3id.org/ro/crate/1.1/context"
    root = parts["./"]
    assert root["@type"] == "Dataset"
    assert {"name", "description", "datePublished", "license"} <= root.keys()
    assert re.fullmatch(r"\d{4}(-\d\d-\d\d)?", root["datePublished"])
    named = re.findall(r'"@id": "([^"]+)"', json.dumps(record["@graph"]))
    assert [name for name in named if name not in parts and not name.startswith("https://w3id.org/")] == []
    for part in root["hasPart"]:
        place = paths.ROOT / part["@id"]
        assert place.is_dir() if parts[part["@id"]]["@type"] == "Dataset" else place.is_file(), part


def test_the_crate_holds_every_table_and_every_shipped_model():
    parts = {part["@id"] for part in committed("ro-crate-metadata.json")["@graph"]}
    assert {f"data/{path.name}" for path in TABLES} <= parts
    assert {f"data/checkpoints/{path.name}/" for path in paths.CHECKPOINTS.iterdir()} <= parts


# -- the tables


def test_croissant_has_what_the_format_asks_for():
    record = committed(metadata.CROISSANT)
    asked = {"@context", "@type", "name", "description", "license", "url", "creator", "datePublished", "conformsTo"}
    assert asked <= record.keys()
    assert (record["@type"], record["conformsTo"]) == ("sc:Dataset", "http://mlcommons.org/croissant/1.0")
    assert all(
        {"@id", "name", "contentUrl", "encodingFormat", "sha256"} <= one.keys() for one in record["distribution"]
    )
    names = [field["@id"] for one in record["recordSet"] for field in one["field"]]
    assert len(names) == len(set(names))


def test_every_column_of_every_table_is_described_and_none_besides():
    sets = {one["@id"]: one["field"] for one in committed(metadata.CROISSANT)["recordSet"]}
    assert sets.keys() == {path.stem for path in TABLES}
    for path in TABLES:
        fields = sets[path.stem]
        assert [field["source"]["extract"]["column"] for field in fields] == head(path)
        assert {field["source"]["fileObject"]["@id"] for field in fields} == {path.name}
        assert all(len(field["description"]) > 3 and "{" not in field["description"] for field in fields)


def test_digests_and_sizes_of_the_tables_are_those_of_the_files():
    files = {one["contentUrl"]: one for one in committed(metadata.CROISSANT)["distribution"]}
    assert files.keys() == {path.name for path in TABLES}
    for path in TABLES:
        assert files[path.name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert files[path.name]["contentSize"] == f"{path.stat().st_size} B"


def test_descriptions_by_rule_name_the_variant_the_k_and_what_was_averaged(known):
    said = {
        field["@id"]: (field["description"], field["dataType"])
        for one in committed(metadata.CROISSANT)["recordSet"]
        for field in one["field"]
    }
    text, kind = said["suite/released_norm_k_k10_sd"]
    assert "pre-release" in text and "K = 10" in text and "standard deviation" in text and kind == "sc:Float"
    text, kind = said["vit_grid/patch.k3.mismatch_trace_low"]
    assert "1-norm" in text and "K = 3" in text and "last patch" in text and "lower end" in text
    assert said["suite/step"][1] == "sc:Integer" and said["suite/cpu"][1] == "sc:Text"
    assert known["tables"]["words"]["variant"].keys() == VARIANTS.keys()


def test_no_description_is_without_its_column(known):
    tables = known["tables"]
    heads = {path.stem: head(path) for path in TABLES}
    for name, table in tables["table"].items():
        unused = [
            rule
            for rule in table["columns"]
            if not any(
                rule == column or (rule.startswith("/") and re.fullmatch(rule.strip("/"), column))
                for column in heads[name]
            )
        ]
        assert unused == []


def test_a_column_without_description_is_refused_by_name():
    with pytest.raises(SystemExit, match=r"column 'weight' has no description; add one to data/tables\.toml"):
        croissant.described(["weight"], {"width": "of the stream"}, {})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2", ""], "sc:Integer"),
        (["1", "2.5"], "sc:Float"),
        (["1e-3"], "sc:Float"),
        (["1", "a"], "sc:Text"),
        ([""], "sc:Text"),
    ],
)
def test_kinds_of_columns(values, kind):
    assert croissant.kind(values) == kind


# -- digests


def test_the_manifest_lists_every_file_of_data_with_its_digest():
    lines = (paths.ROOT / metadata.MANIFEST).read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path.relative_to(paths.ROOT).as_posix(): path for path in paths.DATA.rglob("*") if path.is_file()}
    del files[metadata.MANIFEST]
    kept = {name: path for name, path in files.items() if path.suffix != ".pyc"}
    assert listed.keys() == kept.keys(), REPAIR
    wrong = [n for n, path in kept.items() if hashlib.sha256(path.read_bytes()).hexdigest() != listed[n]]
    assert wrong == [], REPAIR


# -- a release


def test_a_release_brings_its_day_its_doi_and_its_address(known):
    released = {
        **known,
        "record": {**known["record"], "date-released": date(2027, 1, 2), "doi": "10.5281/zenodo.1"},
    }
    urls = {"Paper": "https://arxiv.org/abs/1", "Repository": "https://example.org/code"}
    released["project"] = {**known["project"], "urls": urls}
    code, tables, cited = (
        metadata.fill(f"{name}.json", metadata.facts_of(released)) for name in ("codemeta", "croissant", "citation")
    )
    assert code["identifier"] == "https://doi.org/10.5281/zenodo.1"
    assert code["codeRepository"] == cited["repository-code"] == tables["url"] == "https://example.org/code"
    assert tables["datePublished"] == "2027-01-02"
    assert (cited["date-released"], cited["doi"]) == (date(2027, 1, 2), "10.5281/zenodo.1")


def test_before_a_release_nothing_names_what_there_is_not_yet(known):
    code, cited = (metadata.fill(f"{name}.json", metadata.facts_of(known)) for name in ("codemeta", "citation"))
    assert not {"identifier", "codeRepository"} & code.keys()
    assert not {"date-released", "doi", "repository-code"} & cited.keys()


def test_until_there_is_an_address_the_tables_point_to_the_paper(known):
    nowhere = {
        **known,
        "book": {"html": {}, "copyright": "2026"},
        "project": {**known["project"], "urls": {"Paper": "https://p"}},
    }
    assert metadata.facts_of(nowhere)["address"] == "https://p"
    built = {**nowhere, "book": {"html": {"baseurl": "https://b"}, "copyright": "2026"}}
    assert metadata.facts_of(built)["address"] == "https://b"
