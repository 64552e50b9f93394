"""Writes `sbom.json`: every package of the environment with its exact version, in the CycloneDX format.

It lists what the pins of pyproject.toml bring with them on this platform. `make audit` writes it and looks each package
up among known vulnerabilities; `tests/workflow/test_security.py` compares it with the pins.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_REQUIREMENT = re.compile(r"\s*([\w.-]+)\s*(?:\[([\w.,\s-]+)\])?[^;]*(?:;(.*))?")


def canonical(name: str) -> str:
    """Writes a package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Reads what pyproject.toml pins.

    Returns:
        versions by canonical name, extras included but for `sweep`, which has an environment of its own.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != "sweep"}
    lists = [project["dependencies"], *extras.values()]
    return {canonical(name): version for lines in lists for name, version in (line.split("==") for line in lines)}


def installed() -> dict[str, str]:
    """Follows the requirements of the pinned packages through the environment.

    Returns:
        versions by canonical name of the pinned packages and of all that they need and that is installed.
    """
    found: dict[str, str] = {}
    waiting = list(pins())
    while waiting:
        name = canonical(waiting.pop())
        if name in found:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another platform, or an extra that nobody asked for
            continue
        found[name] = package.version.partition("+")[0]
        waiting += _needed(package.requires or [])
    return dict(sorted(found.items()))


def _needed(requirements: list[str]) -> Iterator[str]:
    """Name what a package needs without its extras."""
    for line in requirements:
        name, _, marker = _REQUIREMENT.fullmatch(line).groups()
        if "extra" not in (marker or ""):
            yield name


def bill() -> dict[str, Any]:
    """Makes the bill of materials.

    Returns:
        a CycloneDX document that depends on the environment alone, not on when it is made.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in installed().items()
    ]
    own = {"type": "library", "name": project["name"], "version": project["version"]}
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1}
    return document | {"metadata": {"component": own}, "components": packages}


if __name__ == "__main__":
    path = ROOT / "sbom.json"
    path.write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
    print(f"{len(bill()['components'])} packages are listed in {path.name}")
