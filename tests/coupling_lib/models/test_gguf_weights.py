"""Weights of GGUF files under their names: those of transformers' own reader, bit for bit, in its older and newer form.

The files hold random numbers, so that any exchange of rows, of tensors or of a scale shows.
"""

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from coupling_lib.errors import ModelUnavailableError
from coupling_lib.models.load import load_model

WIDTH, WORDS = 32, 64
PLAIN = {"context_length": 64, "embedding_length": WIDTH, "block_count": 2, "attention.head_count": 4}
PLAIN |= {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e4, "vocab_size": WORDS}
OUTSIDE, NORM = {"token_embd.weight": (WORDS, WIDTH)}, {"output_norm.weight": (WIDTH,)}
# The configuration that transformers makes of a Qwen2-MoE has these two whatever the file says.
EXPERT, SHARED = 1408, 5632
Q, KV = {"weight": (WIDTH, WIDTH)}, {"weight": (WIDTH // 2, WIDTH)}
ATTENTION = {"attn_q": Q, "attn_k": KV, "attn_v": KV, "attn_output": Q, "attn_norm": {"weight": (WIDTH,)}}
ATTENTION |= {"ffn_norm": {"weight": (WIDTH,)}}
UP, DOWN = {"weight": (48, WIDTH)}, {"weight": (WIDTH, 48)}
MLP = {"ffn_gate": UP, "ffn_up": UP, "ffn_down": DOWN}
BIAS = {name: {"weight": sizes["weight"], "bias": sizes["weight"][:1]} for name, sizes in list(ATTENTION.items())[:3]}
HEAD_NORM = {"weight": (8,)}
MORE_NORMS = {name: {"weight": (WIDTH,)} for name in ("post_attention_norm", "post_ffw_norm")}
EXPERTS = {"ffn_gate_inp": {"weight": (4, WIDTH)}, "ffn_gate_inp_shexp": {"weight": (WIDTH,)}}
EXPERTS |= {f"ffn_{part}_exps": {"weight": (4, EXPERT, WIDTH)} for part in ("gate", "up")}
EXPERTS |= {"ffn_down_exps": {"weight": (4, WIDTH, EXPERT)}, "ffn_down_shexp": {"weight": (WIDTH, SHARED)}}
EXPERTS |= {f"ffn_{part}_shexp": {"weight": (SHARED, WIDTH)} for part in ("gate", "up")}
CONV = {"shortconv.in_proj": {"weight": (3 * WIDTH, WIDTH)}, "shortconv.out_proj": Q}
CONV |= {"shortconv.conv": {"weight": (WIDTH, 3)}, "attn_norm": {"weight": (WIDTH,)}, "ffn_norm": {"weight": (WIDTH,)}}
KV_2 = {"attention.head_count_kv": 2, "feed_forward_length": 48}
HEADS_OF_8 = {"attention.key_length": 8, "attention.value_length": 8}
OF_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": EXPERT}
OF_EXPERTS |= {"expert_shared_feed_forward_length": SHARED}
NORMED = {"attn_q_norm": HEAD_NORM, "attn_k_norm": HEAD_NORM}
CASES = {
    "llama": (KV_2, [ATTENTION | MLP] * 2, NORM),
    "qwen2": (KV_2, [ATTENTION | BIAS | MLP] * 2, NORM | {"output.weight": (WORDS, WIDTH)}),
    "gemma2": (KV_2 | HEADS_OF_8, [ATTENTION | MORE_NORMS | MLP] * 2, NORM),
    "gemma3": (KV_2 | HEADS_OF_8, [ATTENTION | NORMED | MORE_NORMS | MLP] * 2, NORM),
    "qwen2moe": (KV_2 | OF_EXPERTS, [ATTENTION | BIAS | EXPERTS] * 2, NORM | {"output.weight": (WORDS, WIDTH)}),
    "lfm2": (
        {"attention.head_count_kv": [0, 2], "feed_forward_length": 48, "shortconv.l_cache": 3},
        [CONV | MLP, ATTENTION | NORMED | MLP],
        {"token_embd_norm.weight": (WIDTH,)},
    ),
}


def write(path, architecture, keys, blocks, outside):
    """Write a file of random numbers; matrices in eight bits where their rows allow it."""
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    for key, value in (PLAIN | keys).items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
        add(f"{architecture}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"w{number}" for number in range(WORDS)])
    shapes = {f"blk.{n}.{part}.{end}": shape for n, block in enumerate(blocks) for part, ends in block.items()
              for end, shape in ends.items()}  # fmt: skip
    for name, shape in (OUTSIDE | outside | shapes).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        kind = gguf.GGMLQuantizationType["Q8_0" if len(shape) > 1 and shape[-1] % 32 == 0 else "F32"]
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()


@pytest.mark.parametrize("architecture", CASES)
def test_every_weight_is_that_of_transformers_own_reader(tmp_path, architecture):
    write(tmp_path / "tiny.gguf", architecture, *CASES[architecture])
    dense = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", **dense).state_dict()
    ours = load_model(tmp_path / "tiny.gguf", device="cpu").hf.state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.equal(ours[name], weight), name


def test_experts_without_up_projection_are_refused(tmp_path):
    keys, blocks, outside = CASES["qwen2moe"]
    blocks = [{part: ends for part, ends in blocks[0].items() if part != "ffn_up_exps"}, blocks[1]]
    write(tmp_path / "half.gguf", "qwen2moe", keys, blocks, outside)
    with pytest.raises(ModelUnavailableError, match="lacks 1 of the model's tensors .blk.0.ffn_up_exps.weight, ...."):
        load_model(tmp_path / "half.gguf", device="cpu")
