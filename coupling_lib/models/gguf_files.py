"""Models in GGUF files, the format of llama.cpp: weights of a few bits each, configuration and tokenizer in one file.

transformers reads such a file itself and makes dense weights of it, so that what is measured is the model with the
rounded weights, exactly. That takes some ten seconds for the smallest models. It is done once: configuration, tokenizer
and dense float32 weights are kept as ordinary folders beside the hub's cache (`HF_HOME/coupling_lib/gguf`), named by
the file's digest and by the versions that read it. A folder is used as long as every file in it has the digest that was
written down; one that is damaged is made anew. From there on a GGUF model is a local folder, which can also stay on
disk while its blocks are read one at a time.
"""

import functools
import json
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants
from transformers import AutoConfig, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils

from coupling_lib import paths
from coupling_lib.blocks import weight_memory as memories
from coupling_lib.blocks.attention import quiet
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError, needed
from coupling_lib.models import architecture, gguf_contents, packages

SUFFIX = ".gguf"
_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
_SAFE = {"trust_remote_code": False, "local_files_only": True}
RECORD = "gguf.json"
_DIGESTS = "digests.json"
# A higher number where files are read otherwise than before, so that what was made of them is made anew.
_READING = 2


@dataclass(frozen=True)
class Gguf:
    """A GGUF file that can be read: what the user called it, where it lies, its digest."""

    name: str
    file: Path
    sha256: str

    @property
    def _arguments(self) -> dict:
        return {"pretrained_model_name_or_path": self.file.parent, "gguf_file": self.file.name, **_SAFE}

    def configuration(self) -> Path:
        """Return a folder with the configuration and the tokenizer."""
        return _kept(self, "configuration", self._save_configuration)

    def weights(self) -> Path:
        """Return a folder with the configuration and the dense weights."""
        return _kept(self, "weights", self._save_weights)

    def quantisation(self) -> str:
        """Name how the weights are stored, such as Q4_1, as their file says it."""
        kept = json.loads((self.configuration() / RECORD).read_text(encoding="utf-8"))
        return kept["quantisation"]

    def _save_configuration(self, folder: Path) -> None:
        reader = self._read()
        said = reader.get_field("general.architecture")
        kind = said.contents() if said is not None else None
        try:
            config = AutoConfig.from_pretrained(**self._arguments)
        except Exception as error:
            raise UnsupportedModelError(
                f"{self.name!r} has the architecture {kind!r}, which transformers {transformers.__version__} does not "
                f"read from GGUF ({_short(error)}); choose the model's safetensors files"
            ) from error
        gguf_contents.completed(config, reader, self.name).save_pretrained(folder)
        if reader.get_field("tokenizer.ggml.model") is not None:
            AutoTokenizer.from_pretrained(**self._arguments).save_pretrained(folder)
        kept = {"quantisation": _quantisation(reader)}
        (folder / RECORD).write_text(json.dumps(kept), encoding="utf-8")

    def _save_weights(self, folder: Path) -> None:
        config = architecture.read_config(self.configuration(), self.name)
        family = architecture.model_class(config, self.name)
        place = torch.device("cpu")
        need, free = memories.needed(family, config)["float32"], memories.available(place)
        if need > free:
            raise ModelUnavailableError(
                f"{self.name!r} needs {memories.gb(need)} once, while its weights become float32, and "
                f"{memories.gb(free)} are free; take the model's safetensors files, or a machine with more memory"
            )
        # Where transformers has kernels for packed weights it would keep them packed.
        dense = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
        with _noting() as left:
            hf, report = family.from_pretrained(**self._arguments, **dense, config=config, output_loading_info=True)
        gguf_contents.refuse_left([*left, *report["unexpected_keys"]], self.name)
        # transformers draws what is missing at random and goes on: the model would be measured half untrained.
        if missing := sorted(report["missing_keys"]):
            lack = f"lacks {len(missing)} of the model's tensors ({missing[0]}, ...)"
            raise ModelUnavailableError(f"{self.name!r} {lack}; take a complete file")
        # What is written are dense weights; with the mark of a quantisation they could not be read back.
        vars(hf.config).pop("quantization_config", None)
        hf.hf_quantizer = None
        hf.save_pretrained(folder, max_shard_size="100TB")
        shutil.copyfile(self.configuration() / "config.json", folder / "config.json")

    def _read(self) -> Any:
        """Read what the file says about itself."""
        import gguf

        try:
            return gguf.GGUFReader(self.file)
        except Exception as error:
            said = f"is damaged or truncated ({_short(error)}); fetch it anew"
            raise ModelUnavailableError(f"the GGUF file {self.name!r} {said}") from error


