"""Models in GGUF files, the format of llama.cpp: weights of a few bits each, configuration and tokenizer in one file.

The configuration and the tokenizer are those that transformers builds from a file, completed and checked
(`gguf_contents`), and read as of any other model. The weights are dequantised one after another (`gguf_weights`).
"""

import atexit
import functools
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import transformers
from transformers import AutoConfig, PreTrainedConfig, TokenizersBackend
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from coupling_lib.blocks.attention_choice import quiet
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError, require
from coupling_lib.models import gguf_contents, gguf_layout, packages
from coupling_lib.models.gguf_layout import Contents

SUFFIX = ".gguf"
_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
_SAFE = {"trust_remote_code": False, "local_files_only": True}
# Marks a tokenizer that was built from a GGUF file.
RECORD = "gguf.json"


def find(name: str | Path) -> Path | None:
    """Return the GGUF file that a path refers to: itself, or the only one in a folder without safetensors."""
    path = Path(str(name).strip())
    if path.suffix.lower() == SUFFIX and path.is_file():
        return path
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX)
    if len(found) > 1 and not all(_PART.fullmatch(file.name) for file in found):
        holds = f"holds {len(found)} GGUF files: {', '.join(file.name for file in found)}"
        raise ModelUnavailableError(f"the folder {str(name)!r} {holds}; name one of them")
    return found[0] if found else None


def open_file(name: str, file: Path) -> Contents:
    """Read a GGUF file, and refuse one that is incomplete before its temporary folder is created."""
    if _PART.fullmatch(file.name):
        raise UnsupportedModelError(
            f"{file.name!r} is one part of a GGUF model in several files; join them "
            "(llama-gguf-split --merge) and name the one file"
        )
    with file.open("rb") as stream:
        if (magic := stream.read(4)) != b"GGUF":
            begins = f"it begins with {magic!r}, not b'GGUF'"
            raise ModelUnavailableError(f"{name!r} is no GGUF file: {begins}; fetch it anew, or name another file")
    require("gguf", "gguf", f"the GGUF file {name!r}")
    return _with_folder(name, file, packages.sha256(file))


@functools.lru_cache(maxsize=4)
def _with_folder(name: str, file: Path, _sha256: str) -> Contents:
    """Read a file's header, and write its configuration and its tokenizer to a temporary folder."""
    contents = gguf_layout.read(name, file)
    try:
        folder = Path(tempfile.mkdtemp(prefix="coupling_lib-"))
        atexit.register(_remove, folder, os.getpid())
        with quiet():
            config = gguf_contents.complete_config(_config(contents, folder), contents)
            config.save_pretrained(folder)
            if "tokenizer.ggml.model" in contents.keys:
                made = TOKENIZER_MAPPING.get(type(config), None)
                made = TokenizersBackend if made is None or made.__name__ == "MistralCommonBackend" else made
                made.from_pretrained(file.parent, gguf_file=file.name, **_SAFE).save_pretrained(folder)
                (folder / RECORD).write_text("{}", encoding="utf-8")
    except OSError as error:
        if error.errno is None:  # transformers raises it for unreadable contents
            raise
        raise ModelUnavailableError(
            f"the configuration and the tokenizer of {name!r} cannot be written to a temporary folder ({error}); "
            "free some space, or set the environment variable TMPDIR to a folder with room"
        ) from error
    return replace(contents, folder=folder)


def _remove(folder: Path, process: int) -> None:
    """Remove a folder when the process that created it ends, not when a fork of that process does."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _config(contents: Contents, folder: Path) -> PreTrainedConfig:
    """Return the configuration that transformers builds from a file."""
    try:
        if contents.architecture in GGUF_CONFIG_ARCHS:
            return AutoConfig.from_pretrained(contents.file.parent, gguf_file=contents.file.name, **_SAFE)
        contents.write_description(description := folder / f"description{SUFFIX}")
        values = load_gguf_checkpoint(description)["config"]
        description.unlink()
        if "vocab_size" not in values and (words := contents.keys.get("tokenizer.ggml.tokens")):
            values["vocab_size"] = len(words)
        return AutoConfig.for_model(**values)
    except Exception as error:
        raise UnsupportedModelError(
            f"{contents.name!r} has the architecture {contents.architecture!r}, which transformers "
            f"{transformers.__version__} does not read from GGUF ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}); choose the model's safetensors files"
        ) from error
