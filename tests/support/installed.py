"""What is installed here, and what pyproject.toml asks for."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coupling_lib import paths

PROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
# In an environment of its own, and in no lock.
APART = ("sweep", "peers")
LOCKED = tuple(name for name in EXTRAS if name not in APART)


def requirements(extras: Iterable[str] = LOCKED) -> list[str]:
    """What the library and some of its extras ask for, as it is written."""
    return [*PROJECT["project"]["dependencies"], *(line for name in extras for line in EXTRAS[name])]


def lock() -> list[Requirement]:
    """The lines of requirements.lock that are for this platform and this Python."""
    lines = (paths.ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    read = [Requirement(line) for line in lines]
    return [one for one in read if one.marker is None or one.marker.evaluate()]


def closure(lines: Iterable[str]) -> dict[str, Distribution]:
    """Follow requirements through what is installed, extras that nobody asked for left out."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(line) for line in lines]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in found or not (one.marker is None or one.marker.evaluate({"extra": ""})):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # what torch for another device would need
            continue
        waiting += map(Requirement, found[name].requires or [])
    return found
