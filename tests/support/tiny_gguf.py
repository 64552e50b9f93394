"""Tiny random Llamas in GGUF files, and what the definitions of the formats make of their bytes."""

import json
from pathlib import Path

import gguf
import numpy as np
import tiny

HEADS, KV_HEADS = 4, 2
STORED = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def stored_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    block, place = (f"blk.{parts[2]}.", parts[3:]) if "layers" in parts else ("", parts)
    return f"{block}{STORED['.'.join(place)]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order of rows in llama.cpp: the two halves of a head, which rotate together, alternate."""
    half = len(weight) // heads // 2
    return weight[[2 * half * head + place for head in range(heads) for i in range(half) for place in (i, half + i)]]


def restored(weight: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `interleaved`."""
    return weight[np.argsort(interleaved(np.arange(len(weight)), heads))]


def unpacked(data: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers that bytes stand for, by the definition of their format, in float64."""
    if kind == "F32":
        return data.view("<f4").astype(np.float64).reshape(shape)
    if kind == "F16":
        return data.view("<f2").astype(np.float64).reshape(shape)
    if kind == "Q8_0":  # 32 numbers: a scale d in float16, then 32 signed bytes q; d q
        blocks = data.reshape(-1, 34)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float64)
        return (scale * blocks[:, 2:].copy().view(np.int8)).reshape(shape)
    assert kind == "Q4_1"  # 32 numbers: d and m in float16, 16 bytes with q[i] low and q[i + 16] high; d q + m
    blocks = data.reshape(-1, 20)
    scale, least = (blocks[:, at : at + 2].copy().view("<f2").astype(np.float64) for at in (0, 2))
    low, high = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
    return (scale * np.concatenate([low, high], axis=1) + least).reshape(shape)


def write(
    path: Path,
    kind: str = "Q4_1",
    architecture: str = "llama",
    leave_out: tuple[str, ...] = (),
    tokenizer: bool = True,
    keys: dict | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a random Llama, with further keys and tensors, and return its dense weights as the format defines them."""
    model = tiny.llama(seed=3, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    sizes = dict(block_count=tiny.BLOCKS, embedding_length=tiny.WIDTH, feed_forward_length=64, context_length=256)
    sizes |= dict(head_count=HEADS, head_count_kv=KV_HEADS, rope_dimension_count=tiny.WIDTH // HEADS)
    sizes |= dict(rope_freq_base=10000.0, layer_norm_rms_eps=1e-6, vocab_size=280)
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    if tokenizer:
        bpe = json.loads(tiny.tokenizer().backend_tokenizer.to_str())["model"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(sorted(bpe["vocab"], key=bpe["vocab"].get))
        writer.add_token_types([gguf.TokenType.NORMAL] * len(bpe["vocab"]))
        writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
    expected = {}
    for name, tensor in model.state_dict().items():
        weight, heads = tensor.numpy(), {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        weight = interleaved(weight, heads) if heads else weight
        quantised = kind if weight.ndim == 2 else "F32"
        data = gguf.quantize(weight, gguf.GGMLQuantizationType[quantised])
        dense = unpacked(data.view(np.uint8), quantised, weight.shape)
        expected[name] = restored(dense, heads) if heads else dense
        if not any(part in name for part in leave_out):
            writer.add_tensor(stored_name(name), data, raw_dtype=gguf.GGMLQuantizationType[quantised])
    for key, value in (keys or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(f"{architecture}.{key}", value)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()
    return expected
