"""Origin of a figure in one line: read from the records of measurements, with the command that repeats it."""

import shlex
from collections.abc import Mapping
from typing import Any


def papermill_command(notebook: str, parameters: Mapping[str, Any]) -> str:
    """Return the command that runs a notebook with these parameters."""
    # An empty text is the default of all parameters but this one.
    named = {name for name, value in parameters.items() if value not in ("", None)}
    named |= {"others"} if notebook == "depth" and parameters.get("others") == "" else set()
    given = [f"-p {name} {shlex.quote(str(value))}" for name, value in parameters.items() if name in named]
    return " ".join([f"papermill notebooks/{notebook}.ipynb out.ipynb", *given])


def line(*records: Mapping[str, Any], command: str | None = None) -> str:
    """Return one line that describes the origin of a figure's numbers."""
    described = [_described(record) for record in records]
    parts = [" and ".join(dict.fromkeys(texts)) for texts in zip(*described, strict=True)]
    commands = [command] if command else [str(record.get("command", "")) for record in records]
    cautions = dict.fromkeys(_caution(record) for record in records)
    return " · ".join(part for part in [*parts, *dict.fromkeys(commands), *cautions] if part)


def _caution(record: Mapping[str, Any]) -> str:
    """Return a note on numbers of post-norm blocks, or of a scaled stream; empty for others."""
    if "stream_scales" in record and record.get("boundary") != "branch":
        return (
            f"scaled stream ({record['stream_scales']}): block minus identity couples trivially; see the traceless part"
        )
    if "norm_position" not in record:
        return ""
    some = "some post-norm blocks" if record["norm_position"] == "mixed" else "post-norm blocks"
    if record.get("boundary") == "branch":
        return f"{some}: what their sub-layers add to the stream, before its norms; see Gotchas"
    return f"{some}: block minus identity couples trivially, trained or not; see Gotchas"


def _described(record: Mapping[str, Any]) -> list[str]:
    """Return the parts of a provenance line, in a fixed order, empty if unknown."""

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
