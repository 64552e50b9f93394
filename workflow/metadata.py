"""Write what catalogues read about this project: CodeMeta, Zenodo, RO-Crate, Croissant, and the digests of all data.

    python -m workflow.metadata

All of it follows from `pyproject.toml`, `CITATION.cff`, `_config.yml`, `data/tables.toml` and the files in `data/`; a
test compares what is committed with what this writes.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from coupling_lib import paths
from workflow.croissant import croissant, one_field_a_line

SPDX = "https://spdx.org/licenses/"
MANIFEST = "data/MANIFEST.sha256"
CROISSANT = "data/croissant.json"


def sources(root: Path = paths.ROOT) -> dict[str, Any]:
    """Read the project, its citation, the configuration of its book, and the descriptions of its tables."""
    return {
        "project": tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"],
        "citation": yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8")),
        "book": yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8")),
        "tables": tomllib.loads((root / "data" / "tables.toml").read_text(encoding="utf-8")),
    }


def records(root: Path = paths.ROOT) -> dict[str, str]:
    """Give every record by the name of its file."""
    known = sources(root)
    found = {
        "codemeta.json": _json(codemeta(known)),
        ".zenodo.json": _json(zenodo(known)),
        "ro-crate-metadata.json": _json(crate(known, root)),
        CROISSANT: one_field_a_line(croissant(common(known), known["tables"], root)),
    }
    return found | {MANIFEST: manifest(root, {CROISSANT: found[CROISSANT]})}


# -- what several records say


def published(known: Mapping[str, Any]) -> str:
    """Give the day of the release, or before the first one the year of the book."""
    return str(known["citation"].get("date-released", known["book"]["copyright"]))


def address(known: Mapping[str, Any]) -> str:
    """Give where the project lies: its repository, its book, or while there is neither, the paper."""
    urls = known["project"]["urls"]
    return urls.get("Repository") or known["book"].get("html", {}).get("baseurl") or urls["Paper"]


def paper(known: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the paper in the terms of schema.org."""
    cited = known["citation"]["preferred-citation"]
    people = [
        {"@type": "Person", "givenName": one["given-names"], "familyName": one["family-names"]}
        for one in cited["authors"]
    ]
    return {
        "@type": "ScholarlyArticle",
        "name": cited["title"],
        "author": people,
        "datePublished": str(cited["year"]),
        "isPartOf": {"@type": "PublicationVolume", "name": cited["collection-title"]},
        "identifier": cited["identifiers"][0]["value"],
        "url": cited["url"],
    }


def _identity(known: Mapping[str, Any]) -> dict[str, Any]:
    citation = known["citation"]
    doi = {"identifier": f"https://doi.org/{citation['doi']}"} if "doi" in citation else {}
    return {
        "name": citation["title"],
        "description": citation["abstract"].strip(),
        "version": citation["version"],
        "license": f"{SPDX}{citation['license']}",
        "keywords": citation["keywords"],
        **doi,
    }


def _authors(known: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"@type": "Organization", "name": one["name"]} for one in known["citation"]["authors"]]


# -- the project as software


