"""Which weights passed the check at load: where it took long, a small file says so, and it is not repeated.

The check reads every block of a model. A file in the user's cache folder is named by all that its answer depends on:
the weights, by commit, by their files' names, sizes and times of change, or by the seed they are drawn from; the
configuration and the precision; the versions of the libraries, the functions that blocks call, and the text of the
check itself.
"""

import contextlib
import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from coupling_lib import paths, provenance
from coupling_lib.blocks import attention_choice
from coupling_lib.blocks.find import find_blocks
from coupling_lib.blocks.makeup import called, everywhere, makeups, modifications, now
from coupling_lib.blocks.record import Blocks
from coupling_lib.blocks.validate import validate
from coupling_lib.models.sources import Source

# A check that takes less time is made anew each time.
_SECONDS = 5.0


def check(hf: PreTrainedModel, origin: Source, precision: str, seed: int | None) -> Blocks:
    """Check a model's blocks, or take the answer of an earlier check of the same weights."""
    place = _place(hf, origin, precision, seed)
    if place is not None and (known := _read(place)) is not None:
        attention_choice.default(hf)  # remembered before another takes its place
        attention_choice.use(hf, known["attention"])
        found = find_blocks(hf)
        return replace(
            found, modifications=tuple(map(modifications, found.modules)), makeup=makeups(found.modules), **known
        )
    start = time.monotonic()
    found = validate(hf, origin.name)
    # Where a pass changes blocks, they are not made of the same as before it.
    if place is not None and time.monotonic() - start >= _SECONDS and found.makeup == makeups(found.modules):
        _write(place, found)
    return found


def _place(hf: PreTrainedModel, origin: Source, precision: str, seed: int | None) -> Path | None:
    """Name the file for a model; None if its weights are not known by anything that lasts."""
    if seed is not None:
        way = "as its training began" if seed == origin.started_from else "by block"
        weights: Any = f"drawn {way} from seed {seed}"
    elif origin.hub_id:
        weights = origin.source
    elif origin.gguf:
        weights = origin.gguf.sha256
    else:
        files = [origin.folder] if origin.folder.is_file() else sorted(origin.folder.glob("*.safetensors"))
        weights = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    if not weights:
        return None
    config = {name: value for name, value in hf.config.to_dict().items() if name != "_name_or_path"}
    code = "".join(file.read_text(encoding="utf-8") for file in sorted((paths.PACKAGE / "blocks").glob("*.py")))
    if everywhere():
        return None
    # Functions that were exchanged in this process make another model of the same weights.
    functions = _written(find_blocks(hf).modules)
    what = [weights, config, type(hf).__name__, precision, hf.device.type, provenance.versions(), code, functions]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:32]
    return paths.CACHE / "checked" / f"{digest}.json"


def _read(place: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(place.read_text(encoding="utf-8"))
        norms = {int(number): tuple(names) for number, names in record["post_norm"].items()}
        more = {"attention": str(record["attention"]), "choosing": bool(record["choosing"])}
        scales = {int(number): float(scale) for number, scale in record["scales"].items()}
        return {"routes": tuple(map(str, record["routes"])), "post_norm": norms, "scales": scales, **more}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(place: Path, found: Blocks) -> None:
    """Note a check that was passed; where nothing can be written it is made again next time."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        kept = ("routes", "post_norm", "scales", "attention", "choosing")
        paths.write_text(place, json.dumps({name: getattr(found, name) for name in kept}))


def _written(block: nn.Module) -> list[tuple[str, ...]]:
    """Describe the functions that a block's modules call by where they were written, alike in every process."""
    found = []
    for kind in dict.fromkeys(type(part) for part in block.modules()):
        for space, name in called(kind, kind.forward):
            value = getattr(now((space, name)), "__func__", now((space, name)))
            code = getattr(value, "__code__", None)
            where = (str(getattr(value, each, "")) for each in ("__module__", "__qualname__"))
            found.append(
                (kind.__qualname__, name, *where, code.co_code.hex() if code else "", str(code and code.co_names))
            )
    return sorted(found)
