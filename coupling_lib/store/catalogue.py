"""What the store holds: listed, joined, exported as tables, and cleared of what is of no more use."""

import importlib.util
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from coupling_lib import paths
from coupling_lib.errors import CouplingError, ParameterError
from coupling_lib.store import files
from coupling_lib.store.joining import join_prompts, long_table

Root = str | Path | None
"""Folder of all results; None for the usual one."""

COLUMNS = (
    *("model", "measure", "version", "settings", "revision", "precision", "untrained", "seed"),
    *("prompt", "made", "bytes", "source", "weights", "code", "path"),
)
"""Columns of `listing`: what fixes a measurement, when it was made, and its file."""

# What may differ between the measurements of one data set.
_OWN = ("prompt", "made", "bytes", "path")

# A file that is being written is younger than this, in seconds.
_WRITING = 3600


def listing(model: str | None = None, measure: str | None = None, root: Root = None) -> pd.DataFrame:
    """List the measurements that are kept, without reading their numbers."""
    wanted = {name: value for name, value in (("model", model), ("measure", measure)) if value is not None}
    records = ((path, files.open_record(path)) for path in _files(root, files.SUFFIX))
    rows = [_row(record, path) for path, record in records if record and wanted.items() <= record["key"].items()]
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values(["made", "path"], ignore_index=True)


def join(model: str | None = None, measure: str | None = None, root: Root = None, **choice: Any) -> xr.Dataset:
    """Join the measurements of many prompts to one data set."""
    table = _chosen(listing(model, measure, root), choice)
    shared = table.drop(columns=list(_OWN))
    differing = [column for column in shared.columns if shared[column].nunique(dropna=False) > 1]
    if differing:
        seen = "; ".join(f"{name}: {', '.join(map(str, shared[name].unique()[:4]))}" for name in differing)
        raise ParameterError(f"these measurements are of several kinds ({seen}); choose one by {differing[0]}=")
    joined = join_prompts(_readable(table["path"]))
    # What a measurement of one prompt says of its prompt and its command is not true of them all.
    joined.attrs = {name: v for name, v in joined.attrs.items() if name not in ("prompts_sha256", "command")}
    joined.attrs["n_prompts"] = joined.sizes.get("prompt", 1)
    return joined


def export(
    target: str | Path,
    measure: str,
    model: str | None = None,
    variables: Sequence[str] | None = None,
    root: Root = None,
) -> int:
    """Write measurements as a table with one number a row (see `long_table`)."""
    # A CSV file grows measurement by measurement, whatever their number; the other forms are put together in memory.
    target = Path(target)
    if target.suffix not in (".csv", ".parquet", ".nc"):
        raise ParameterError(f"the file {target.name!r} ends in {target.suffix!r}; use .csv, .parquet or .nc")
    if target.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise CouplingError("Parquet needs the package pyarrow: pip install pyarrow, or export to .csv")
    table = _chosen(listing(model, measure, root), {})
    with paths.written_beside(target) as partial:
        if target.suffix == ".nc":
            joined = join(model, measure, root)
            try:
                joined[list(variables) if variables else list(joined.data_vars)].to_netcdf(partial, engine="scipy")
            except (ValueError, TypeError, KeyError) as error:
                raise CouplingError(f"NetCDF cannot hold this ({error}); choose variables, or export to .csv") from None
        elif target.suffix == ".csv":
            _write_csv(partial, table, variables)
        else:
            pd.concat(_tables(table, variables), ignore_index=True).to_parquet(partial, engine="pyarrow", index=False)
    return len(table)


