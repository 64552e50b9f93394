"""Where a number comes from: model, weights, prompts, versions and command, kept with every measurement.

`provenance` writes it down when a measurement is made, as attributes that fit a NetCDF file; `line` reads it back
for the foot of a figure.
"""

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


def provenance(model: Any, prompts: Iterable[Any], **details: str | int | float | None) -> dict[str, str | int | float]:
    """Record what a measurement was made with."""
    prompts = list(prompts)
    record = (
        which_model(model)
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
    # A record of pre-norm blocks stays as it is.
    position = getattr(getattr(model, "blocks", None), "norm_position", "pre")
    if position != "pre":
        record["norm_position"] = position
    return {name: "" if value is None else value for name, value in record.items()}


def which_model(model: Any) -> dict[str, str | int | None]:
    """Say which model it is, as the records and the keys of measurements have it."""
    return {
        "model": model.name,
        "source": str(model.source),
        "revision": model.revision,
        "precision": model.precision,
        "untrained": int(model.untrained),
        "seed": model.seed,
    }


def stored_as(record: Mapping[str, Any]) -> str:
    """Read from a record how a GGUF file stores the weights, such as Q4_1; empty where they are no GGUF file's."""
    found = re.search(r"\((\w+), sha256 \w+\)$", str(record.get("source", "")))
    return found[1] if found else ""


def prompts_hash(prompts: Iterable[Any]) -> str:
    """Fingerprint a list of prompts: the same texts or tensors in the same order give the same one."""
    digest = hashlib.sha256()
    for prompt in prompts:
        part = prompt if isinstance(prompt, str) else f"{tuple(prompt.shape)} {prompt.tolist()}"
        content = part.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:12]


def versions() -> str:
    """Name the versions of everything that computes."""
    found = [f"{package} {_version(package)}" for package in PACKAGES]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def processor() -> str:
    """Name the processor."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: *(.*\S)", info.read_text() if info.exists() else "", re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def command_line() -> str:
    """Give the command that runs this process, for repeating it."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    if "ipykernel" in sys.modules and "kernel" in program:
        return "notebook"
    return shlex.join([program, *sys.argv[1:]])


def papermill_command(notebook: str, parameters: Mapping[str, Any]) -> str:
    """Write the command that runs a notebook with these parameters."""
    given = [f"-p {name} {shlex.quote(str(value))}" for name, value in parameters.items() if value not in ("", None)]
    return " ".join([f"papermill notebooks/{notebook}.ipynb out.ipynb", *given])


def line(*records: Mapping[str, Any], command: str | None = None) -> str:
    """Say in one line where the numbers of a figure come from."""
    described = [_described(record) for record in records]
    parts = [" and ".join(dict.fromkeys(texts)) for texts in zip(*described, strict=True)]
    commands = [command] if command else [str(record.get("command", "")) for record in records]
    cautions = dict.fromkeys(_caution(record) for record in records)
    return " · ".join(part for part in [*parts, *dict.fromkeys(commands), *cautions] if part)


def _caution(record: Mapping[str, Any]) -> str:
    """Say of post-norm blocks what a number means that was measured in them; empty for others."""
    if "norm_position" not in record:
        return ""
    some = "some post-norm blocks" if record["norm_position"] == "mixed" else "post-norm blocks"
    if record.get("boundary") == "branch":
        return f"{some}: what their sub-layers add to the stream, before its norms; see Gotchas"
    return f"{some}: block minus identity couples trivially, trained or not; see Gotchas"


def _described(record: Mapping[str, Any]) -> list[str]:
    """Give the parts of a provenance line, in a fixed order, empty where nothing is known."""

    def labelled(label: str, key: str) -> str:
        return f"{label} {record[key]}" if record.get(key, "") != "" else ""

    source = record.get("source", "")
    seed = labelled("seed", "seed")
    fingerprint = f" (sha256 {record['prompts_sha256']})" if record.get("prompts_sha256") else ""
    count = record.get("n_prompts", "")
    return [
        labelled("model", "model") + (f" ({source})" if source not in ("", record.get("model")) else ""),
        labelled("revision", "revision"),
        (f"untrained ({seed})" if seed else "untrained") if record.get("untrained") else "trained",
        str(record.get("precision", "")),
        f"{count} prompt{'' if count == 1 else 's'}{fingerprint}" if count != "" else "",
        labelled("token", "token"),
        labelled("block map:", "route"),
        str(record.get("versions", "")),
    ]


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(absent)"
