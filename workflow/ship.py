"""Put what was measured of a model among the files that ship with the project, so that the book need not repeat it.

    python workflow/ship.py smollm2-135m

Only what the library of today would read again is taken: the version of its measure is the current one. Files above
2 MB, such as those with the coupling matrices at K = 50, are left out; whoever asks for them measures them anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import coupling_lib as cl
from coupling_lib import paths, store
from coupling_lib.measures import nulls
from coupling_lib.store import files

LARGEST = 2_000_000
"""Bytes of a file above which it is left out."""

MEASURES = (
    *(cl.measure_depth, cl.measure_tokens, cl.measure_trajectories, cl.measure_spectra, cl.measure_precision),
    *(cl.measure_dynamics, cl.measure_perturbation, nulls.measure_nulls, nulls.measure_decisive),
)


def ship(model: str) -> int:
    """Copy a model's measurements; the number of files."""
    versions = {measure.__name__.removeprefix("measure_"): measure.version for measure in MEASURES}
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
