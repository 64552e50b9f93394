"""Provenance of a number: model, weights, prompts, versions and command, as attributes that fit a NetCDF file."""

import hashlib
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("coupling_lib", "torch", "transformers", "nnsight", "bitsandbytes")
"""Packages whose version can change a measured number."""

COMPUTING = ("coupling_lib", "torch", "transformers")
"""Packages whose releases may change a number of the same measurement."""

FEW_BITS = ("nf4", "fp4", "int8")
"""Precisions that quantise some weights and leave others unchanged."""


def provenance(model: Any, prompts: Iterable[Any], **details: str | int | float | None) -> dict[str, str | int | float]:
    """Return the record of a measurement: model, prompts, versions and command."""
    prompts = list(prompts)
    record = (
        model_identity(model)
        | {
            "n_blocks": model.n_blocks,
            "width": model.d_model,
            "n_prompts": len(prompts),
            "prompts_sha256": prompts_hash(prompts),
            "versions": versions(),
            "command": command_line(),
        }
        | details
    )
    # A record of pre-norm blocks without a scale has no entry for either.
    blocks = getattr(model, "blocks", None)
    if (position := getattr(blocks, "norm_position", "pre")) != "pre":
        record["norm_position"] = position
    if scales := getattr(blocks, "scales", {}):
        record["stream_scales"] = ", ".join(f"block {number}: {scale:.3g}" for number, scale in scales.items())
    if model.precision in FEW_BITS and (share := getattr(model, "share_in_precision", None)) is not None:
        record["share_in_precision"] = round(share, 4)
    return {name: "" if value is None else value for name, value in record.items()}


def model_identity(model: Any) -> dict[str, str | int | None]:
    """Return the identity of a model in records and in the keys of measurements."""
    return {
        "model": model.name,
        "source": str(model.source),
        "revision": model.revision,
        "precision": model.precision,
        "untrained": int(model.untrained),
        "seed": model.seed,
    }


def stored_as(record: Mapping[str, Any]) -> str:
    """Return the quantisation of a GGUF file, such as Q4_1, from a record; empty for other weights."""
    found = re.search(r"\((\w+), sha256 \w+\)$", str(record.get("source", "")))
    return found[1] if found else ""


def prompts_hash(prompts: Iterable[Any]) -> str:
    """Return the fingerprint of a list of prompts: equal for the same texts or tensors in the same order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        part = prompt if isinstance(prompt, str) else f"{tuple(prompt.shape)} {prompt.tolist()}"
        content = part.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:12]


def versions() -> str:
    """Return the versions of all packages that compute, as text."""
    found = [f"{package} {_version(package)}" for package in PACKAGES]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def changed_since(stored: str) -> list[str]:
    """Return the packages that compute a number and whose release differs from that in a record."""
    # "+cpu" and the like describe how a release was built, and differ from machine to machine.
    then, now = (dict(re.findall(r"(\w+) ([^\s,;+]+)", text)) for text in (stored, versions()))
    moved = [name for name in COMPUTING if name in then and then[name] != now[name]]
    return [f"{name} {then[name]} (here {now[name]})" for name in moved]


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: *(.*\S)", info.read_text() if info.exists() else "", re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def command_line() -> str:
    """Return the command that runs this process, for repeating it."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    if "ipykernel" in sys.modules and "kernel" in program:
        return "notebook"
    return shlex.join([program, *sys.argv[1:]])


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(absent)"
