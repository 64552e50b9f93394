"""Add the measurements of a model to the files that ship with the project, so that the book need not repeat them.

    python -m workflow.ship smollm2-135m

Only what the library of today would read again is taken: the version of its measure is the current one, weights are
held in float32, and a chapter asks for it. Of coupling across depth and tokens, by far the most, no variable ships that
no figure draws (`DRAWN` of each file in `companion/figures`), nor coupling matrices of other blocks than those drawn.

What a prompt brings to a mean or an interval ships as it was measured, in single precision. Numbers of single pairs of
blocks or tokens are rounded to 16 significant bits, a relative error of 1.5e-5 at most: figures show them as shades,
and means over pairs move by some 1e-6 of themselves. A sweep that names the `variables` it wants reads what ships if
that has them; any other measures anew (`coupling_lib.sweep`).
"""

from __future__ import annotations

import io
import lzma
import shutil
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import coupling_lib as cl
from companion.figures import depth, prompts, readings, take, tokens
from companion.tables.lenses import measure_readouts
from companion.tables.readings import CHOICES
from coupling_lib import paths, store
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import prompt_name
from coupling_lib.metrics.variants import VARIANTS
from coupling_lib.progress import in_one_line
from coupling_lib.store import files
from workflow.settings import MEASURES

BITS = 16
"""Significant bits of a number of a single pair."""
# For numbers of four bytes: bytes at the same place of a number are alike.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 2, "pb": 2}]


def ship(model: str) -> dict[str, int]:
    """Pack a model's measurements, an archive per measure; return their sizes in bytes."""
    measures = MEASURES | {"precision": cl.measure_precision, "readouts": measure_readouts}
    versions = {name: measure.version for name, measure in measures.items()}
    chosen: dict[str, dict[str, bytes]] = defaultdict(dict)
    for path, old in current_files(model, versions):
        record, ds = files.open_file(path)
        if old:
            chosen[record["key"]["measure"]][path.name] = path.read_bytes()
        elif (part := shipped(record["key"], ds)) is not None:
            chosen[record["key"]["measure"]][path.name] = files.encode(record, part, single=True)
    if not chosen:
        raise ParameterError(f"nothing is stored of {model!r} that this library would read; measure it before it ships")
    archives = {name: packed(dict(sorted(contents.items()))) for name, contents in chosen.items()}
    folder = paths.SHIPPED / model
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in archives.items():
        (folder / f"{name}{files.ARCHIVE}").write_bytes(content)
    return {name: len(content) for name, content in archives.items()}


def current_files(model: str, versions: dict[str, int]) -> Iterator[tuple[Path, bool]]:
    """List a model's files that the library of today would read, and whether each ships already."""
    # What ships stays, so that a model may be measured in parts, on several machines. Narrow precisions stand in the
    # comparison of precisions, which is kept as a whole.
    for root in (files.shipped(model), paths.RESULTS):
        table = store.listing(model, root)
        table = table[(table["precision"] == "float32") & (table["version"] == table["measure"].map(versions))]
        yield from ((Path(path), root != paths.RESULTS) for path in table["path"])


def packed(contents: dict[str, bytes]) -> bytes:
    """Pack files into one archive, without owners or times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return lzma.compress(buffer.getvalue(), filters=_FILTERS)


def shipped(key: dict[str, Any], ds: xr.Dataset) -> xr.Dataset | None:
    """Reduce a measurement to its shipped part; None where no chapter asks for it."""
    measure, settings, trained = key["measure"], key["settings"], not key["untrained"]
    if measure not in ("depth", "tokens"):
        return ds
    if measure == "depth" and settings["token"] != -1:
        return None
    if measure == "depth" and len(settings["ks"]) > 1:
        drawn, own = readings.DRAWN, settings["boundary"] == "block"
        ranked = {*VARIANTS} if own and trained else {choice.variant for choice in CHOICES} if own else {take.VARIANT}
        masks = dict.fromkeys({*drawn} - {*VARIANTS}, own)
        masks |= {name: (ds["k"] == readings.DRAWN_K) & (name in ranked) for name in VARIANTS}
    elif measure == "depth":
        own = ds["prompt"].item() in {prompt_name(prompt.text) for prompt in cl.load_prompts(n=12)}
        drawn, middle = (depth if own else prompts).DRAWN, take.middle_blocks(ds.sizes["block_1"])
        inside = ds["block_1"].isin(middle) & ds["block_2"].isin(middle)
        masks = {"matrix": inside, "shared_matrix": inside & trained}
        # Chance is that of the trained network; the explorer shows that of both.
        masks |= {} if own else dict.fromkeys(("singular_values", "frobenius_norm"), trained)
    else:
        drawn, grid = tokens.DRAWN, settings["kind"] == "self" or settings.get("other") not in (None, settings["block"])
        masks = dict.fromkeys([name for name in drawn if name.startswith("shared_")], trained)
        masks |= {"matrix": grid, "shared_matrix": grid and trained}
    left_out = [str(name) for name in ds.data_vars if name not in drawn]
    kept = ds.drop_vars(left_out).assign_attrs({files.NOT_SHIPPED: ", ".join(left_out)})
    # What no figure draws of a variable is NaN.
    kept = kept.assign({name: kept[name].where(mask) for name, mask in masks.items() if name in kept})
    return kept.assign({name: rounded(values) for name, values in kept.items()})


def rounded(values: xr.DataArray) -> xr.DataArray:
    """Round the values of single pairs, except matrices of blocks, of which few are drawn; leave anything else."""
    dims = {*map(str, values.dims)}
    if ({"block_1", "block_2"} <= dims and "row" not in dims) or {"token_1", "token_2"} <= dims:
        mantissa, exponent = np.frexp(values.values)
        return values.copy(data=np.ldexp(np.rint(mantissa * 2**BITS), exponent - BITS).astype(values.dtype))
    return values


def main(models: Sequence[str]) -> int:
    """Ship models one after the other, and print the size of each."""
    for name in models:
        sizes = ship(name)
        print(f"{name}: {sum(sizes.values()):,} bytes ship with the project")
        print("".join(f"  {measure:14}{size:>10,}\n" for measure, size in sizes.items()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(in_one_line(lambda: main(sys.argv[1:]), "interrupted"))
