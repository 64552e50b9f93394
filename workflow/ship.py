"""Put what was measured of a model among the files that ship with the project, so that the book need not repeat it.

    python -m workflow.ship smollm2-135m

Only what the library of today would read again is taken: the version of its measure is the current one. Files above
2 MB, such as those with the coupling matrices at K = 50, are left out; whoever asks for them measures them anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import coupling_lib as cl
from companion.tables.lenses import measure_readouts
from coupling_lib import paths, store
from coupling_lib.store import files
from workflow.settings import MEASURES

LARGEST = 2_000_000
"""Bytes of a file above which it is left out."""


def ship(model: str) -> int:
    """Copy a model's measurements; the number of files."""
    measures = MEASURES | {"precision": cl.measure_precision, "readouts": measure_readouts}
    versions = {name: measure.version for name, measure in measures.items()}
    table = store.listing(model)
    # Narrow precisions stand in the comparison of precisions, which is kept as a whole.
    plain = (table["precision"] == "float32") & (table["bytes"] <= LARGEST)
    chosen = table[plain & (table["version"] == table["measure"].map(versions))]
    folder = paths.SHIPPED / model / files.FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in map(Path, chosen["path"]):
        shutil.copy(path, folder / path.name)
    return len(chosen)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{ship(name)} measurements of {name} now ship with the project")
