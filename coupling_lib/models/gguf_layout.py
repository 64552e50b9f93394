"""The layout of a GGUF file: its keys, where its tensors lie, and what their bytes stand for.

Only the header is read at first. A tensor is read and dequantised when it is asked for, a few rows at a time, so that
no more than its dense form is ever held; the file is read rather than mapped, as pages of a mapped file count towards
a process's memory.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY, _FLOAT32 = 8, 9, 0
_VERSIONS = (2, 3)
_ALIGNMENT = 32
# Values that are dequantised at once: few enough to stay in the processor's cache, enough for numpy.
_AT_ONCE = 2**20


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies in its file, its shape in the order of torch, its type of `gguf`, and how long a row is."""

    shape: tuple[int, ...]
    kind: Any
    start: int
    row: int

    @property
    def end(self) -> int:
        """Where the next tensor may begin."""
        return self.start + math.prod(self.shape[:-1]) * self.row


@dataclass(frozen=True)
class Contents:
    """A GGUF file: its keys with their values and bytes, and its tensors."""

    name: str
    file: Path
    keys: dict[str, Any]
    raw: dict[str, bytes]
    tensors: dict[str, Entry]

    @property
    def architecture(self) -> str:
        """The name of the architecture, as llama.cpp has it."""
        return str(self.keys.get("general.architecture"))

    def dense(self, tensor: str) -> torch.Tensor:
        """Read and dequantise one tensor into float32."""
        import gguf

        stored = self.tensors[tensor]
        values = torch.empty(stored.shape)
        rows = values.reshape(-1, stored.shape[-1]).numpy()
        step = max(1, _AT_ONCE // rows.shape[1])
        with self.file.open("rb") as stream:
            stream.seek(stored.start)
            for row in range(0, len(rows), step):
                part = rows[row : row + step]
                packed = np.fromfile(stream, np.uint8, len(part) * stored.row)
                if len(packed) < len(part) * stored.row:
                    raise damaged(self.name, f"the tensor {tensor} ends beyond the file")
                try:
                    part[...] = gguf.dequantize(packed.reshape(len(part), stored.row), stored.kind)
                except NotImplementedError:
                    raise UnsupportedModelError(
                        f"the tensor {tensor} of {self.name!r} is stored in {stored.kind.name}, which gguf "
                        f"{version('gguf')} does not dequantise; choose the model's safetensors files"
                    ) from None
        return values

    def write_description(self, file: Path) -> None:
        """Write a small GGUF file with the same keys, but for the vocabulary, and the names of the tensors."""
        # The reader of gguf takes a minute for the words of a vocabulary, of which a configuration needs the number.
        kept = {key: raw for key, raw in self.raw.items() if key != "general.alignment" and not self._is_words(key)}
        head = b"GGUF" + struct.pack("<IQQ", _VERSIONS[-1], len(self.tensors), len(kept)) + b"".join(kept.values())
        for number, name in enumerate(self.tensors):
            text = name.encode()
            head += struct.pack("<Q", len(text)) + text + struct.pack("<IQIQ", 1, 1, _FLOAT32, _ALIGNMENT * number)
        file.write_bytes(head + bytes(-len(head) % _ALIGNMENT + _ALIGNMENT * len(self.tensors)))

    def _is_words(self, key: str) -> bool:
        return key.startswith("tokenizer.") and isinstance(self.keys[key], list)


def read(name: str, file: Path) -> Contents:
    """Read a file's header, and refuse a file that does not hold all that its header says."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).read(name, file)
    except (struct.error, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise damaged(name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def damaged(name: str, why: str) -> ModelUnavailableError:
    """Return the error of a file that is not whole."""
    return ModelUnavailableError(f"the GGUF file {name!r} is damaged or truncated ({why}); fetch it anew")


def _entry(name: str, tensor: str, shape: tuple[int, ...], number: int, start: int) -> Entry:
    """Describe a tensor by what a header says of it, and refuse a type that is not known."""
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


class _Header:
    """A header that is read from front to back."""

    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 4

    def read(self, name: str, file: Path) -> Contents:
        """Read all keys and the table of tensors."""
        number, n_tensors, n_keys = self._take("IQQ")
        if number not in _VERSIONS:
            raise ValueError(f"it is of version {number}, and versions 2 and 3 are read")
        keys, raw, table = {}, {}, {}
        for _ in range(n_keys):
            begin, key = self.at, self._text()
            keys[key] = self._value(*self._take("I"))
            raw[key] = self.data[begin : self.at]
        for _ in range(n_tensors):
            tensor, n_sides = self._text(), *self._take("I")
            sides = self._take(f"{n_sides}Q")
            if tensor in table:
                raise ValueError(f"the tensor {tensor} stands there twice")
            table[tensor] = (tuple(reversed(sides)), *self._take("IQ"))
        alignment = keys.get("general.alignment", _ALIGNMENT)
        begin = -(-self.at // alignment) * alignment
        tensors = {key: _entry(name, key, shape, kind, begin + at) for key, (shape, kind, at) in table.items()}
        if (last := max(tensors, key=lambda key: tensors[key].end, default="")) and tensors[last].end > len(self.data):
            raise ValueError(f"the tensor {last} ends beyond the file")
        return Contents(name, file, keys, raw, tensors)

    def _take(self, form: str) -> tuple:
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def _text(self) -> str:
        (length,) = self._take("Q")
        if length > len(self.data) - self.at:
            raise ValueError("a text ends beyond the file")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._take(_NUMBERS[kind])[0]
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise ValueError(f"a value is of the type {kind}, and the format has no such")
        kind, length = self._take("IQ")
        if kind in _NUMBERS:
            return list(self._take(f"{length}{_NUMBERS[kind]}"))
        return [self._value(kind) for _ in range(length)]
