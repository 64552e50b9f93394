"""Folders of the project's files."""

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
# In a checkout `data/` lies beside the package; a wheel carries it inside.
_INSTALLED = (PACKAGE / "data").is_dir()
DATA = PACKAGE / "data" if _INSTALLED else ROOT / "data"
CHECKPOINTS = DATA / "checkpoints"
# Measurements that ship with the project, laid out as `RESULTS`; they are read, never written.
SHIPPED = DATA / "measurements"
# Results go into the checkout, or the working directory: never among installed packages. COUPLING_RESULTS, read
# when the library is imported, names another folder.
RESULTS = Path(os.environ.get("COUPLING_RESULTS") or (Path.cwd() if _INSTALLED else ROOT) / "results").absolute()
# Files that may be deleted at any time, and are then created again.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coupling_lib"
PARTIAL = ".partial"


def in_a_checkout(place: Path) -> str:
    """Return where a file of data/ is that an installed package leaves out, for a message."""
    urls = dict(line.split(", ") for line in metadata("coupling_lib").get_all("Project-URL") or [])
    address = f" ({urls['Repository']})" if "Repository" in urls else ""
    within = place.relative_to(DATA) if place.is_relative_to(DATA) else Path(place.name)
    return f"a checkout of the project{address} has it in {(Path('data') / within).as_posix()}"


@contextmanager
def atomic_path(target: Path) -> Generator[Path]:
    """Return a temporary path beside a file's or a folder's; it replaces that on success, and is removed otherwise."""
    # After a crash all of it is there or nothing. Of two writers of a file the last wins, of a folder the first.
    partial = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        yield partial
        if not (partial.is_dir() and target.exists()):
            partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)


def write_text(target: Path, content: str) -> None:
    """Write a text atomically, with its line endings unchanged."""
    with atomic_path(target) as partial:
        partial.write_text(content, encoding="utf-8", newline="")
