"""The layout of GGUF files: tensors that are read one by one, and files that are not whole or not known."""

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
    shape = (1 << 14, 1 << 10)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    weight = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    packed = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    contents = gguf_layout.read("one", tmp_path / "one.gguf")
    tracemalloc.start()  # numpy's memory is traced, that of the tensor itself is not
    dense = contents.dense("token_embd.weight")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 0.5 * dense.nbytes and dense.data_ptr() % 64 == 0
    assert np.array_equal(dense.numpy(), gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))


def test_truncated_or_inconsistent_gguf_files_are_refused(tmp_path):
    write(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    for keep in (len(content) - 1000, len(content) // 2, 2000, 30, 5):
        (tmp_path / "short.gguf").write_bytes(content[:keep])
        message = "short.gguf' is damaged or truncated .* fetch it anew"
        refused(ModelUnavailableError, message, load_model, tmp_path / "short.gguf", device="cpu")
    write(tmp_path / "odd.gguf", "F16", leave_out=("model.norm",), tensors={"output_norm.weight": np.ones(16)})
    message = "'.*odd.gguf' and their configuration do not belong together: model.norm.weight is 16, and .* asks for 32"
    refused(UnsupportedModelError, message, load_model, tmp_path / "odd.gguf", device="cpu")
    write(tmp_path / "twice.gguf", "F16")
    content = (tmp_path / "twice.gguf").read_bytes()
    (tmp_path / "twice.gguf").write_bytes(content.replace(b"blk.0.attn_k.weight", b"blk.0.attn_v.weight"))
    message = "damaged .*the tensor blk.0.attn_v.weight stands there twice"
    refused(ModelUnavailableError, message, load_model, tmp_path / "twice.gguf", device="cpu")


@pytest.mark.parametrize(
    ("kind", "message"),
    [(99, "blk.0.attn_k.weight .* in the type 99, which gguf"), (24, "blk.0.attn_k.weight .* in I8, ")],
)
def test_tensor_of_unknown_type_is_refused(tmp_path, kind, message):
    write(tmp_path / "odd.gguf", "F16")
    content = bytearray((tmp_path / "odd.gguf").read_bytes())
    at = content.index(name := b"blk.0.attn_k.weight") + len(name) + 4 + 2 * 8
    content[at : at + 4] = kind.to_bytes(4, "little")
    (tmp_path / "odd.gguf").write_bytes(content)
    refused(UnsupportedModelError, f"the tensor {message}", load_model, tmp_path / "odd.gguf", device="cpu")
