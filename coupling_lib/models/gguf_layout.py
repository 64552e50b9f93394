"""Layout of a GGUF file: its keys, the positions of its tensors, and their dequantisation.

The header is read first. A tensor is read and dequantised on access, a few rows at a time, so that no more
than its dense form is ever held; pages of a mapped file would count towards a process's memory.
"""

import math
import re
import struct
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.integrations.gguf import reader

from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError

_FLOAT32 = 0
_VERSIONS = (2, 3)
_ALIGNMENT = 32
# Values dequantised at once: few enough to stay in the processor's cache, enough for numpy.
_AT_ONCE = 2**20


class Entry(NamedTuple):
    """Position of a tensor in its file, its shape in torch's order, its type of `gguf`, and the bytes of a row."""

    shape: tuple[int, ...]
    kind: Any
    start: int
    row: int


@dataclass(frozen=True)
class Contents:
    """A GGUF file: keys with their values and bytes, tensors, and a folder with its configuration and tokenizer."""

    name: str
    file: Path
    keys: dict[str, Any]
    raw: dict[str, bytes]
    tensors: dict[str, Entry]
    folder: Path | None = None

    @property
    def architecture(self) -> str:
        """Name of the architecture in llama.cpp."""
        return str(self.keys.get("general.architecture"))

    @property
    def quantisation(self) -> str:
        """Quantisation of the weights, such as Q4_1: as recorded in the file, or the type of most of them."""
        import gguf

        try:
            kind = gguf.LlamaFileType(int(self.keys["general.file_type"]))
            return re.sub(r"^(MOSTLY|ALL)_", "", kind.name)
        except (KeyError, TypeError, ValueError):
            counts = Counter({"no tensors": 0})
            for tensor in self.tensors.values():
                counts[tensor.kind.name] += math.prod(tensor.shape)
            return counts.most_common(1)[0][0]

    def dense(self, tensor: str) -> torch.Tensor:
        """Read and dequantise one tensor into float32."""
        import gguf

        stored = self.tensors[tensor]
        values = torch.empty(stored.shape)
        rows = values.reshape(-1, stored.shape[-1]).numpy()
        step = max(1, _AT_ONCE // rows.shape[1])
        with self.file.open("rb") as stream:
            stream.seek(stored.start)
            for part in np.split(rows, range(step, len(rows), step)):
                packed = np.fromfile(stream, np.uint8, len(part) * stored.row)
                if len(packed) < len(part) * stored.row:
                    raise _damaged(self.name, f"the tensor {tensor} ends beyond the file")
                try:
                    part[...] = gguf.dequantize(packed.reshape(len(part), stored.row), stored.kind)
                except NotImplementedError:
                    raise UnsupportedModelError(
                        f"the tensor {tensor} of {self.name!r} is stored in {stored.kind.name}, which gguf "
                        f"{version('gguf')} does not dequantise; choose the model's safetensors files"
                    ) from None
        return values

    def write_description(self, file: Path) -> None:
        """Write a small GGUF file with the same keys, without the vocabulary, and the names of the tensors."""
        # The reader of gguf takes a minute for the words of a vocabulary; a configuration needs their number only.
        words = {key for key, value in self.keys.items() if key.startswith("tokenizer.") and isinstance(value, list)}
        kept = {key: raw for key, raw in self.raw.items() if key not in {"general.alignment", *words}}
        head = b"GGUF" + struct.pack("<IQQ", _VERSIONS[-1], len(self.tensors), len(kept)) + b"".join(kept.values())
        for number, name in enumerate(self.tensors):
            text = name.encode()
            head += struct.pack("<Q", len(text)) + text + struct.pack("<IQIQ", 1, 1, _FLOAT32, _ALIGNMENT * number)
        file.write_bytes(head + bytes(-len(head) % _ALIGNMENT + _ALIGNMENT * len(self.tensors)))


def read(name: str, file: Path) -> Contents:
    """Read a file's header, and refuse a file that lacks parts listed in its header."""
    try:
        return _header(name, file)
    except (struct.error, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise _damaged(name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _damaged(name: str, why: str) -> ModelUnavailableError:
    return ModelUnavailableError(f"the GGUF file {name!r} is damaged or truncated ({why}); fetch it anew")


def _entry(name: str, tensor: str, shape: tuple[int, ...], number: int, start: int) -> Entry:
    """Describe a tensor by its header entry, and refuse an unknown type."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedModelError(
            f"the tensor {tensor} of {name!r} is stored in the type {number}, which gguf {version('gguf')} does not "
            "know; update gguf, or choose the model's safetensors files"
        ) from None
    together, size = gguf.GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % together:
        raise ValueError(f"rows of the tensor {tensor} are no multiple of {together}")
    return Entry(shape, kind, start, shape[-1] // together * size)


def _header(name: str, file: Path) -> Contents:
    """Read all keys and the table of tensors."""
    data = np.memmap(file, np.uint8, "r")
    number, n_tensors, n_keys = struct.unpack_from("<IQQ", data, 4)
    if number not in _VERSIONS:
        raise ValueError(f"it is of version {number}, and versions 2 and 3 are read")
    keys, raw, at = {}, {}, 4 + struct.calcsize("<IQQ")
    for _ in range(n_keys):
        begin = at
        key, at = reader._read_string(data, at)
        keys[key], at = reader._read_value(data, at + 4, *struct.unpack_from("<I", data, at), keep_strings=True)
        raw[key] = bytes(data[begin:at])
    table, at = reader._read_tensor_table(data, n_tensors, at)
    alignment = keys.get("general.alignment", _ALIGNMENT)
    begin = -(-at // alignment) * alignment
    tensors: dict[str, Entry] = {}
    for tensor, shape, kind, offset in table:
        if tensor in tensors:
            raise ValueError(f"the tensor {tensor} stands there twice")
        tensors[tensor] = entry = _entry(name, tensor, shape, kind, begin + offset)
        if entry.start + math.prod(shape[:-1]) * entry.row > len(data):
            raise ValueError(f"the tensor {tensor} ends beyond the file")
    return Contents(name, file, keys, raw, tensors)
