"""Files of measurements: named by the measurement's key, written atomically, checked when read.

In the safetensors format: arrays, and a text with key, attributes and dimensions, and a SHA-256 over all of it.
"""

import functools
import hashlib
import json
import lzma
import os
import re
import tarfile
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coupling_lib import paths
from coupling_lib.errors import CouplingError, ParameterError
from coupling_lib.provenance import changed_since

FOLDER = "measurements"
SUFFIX = ".safetensors"
DAMAGED = ".damaged"
ARCHIVE = ".tar.xz"
NOT_SHIPPED = "not_shipped"
"""Attribute of a measurement that ships in part: the variables that are left out."""
COLUMNS = (
    *("model", "measure", "version", "settings", "revision", "precision", "untrained", "seed"),
    *("prompt", "made", "bytes", "source", "weights", "code", "path"),
)
"""Columns of `listing`: the key of a measurement, its date, and its file."""
# Versions of records that were compared with the current ones in this process.
_compared_versions: set[str] = set()


class StoreWarning(UserWarning):
    """A file of the store was damaged, could not be written, or is of other releases; the measurement goes on."""


class DamagedError(CouplingError):
    """A file of the store has unexpected contents."""


def digest(key: Mapping[str, Any]) -> str:
    """Return the hash of a measurement's key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]


def place(root: str | Path, key: Mapping[str, Any]) -> Path:
    """Return the file of a measurement."""
    return Path(root) / _slug(key["model"]) / FOLDER / f"{_slug(key['measure'])}-{digest(key)}{SUFFIX}"


def write(root: str | Path, key: Mapping[str, Any], ds: xr.Dataset, complete: bool = True) -> Path:
    """Store a measurement: written to a temporary file, synchronised to disk, then renamed."""
    made = datetime.now(UTC).isoformat(timespec="microseconds")
    path, content = place(root, key), encode({"key": dict(key), "made": made, "complete": complete}, ds)
    path.parent.mkdir(parents=True, exist_ok=True)
    with paths.atomic_path(path) as partial, partial.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    # The rename as well, where the system can. Some network file systems do not support it; the file is complete.
    with suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return path


def shipped(model: str = "") -> Path:
    """Return the folder of measurements that ship with the project, laid out as results are."""
    archives = sorted(paths.SHIPPED.glob(f"*/*{ARCHIVE}"))
    if not any(not model or path.parent.name == _slug(model) for path in archives):
        return paths.SHIPPED
    # Archives are unpacked into the cache once, and again if one of them changes.
    name = digest({"archives": [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in archives]})
    try:
        return _unpack(archives, paths.CACHE / "shipped" / name)
    except OSError:  # a home that cannot be written to: once in each process
        return _unpack(archives, Path(_temporary_folder().name) / name)


def _unpack(archives: list[Path], target: Path) -> Path:
    """Unpack archives into a folder, unless it exists."""
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with paths.atomic_path(target) as partial:
            for path in archives:
                try:
                    with tarfile.open(path) as archive:
                        archive.extractall(partial / path.parent.name / FOLDER, filter="data")
                except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
                    message = f"{path} is damaged ({type(error).__name__}); restore it with: git checkout {path}"
                    raise DamagedError(message) from None
    return target


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="coupling_lib-")


def read(root: str | Path, key: Mapping[str, Any]) -> tuple[xr.Dataset, bool] | None:
    """Read a measurement, with its completeness; None if it is not stored."""
    # A file that is truncated, altered or under a wrong name is renamed to `*.damaged` with a `StoreWarning`, and
    # counts as missing.
    path = place(root, key)
    try:
        record, ds = open_file(path)
        if digest(record["key"]) != digest(key):
            raise DamagedError("it belongs to another measurement")
    except FileNotFoundError:
        return None
    except DamagedError as error:
        return _set_aside(path, str(error))
    # Of files measured by the same other releases, only the first warns.
    stored = str(ds.attrs.get("versions", ""))
    if stored not in _compared_versions and (moved := changed_since(stored)):
        warnings.warn(
            f"{path.name} and its like were measured with {', '.join(moved)}; the numbers are read back as they are: "
            f"name another store, or delete them from {path.parent}, to measure anew",
            StoreWarning,
            stacklevel=2,
        )
    _compared_versions.add(stored)
    return ds, record["complete"]


def open_file(path: Path) -> tuple[dict[str, Any], xr.Dataset]:
    """Read and check one file."""
    content = path.read_bytes()
    try:
        arrays = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        if _checksum(header["record"], arrays) != header["sha256"]:
            raise DamagedError("its content has changed since it was written")
        record = json.loads(header["record"])
        return record, _decode(record, arrays)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"it is truncated or no file of the store ({type(error).__name__})") from None


def listing(model: str | None = None, root: str | Path | None = None) -> pd.DataFrame:
    """List the stored measurements, without reading or checking their numbers."""
    start = paths.RESULTS if root is None else Path(root)
    found = [(path, _record(path)) for path in sorted(start.glob(f"*/{FOLDER}/*{SUFFIX}"))]
    rows = []
    for path, record in found:
        if record and model in (None, (key := record["key"]).get("model")):
            row = {name: "" if key.get(name) is None else key[name] for name in COLUMNS}
            prompts = [v["texts"][0] for v in record["variables"] if v["name"] == "prompt" and v.get("texts")]
            row["settings"] = json.dumps(key.get("settings", {}), sort_keys=True)
            row |= {"prompt": prompts[0] if prompts else "", "made": record["made"]}
            rows.append(row | {"bytes": path.stat().st_size, "path": str(path)})
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values(["made", "path"], ignore_index=True)


def _record(path: Path) -> dict[str, Any] | None:
    """Read only a file's record, without its arrays and without checking them."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                return None
            record = json.loads(json.loads(file.read(length))["__metadata__"]["record"])
            return record if isinstance(record["key"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _set_aside(path: Path, reason: str) -> None:
    """Rename a damaged file to `*.damaged`, with a warning."""
    aside = path.with_name(path.name + DAMAGED)
    try:
        path.replace(aside)
        done = f"it was renamed to {aside.name}"
    except OSError as error:  # gone already, or a folder that cannot be written to
        done = f"it could not be renamed ({error.strerror})"
    warnings.warn(f"{path} is damaged: {reason}; {done}, and is measured again", StoreWarning, stacklevel=2)


def _slug(text: Any) -> str:
    """Return a folder name for a model's name, which may be a path or a hub id."""
    parts = [part for part in str(text).replace("\\", "/").split("/") if part not in ("", ".", "..")][-2:]
    if str(text).startswith(("/", ".")):
        parts = parts[-1:]  # for a local folder its own name
    plain = re.sub(r"[^\w.-]", "-", "--".join(parts), flags=re.ASCII).strip(".")
    # A cut may leave a leading dash, which commands read as an option. Two models may share a folder: files
    # in it are named by the whole key.
    return plain[-80:].lstrip(".-") or "model"


def encode(record: dict[str, Any], ds: xr.Dataset, single: bool = False) -> bytes:
    """Encode a measurement with its record, float64 variables as float32 if `single`."""
    arrays: dict[str, np.ndarray] = {}
    variables = []
    for name, variable in ds.variables.items():
        values = variable.values
        described = {"name": name, "dims": variable.dims, "coordinate": name in ds.coords}
        described |= {"attrs": _plain_attributes(variable.attrs), "dtype": values.dtype.str}
        if values.dtype.kind in "UOT":
            described |= {"texts": values.ravel().tolist(), "shape": values.shape}
            if not all(isinstance(text, str) for text in described["texts"]):
                raise ParameterError(f"the variable {name!r} holds objects; a measurement is made of numbers and texts")
        elif values.dtype.kind in "fiub":
            narrow = single and name in ds.data_vars and values.dtype == np.float64
            arrays[name] = np.array(values, np.float32 if narrow else None, order="C")
        else:
            raise ParameterError(f"the variable {name!r} has dtype {values.dtype}; numbers and texts can be kept")
        variables.append(described)
    text = json.dumps(record | {"attrs": _plain_attributes(ds.attrs), "variables": variables})
    return save(arrays, {"record": text, "sha256": _checksum(text, arrays)})


def _decode(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> xr.Dataset:
    found: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for described in record["variables"]:
        if "texts" in described:
            dtype = np.dtypes.StringDType() if "T" in described["dtype"] else np.dtype(described["dtype"])
            values = np.array(described["texts"], dtype=dtype).reshape(described["shape"])
        else:
            values = arrays[described["name"]].astype(described["dtype"], copy=False)
        found[described["coordinate"]][described["name"]] = (described["dims"], values, described["attrs"])
    return xr.Dataset(found[False], found[True], record["attrs"])


def _plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert numpy's numbers to Python's, and refuse anything but numbers and texts."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in attributes.items()}
    for name, value in plain.items():
        if not isinstance(value, str | int | float):
            raise ParameterError(f"the attribute {name!r} is a {type(value).__name__}; numbers and texts can be kept")
    return plain


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        values = arrays[name]
        total.update(f"\0{name}\0{values.dtype.str}\0{values.shape}\0".encode())
        total.update(values.reshape(-1).view(np.uint8))
    return total.hexdigest()
