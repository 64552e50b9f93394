"""The layout of GGUF files: tensors that are read one by one, and files that are not whole or not known."""

import re
import tracemalloc

import gguf
import numpy as np
import pytest
from refusals import refused
from tiny_gguf import write

from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.models import gguf_layout
from coupling_lib.models.load import load_model


def test_dequantising_allocates_under_half_the_dense_weight(tmp_path):
    writer, kind = gguf.GGUFWriter(tmp_path / "one.gguf", "llama"), gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quantize(np.random.default_rng(0).standard_normal((1 << 14, 1 << 10), dtype=np.float32), kind)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    contents = gguf_layout.read("one", tmp_path / "one.gguf")
    tracemalloc.start()  # numpy's memory is traced, that of the tensor itself is not
    dense = contents.dense("token_embd.weight")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 0.5 * dense.nbytes and dense.data_ptr() % 64 == 0
    assert np.array_equal(dense.numpy(), gguf.dequantize(packed, kind))


def cut(length):
    return lambda content: content[:length]


def changed(old, new):
    return lambda content: re.sub(old, new, content, flags=re.DOTALL)


def typed(number):
    """Behind a tensor's name are its two sizes and its type."""
    return changed(KEYS + b"(.{20}).{4}", KEYS + rb"\1" + number.to_bytes(4, "little"))


UNAVAILABLE, UNSUPPORTED = ModelUnavailableError, UnsupportedModelError
WHOLE, KEYS = "spoilt.gguf' is damaged or truncated .* fetch it anew", b"blk.0.attn_k.weight"
TWICE = "damaged .*the tensor blk.0.attn_v.weight stands there twice"
SPOILT = [
    *((cut(length), UNAVAILABLE, WHOLE) for length in (-1000, -50_000, 2000, 30, 5)),
    (changed(KEYS, b"blk.0.attn_v.weight"), UNAVAILABLE, TWICE),
    (typed(99), UNSUPPORTED, "the tensor blk.0.attn_k.weight .* in the type 99, which gguf"),
    (typed(24), UNSUPPORTED, "the tensor blk.0.attn_k.weight .* in I8, "),
]


@pytest.mark.parametrize(("change", "error", "message"), SPOILT)
def test_spoilt_gguf_files_are_refused(tmp_path, change, error, message):
    write(tmp_path / "spoilt.gguf", "F16")
    (tmp_path / "spoilt.gguf").write_bytes(change((tmp_path / "spoilt.gguf").read_bytes()))
    refused(error, message, load_model, tmp_path / "spoilt.gguf", device="cpu")
