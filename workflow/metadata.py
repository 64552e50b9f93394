"""Write what catalogues read about this project, and the digests of all data: `python -m workflow.metadata`.

CITATION.cff, CodeMeta, Zenodo, RO-Crate, Croissant and the bill of materials are `workflow/templates`, filled with
facts of `pyproject.toml`, `requirements.lock`, `_config.yml` and `data/`. A test compares what is committed with them.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from coupling_lib import paths
from workflow.croissant import croissant, one_field_a_line

TEMPLATES = Path(__file__).parent / "templates"
MANIFEST = "data/MANIFEST.sha256"
CROISSANT = "data/croissant.json"
SHIPPED = {"checkpoints": "A model trained for this project", "measurements": "Measurements of"}


def sources(root: Path = paths.ROOT) -> dict[str, Any]:
    """Read the project with its record and its lock, the configuration of its book, what its tables hold."""

    def text(name: str) -> str:
        return (root / name).read_text(encoding="utf-8")

    asked = tomllib.loads(text("pyproject.toml"))
    return {
        "project": asked["project"],
        "record": asked["tool"]["record"],
        "locked": re.findall(r"^([\w.-]+)==([\w.]+)", text("requirements.lock"), re.MULTILINE),
        "book": yaml.safe_load(text("_config.yml")),
        "tables": tomllib.loads(text("data/tables.toml")),
    }


def records(root: Path = paths.ROOT) -> dict[str, str]:
    """Return every record by the name of its file."""
    known = sources(root)
    facts = facts_of(known)
    plain = {name: fill(name.strip("."), facts) for name in ("codemeta.json", ".zenodo.json", "sbom.json")}
    plain["ro-crate-metadata.json"] = crate(known, facts, root)
    made = {name: json.dumps(record, indent=2, ensure_ascii=False) + "\n" for name, record in plain.items()}
    made["CITATION.cff"] = yaml.safe_dump(fill("citation.json", facts), sort_keys=False, width=120)
    made[CROISSANT] = one_field_a_line(croissant(fill("croissant.json", facts), known["tables"], root))
    return made | {MANIFEST: manifest(root, {CROISSANT: made[CROISSANT]})}


def facts_of(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return every fact by the name that it has in the templates; None where it comes with the first release."""
    project, record, book = known["project"], known["record"], known["book"]
    paper, urls = record["paper"], project["urls"]
    people = [
        {"@id": f"#author-{at}", "@type": "Person", "givenName": given, "familyName": family}
        for at, (given, family) in enumerate(paper["authors"], start=1)
    ]
    makers = [
        {"@id": f"#maker-{at}", "@type": "Organization", "name": one["name"]}
        for at, one in enumerate(project["authors"], start=1)
    ]
    asked = [re.fullmatch(r"([\w.-]+)(.*)", line).groups() for line in project["dependencies"]]
    return {
        **{name: project[name] for name in ("name", "version", "license", "keywords", "authors", "readme")},
        **{name: record[name] for name in ("title", "abstract")},
        **{name: paper[name] for name in ("year", "conference", "proceedings", "identifier")},
        "paper_title": paper["title"],
        "paper": urls["Paper"],
        "year_text": str(paper["year"]),
        "spdx": f"https://spdx.org/licenses/{project['license']}",
        "keywords_text": ", ".join(project["keywords"]),
        "pythons": project["requires-python"],
        "needs": [{"@type": "SoftwareApplication", "name": name, "softwareVersion": range_} for name, range_ in asked],
        "packages": [
            {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
            for name, version in known["locked"]
        ],
        "people": people,
        "person_ids": _ids(people),
        "cited": [{"given-names": given, "family-names": family} for given, family in paper["authors"]],
        "cited_names": ", ".join(" ".join(names) for names in paper["authors"]),
        "makers": makers,
        "sc_makers": [{"@type": "sc:Organization", "name": one["name"]} for one in makers],
        "maker_ids": _ids(makers),
        "repository": urls.get("Repository"),
        "doi": record.get("doi"),
        "doi_address": f"https://doi.org/{record['doi']}" if "doi" in record else None,
        "released": record.get("date-released"),
        # Before the first release the year of the book stands for its day, and the paper for its place.
        "published": str(record.get("date-released", book["copyright"])),
        "address": urls.get("Repository") or book.get("html", {}).get("baseurl") or urls["Paper"],
    }


def fill(template: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Put facts into a template; an entry whose fact there is not yet is left out."""

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            entries = {name: filled(value) for name, value in part.items()}
            return {name: value for name, value in entries.items() if value is not None}
        if isinstance(part, list):
            return [filled(value) for value in part]
        if isinstance(part, str) and (whole := re.fullmatch(r"\{(\w+)\}", part)):
            return facts[whole[1]]
        return part.format_map(facts) if isinstance(part, str) else part

    return filled(json.loads((TEMPLATES / template).read_text(encoding="utf-8")))


def crate(known: Mapping[str, Any], facts: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Add to the template of the research object who made it, every table, and every model that is shipped."""
    record = fill("ro-crate-metadata.json", facts)
    graph = record["@graph"]
    for name, table in known["tables"]["table"].items():
        about = {"name": f"{name}.csv", "description": f"{table['title']}: a row is {table['row']}."}
        graph.append({"@id": f"data/{name}.csv", "@type": "File", **about, "encodingFormat": "text/csv"})
    for kind, title in SHIPPED.items():
        for path in sorted((root / "data" / kind).glob("*/")):
            graph.append({"@id": f"data/{kind}/{path.name}/", "@type": "Dataset", "name": f"{title}: {path.name}"})
    parts = [one for one in graph if one["@type"] in ("File", "Dataset") and one["@id"] != "./"]
    graph[1]["hasPart"] = _ids(parts)
    graph += [*facts["people"], *facts["makers"]]
    return record


def _ids(entities: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"@id": one["@id"]} for one in entities]


def manifest(root: Path, written: Mapping[str, str]) -> str:
    """List the sha256 of every file in data/, as `sha256sum --check data/MANIFEST.sha256` reads it."""
    names = {
        path.relative_to(root).as_posix()
        for path in (root / "data").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    lines = []
    for name in sorted((names | written.keys()) - {MANIFEST}):
        content = written[name].encode() if name in written else (root / name).read_bytes()
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    return "".join(lines)


if __name__ == "__main__":
    for name, text in records().items():
        (paths.ROOT / name).write_text(text, encoding="utf-8")
        print(name)