def find(name: str | Path) -> Path | None:
    """Return the GGUF file that a path stands for: itself, or the only one in a folder without safetensors."""
    path = Path(str(name).strip())
    if path.suffix.lower() == SUFFIX and path.is_file():
        return path
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX)
    if len(found) > 1 and not all(_PART.fullmatch(file.name) for file in found):
        listed = ", ".join(file.name for file in found)
        raise ModelUnavailableError(
            f"the folder {str(name)!r} holds {len(found)} GGUF files: {listed}; name one of them"
        )
    return found[0] if found else None


def opened(name: str, file: Path) -> Gguf:
    """Refuse a file that is not a whole GGUF, before anything is made of it."""
    if _PART.fullmatch(file.name):
        raise UnsupportedModelError(
            f"{file.name!r} is one part of a GGUF model in several files; join them "
            "(llama-gguf-split --merge) and name the one file"
        )
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        said = f"is no GGUF file: it begins with {magic!r}, not b'GGUF'; fetch it anew, or name another file"
        raise ModelUnavailableError(f"{name!r} {said}")
    needed("gguf", "gguf", f"the GGUF file {name!r}")
    return Gguf(name, file, packages.sha256(file))


def _quantisation(reader: Any) -> str:
    """Name the type of a file, or, where it is silent, the type that holds most of its weights."""
    import gguf

    said = reader.get_field("general.file_type")
    try:
        return re.sub(r"^(MOSTLY|ALL)_", "", gguf.LlamaFileType(int(said.contents())).name)
    except (AttributeError, ValueError):
        counts: dict[str, int] = {}
        for tensor in reader.tensors:
            counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + int(tensor.n_elements)
        return max(counts, key=counts.__getitem__, default="no tensors")


def _kept(model: Gguf, stage: str, save: Callable[[Path], None]) -> Path:
    """Return the folder in which something made of a file is kept, making it if need be."""
    readers = f"transformers-{transformers.__version__}-gguf-{version('gguf')}-{_READING}"
    name = f"{model.sha256[:16]}-{stage}-{readers}"
    folder = Path(constants.HF_HOME) / "coupling_lib" / "gguf" / name
    if _intact(folder):
        return folder
    try:
        return _write(folder, save)
    except OSError as error:
        raise ModelUnavailableError(
            f"what is made of {model.name!r} cannot be written to {folder.parent} ({_short(error)}); free some space, "
            "or set HF_HOME to a folder of your own on a disk that is large enough"
        ) from error


def _write(folder: Path, save: Callable[[Path], None]) -> Path:
    """Fill a folder under another name and rename it, so that what carries the name is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with paths.written_beside(folder) as partial:
        partial.mkdir(mode=0o700)
        with _converting():
            save(partial)
        digests = {file.name: packages.sha256(file) for file in sorted(partial.iterdir())}
        (partial / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
        if folder.exists() and not _intact(folder):
            shutil.rmtree(folder)
    return folder


def _intact(folder: Path) -> bool:
    """Return whether a folder holds what was written into it."""
    try:
        digests = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
        return all(packages.sha256(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, AttributeError):
        return False


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextmanager
def _converting() -> Generator[None]:
    """Keep the notices and the progress bar of a conversion out of notebooks, and let it read its file once."""
    import gguf

    bar = modeling_gguf_pytorch_utils.tqdm
    # transformers makes a new reader for each thing it asks of a file, and a table of names for each part of a model:
    # four fifths of the time.
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    modeling_gguf_pytorch_utils.tqdm = functools.partial(bar, disable=True)
    known = functools.cache(reader)
    gguf.GGUFReader, gguf.get_tensor_name_map = lambda file: known(str(file)), functools.cache(names)
    try:
        with quiet():
            yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names
        modeling_gguf_pytorch_utils.tqdm = bar


class _Asked(dict):
    """Names of tensors with their weights, and the names that were asked for and are not there."""

    def __init__(self, names: dict, left: list[str]) -> None:
        super().__init__(names)
        self.left = left

    def __contains__(self, name: object) -> bool:
        if not (known := super().__contains__(name)):
            self.left.append(name)
        return known


@contextmanager
def _noting() -> Generator[list[str]]:
    """Note which tensors transformers leaves out: it looks each up among the model's weights, and goes on."""
    left: list[str] = []
    names = modeling_gguf_pytorch_utils.get_gguf_hf_weights_map
    modeling_gguf_pytorch_utils.get_gguf_hf_weights_map = lambda *asked, **more: _Asked(names(*asked, **more), left)
    try:
        yield left
    finally:
        modeling_gguf_pytorch_utils.get_gguf_hf_weights_map = names