def prune(
    model: str | None = None, *, damaged: bool = False, outdated: bool = False, root: Root = None, dry_run: bool = False
) -> list[Path]:
    """Remove files of the store. Without a choice nothing is removed."""
    table = listing(model, root=root)
    chosen: list[Path] = []
    if damaged:
        # A damaged file does not say whose it is; its folder does.
        folders = None if model is None else {Path(path).parent for path in table["path"]}
        spoilt = [*_files(root, files.DAMAGED), *(p for p in _files(root, paths.PARTIAL) if _age(p) > _WRITING)]
        chosen += [path for path in spoilt if folders is None or path.parent in folders]
    if outdated:
        # By version before time: a clock may have gone backwards.
        newest = listing(root=root).sort_values(["version", "made"]).groupby("measure")[["version", "code"]].last()
        current = newest.reindex(table["measure"]).reset_index(drop=True)
        old = (table[["version", "code"]].reset_index(drop=True) != current).any(axis=1)
        chosen += map(Path, table["path"][old])
    if model is not None and not damaged and not outdated:
        chosen += map(Path, table["path"])
    for path in chosen if not dry_run else ():
        path.unlink(missing_ok=True)
    return chosen


def _files(root: Root, suffix: str) -> list[Path]:
    start = paths.RESULTS if root is None else Path(root)
    folders = [folder for folder in start.glob(f"*/{files.FOLDER}") if folder.is_dir()]
    return sorted(path for folder in folders for path in folder.iterdir() if path.name.endswith(suffix))


def _row(record: dict[str, Any], path: Path) -> dict[str, Any]:
    key = record["key"]
    row = {name: "" if key.get(name) is None else key[name] for name in COLUMNS}
    prompts = [v["texts"][0] for v in record["variables"] if v["name"] == "prompt" and v.get("texts")]
    row |= {"prompt": prompts[0] if prompts else "", "settings": json.dumps(key.get("settings", {}), sort_keys=True)}
    return row | {"made": record["made"], "bytes": path.stat().st_size, "path": str(path)}


def _chosen(table: pd.DataFrame, choice: dict[str, Any]) -> pd.DataFrame:
    for name, value in choice.items():
        if name not in COLUMNS:
            raise ParameterError(f"there is no column {name!r} to choose by; the columns are {', '.join(COLUMNS)}")
        table = table[table[name] == value]
    if table.empty:
        elsewhere = f"; what ships is not installed; {paths.in_a_checkout(paths.SHIPPED)}"
        shipped = "" if paths.SHIPPED.is_dir() else elsewhere
        raise ParameterError(f"the store holds no such measurement; store.listing() shows what there is{shipped}")
    return table


def _readable(names: Iterable[str]) -> Iterator[xr.Dataset]:
    """Read files one after another, a complete one first; what is damaged is set aside."""
    late, started = [], False
    for path in map(Path, names):
        if (found := files.open_sound(path)) is None:
            continue
        record, ds = found
        started = started or record["complete"]
        if started:
            yield ds
        else:
            late.append(ds)
    yield from late


def _tables(table: pd.DataFrame, variables: Sequence[str] | None) -> Iterator[pd.DataFrame]:
    columns = ["model", "revision", "precision", "untrained", "seed", "settings"]
    for row in table.to_dict("records"):
        for ds in _readable([row["path"]]):
            long = long_table(ds, variables)
            yield long.assign(**{name: row[name] for name in columns})[[*columns, *long.columns]]


def _write_csv(target: Path, table: pd.DataFrame, variables: Sequence[str] | None) -> None:
    """Write tables as they come: measurements of different settings may have different dimensions."""
    columns: dict[str, None] = {}
    for record in map(files.open_record, map(Path, table["path"])):
        for found in record["variables"] if record else []:
            number = not found["coordinate"] and "texts" not in found
            if number and found["name"] in (variables or [found["name"]]):
                columns |= dict.fromkeys(found["dims"])
    with target.open("w", encoding="utf-8", newline="") as file:
        for number, part in enumerate(_tables(table, variables)):
            if number == 0:
                header = [*part.columns[: part.columns.get_loc("variable") + 1], *columns, "value"]
            part.reindex(columns=header).to_csv(file, index=False, header=number == 0)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
