"""Describe the tables of data/, column by column, in the terms of Croissant (https://mlcommons.org/croissant)."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COMMENTS = "Lines that begin with # are comments: pandas.read_csv(file, comment='#')."


def croissant(about: Mapping[str, Any], tables: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Add files and columns to what is said about all tables: https://mlcommons.org/croissant, version 1.0."""
    files, sets = [], []
    for name, table in tables["table"].items():
        path = root / "data" / f"{name}.csv"
        text = path.read_text(encoding="utf-8")
        files.append({
            "@type": "cr:FileObject",
            "@id": path.name,
            "name": path.name,
            "description": f"{table['title']}. {COMMENTS}" if text.startswith("#") else f"{table['title']}.",
            "contentUrl": path.name,
            "contentSize": f"{path.stat().st_size} B",
            "encodingFormat": "text/csv",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        })  # fmt: skip
        head, *rows = csv.reader(line for line in io.StringIO(text) if not line.startswith("#"))
        said = described(head, columns_of(name, tables), tables["words"])
        fields = [
            {
                "@type": "cr:Field",
                "@id": f"{name}/{column}",
                "name": column,
                "description": said[column],
                "dataType": kind(row[at] for row in rows),
                "source": {"fileObject": {"@id": path.name}, "extract": {"column": column}},
            }
            for at, column in enumerate(head)
        ]
        about_rows = f"{table['title']}: a row is {table['row']}."
        sets.append({"@type": "cr:RecordSet", "@id": name, "name": name, "description": about_rows, "field": fields})
    return {**about, "distribution": files, "recordSet": sets}


def columns_of(name: str, tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the descriptions of a table's columns, those of the table that it is like included."""
    table = tables["table"][name]
    return (columns_of(table["like"], tables) if "like" in table else {}) | table["columns"]


def described(columns: Iterable[str], rules: Mapping[str, str], words: Mapping[str, Mapping[str, str]]) -> dict:
    """Return each column its description, by name or by the rule that its name follows; without one it is refused."""
    found = {}
    for column in columns:
        if column in rules:
            found[column] = rules[column]
            continue
        for rule, text in rules.items():
            if rule.startswith("/") and (match := re.fullmatch(rule.strip("/"), column)):
                spelt = {group: words[group][part or "none"] for group, part in match.groupdict().items()}
                found[column] = text.format(**spelt)
                break
        else:
            raise SystemExit(f"error: the column {column!r} has no description; add one to data/tables.toml")
    return found


def kind(values: Iterable[str]) -> str:
    """Return whether the cells of a column are whole numbers, numbers or text; empty ones say nothing."""
    given = [value for value in values if value]
    for name, read in {"sc:Integer": int, "sc:Float": float}.items():
        try:
            if given and [read(value) for value in given]:
                return name
        except ValueError:
            continue
    return "sc:Text"


def one_field_a_line(record: Mapping[str, Any]) -> str:
    """Write a Croissant file with each column on one line, a third as long as it would be otherwise."""
    places: list[str] = []

    def kept(field: dict[str, Any]) -> str:
        places.append(json.dumps(field, ensure_ascii=False))
        return f"@@{len(places) - 1}@@"

    sets = [{**one, "field": [kept(field) for field in one["field"]]} for one in record["recordSet"]]
    text = json.dumps({**record, "recordSet": sets}, indent=2, ensure_ascii=False)
    return re.sub(r'"@@(\d+)@@"', lambda found: places[int(found[1])], text) + "\n"