def codemeta(known: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the software: https://codemeta.github.io, version 3.0."""
    project = known["project"]
    repository = project["urls"].get("Repository")
    needs = [
        {"@type": "SoftwareApplication", "name": name, "softwareVersion": version}
        for name, version in (line.split("==") for line in project["dependencies"])
    ]
    return {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        **_identity(known),
        **({"codeRepository": repository} if repository else {}),
        "author": _authors(known),
        "programmingLanguage": {"@type": "ComputerLanguage", "name": "Python"},
        "runtimePlatform": f"Python {project['requires-python']}",
        "softwareRequirements": needs,
        "readme": project["readme"],
        "referencePublication": paper(known),
    }


def zenodo(known: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a release for Zenodo, which gives it a DOI: https://developers.zenodo.org."""
    citation = known["citation"]
    return {
        "upload_type": "software",
        "title": citation["title"],
        "description": citation["abstract"].strip(),
        "creators": [{"name": one["name"]} for one in citation["authors"]],
        "version": citation["version"],
        "license": citation["license"],
        "access_right": "open",
        "language": "eng",
        "keywords": citation["keywords"],
        "related_identifiers": [
            {
                "identifier": citation["preferred-citation"]["identifiers"][0]["value"],
                "relation": "isSupplementTo",
                "resource_type": "publication-conferencepaper",
                "scheme": "arxiv",
            }
        ],
    }


# -- the project as a package of research


def crate(known: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Describe the project as a research object: https://w3id.org/ro/crate/1.1."""
    article, authors = paper(known), _authors(known)
    tables, folders = known["tables"]["table"], _folders(root)
    files = {
        f"data/{name}.csv": (f"{table['title']}: a row is {table['row']}.", "text/csv")
        for name, table in tables.items()
    } | {
        MANIFEST: ("sha256 of every file in data/.", "text/plain"),
        "data/claims.toml": ("The claims of the paper, and what is asked of the measurements.", "application/toml"),
        "data/predictions.toml": ("What was expected of the experiments before their measurement.", "application/toml"),
        "data/tables.toml": ("What every column of the tables holds.", "application/toml"),
        "CITATION.cff": ("How to cite this.", "text/yaml"),
    }
    parts = [
        {"@id": name, "@type": "File", "name": Path(name).name, "description": text, "encodingFormat": kind}
        for name, (text, kind) in files.items()
    ] + [{"@id": name, "@type": "Dataset", "name": title} for name, title in folders.items()]
    people = [{"@id": f"#author-{at}", **one} for at, one in enumerate(article["author"], start=1)]
    makers = [{"@id": f"#maker-{at}", **one} for at, one in enumerate(authors, start=1)]
    about = {name: value for name, value in _identity(known).items() if name not in ("license", "keywords")}
    licence = {"@id": f"{SPDX}{known['citation']['license']}"}
    graph = [
        {
            "@id": "ro-crate-metadata.json",
            "@type": "CreativeWork",
            "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
            "about": {"@id": "./"},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            **about,
            "keywords": ", ".join(known["citation"]["keywords"]),
            "datePublished": published(known),
            "license": licence,
            "author": [{"@id": one["@id"]} for one in makers],
            "citation": {"@id": article["url"]},
            "hasPart": [{"@id": part["@id"]} for part in parts],
        },
        {**licence, "@type": "CreativeWork", "name": known["citation"]["license"]},
        {
            "@id": article["url"],
            "@type": "ScholarlyArticle",
            "name": article["name"],
            "datePublished": article["datePublished"],
            "identifier": article["identifier"],
            "author": [{"@id": one["@id"]} for one in people],
        },
        *people,
        *makers,
        *parts,
    ]
    return {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}


def _folders(root: Path) -> dict[str, str]:
    found = {
        "coupling_lib/": "The library",
        "notebooks/": "One notebook per chapter of the book",
        "book/": "The prose of the book",
        "tests/": "The tests",
        "data/prompts/": "Prompts",
    }
    for kind, title in {"checkpoints": "A model trained for this project", "measurements": "Measurements of"}.items():
        for folder in sorted(path for path in (root / "data" / kind).iterdir() if path.is_dir()):
            found[f"data/{kind}/{folder.name}/"] = f"{title}: {folder.name}"
    return found


# -- the digests


def manifest(root: Path, written: Mapping[str, str]) -> str:
    """List the sha256 of every file in data/, as `sha256sum --check data/MANIFEST.sha256` reads it."""
    names = {
        path.relative_to(root).as_posix()
        for path in (root / "data").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    lines = []
    for name in sorted(names | set(written) - {MANIFEST}):
        content = written[name].encode() if name in written else (root / name).read_bytes()
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    return "".join(line for line in lines if not line.endswith(f"  {MANIFEST}\n"))


# -- writing


def common(known: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the record of the tables says about the project."""
    about, article = _identity(known), paper(known)
    authors = ", ".join(f"{one['givenName']} {one['familyName']}" for one in article["author"])
    return {
        "description": "The tables of the project. " + about["description"],
        "license": about["license"],
        "version": about["version"],
        "keywords": about["keywords"],
        "url": address(known),
        "datePublished": published(known),
        "creator": [{"@type": "sc:Organization", "name": one["name"]} for one in _authors(known)],
        "citeAs": f"{authors}: {article['name']}. {article['isPartOf']['name']}, {article['identifier']}.",
    }


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, text in records().items():
        (paths.ROOT / name).write_text(text, encoding="utf-8")
        print(name)
