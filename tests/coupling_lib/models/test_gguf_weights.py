"""Weights of GGUF files under their names: those of transformers' own reader, bit for bit, in its older and newer form.

The files hold random numbers, so that any exchange of rows, of tensors or of a scale shows.
"""

import gguf
import numpy as np
import pytest
import torch
from refusals import refused
from transformers import AutoModelForCausalLM, GgufConfig

from coupling_lib.errors import ModelUnavailableError
from coupling_lib.models.load import load_model

WIDTH, WORDS = 32, 64
# The configuration that transformers makes of a Qwen2-MoE has these two whatever the file says.
EXPERT, SHARED = 1408, 5632
ROW, SQUARE, HALF, UP, DOWN = (WIDTH,), (WIDTH, WIDTH), (WIDTH // 2, WIDTH), (48, WIDTH), (WIDTH, 48)
PLAIN = {"context_length": 64, "embedding_length": WIDTH, "block_count": 2, "attention.head_count": 4}
PLAIN |= {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e4, "vocab_size": WORDS}
KV_2 = {"attention.head_count_kv": 2, "feed_forward_length": 48}
HEADS_OF_8 = KV_2 | {"attention.key_length": 8, "attention.value_length": 8}
OF_EXPERTS = KV_2 | {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": EXPERT}
OF_EXPERTS |= {"expert_shared_feed_forward_length": SHARED}
OF_CONVOLUTIONS = KV_2 | {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3}


def weights(**shapes):
    return {f"{name}.weight": shape for name, shape in shapes.items()}


NORMS = weights(attn_norm=ROW, ffn_norm=ROW)
ATTENTION = NORMS | weights(attn_q=SQUARE, attn_k=HALF, attn_v=HALF, attn_output=SQUARE)
BIASED = ATTENTION | {"attn_q.bias": ROW, "attn_k.bias": (WIDTH // 2,), "attn_v.bias": (WIDTH // 2,)}
NORMED = ATTENTION | weights(attn_q_norm=(8,), attn_k_norm=(8,))
MORE_NORMS = weights(post_attention_norm=ROW, post_ffw_norm=ROW)
MLP = weights(ffn_gate=UP, ffn_up=UP, ffn_down=DOWN)
EXPERTS = weights(ffn_gate_exps=(4, EXPERT, WIDTH), ffn_up_exps=(4, EXPERT, WIDTH), ffn_down_exps=(4, WIDTH, EXPERT))
EXPERTS |= weights(ffn_gate_shexp=(SHARED, WIDTH), ffn_up_shexp=(SHARED, WIDTH), ffn_down_shexp=(WIDTH, SHARED))
EXPERTS |= weights(ffn_gate_inp=(4, WIDTH), ffn_gate_inp_shexp=ROW)
CONVOLUTION = {"in_proj": (3 * WIDTH, WIDTH), "out_proj": SQUARE, "conv": (WIDTH, 3)}
CONVOLUTION = NORMS | {f"shortconv.{name}.weight": shape for name, shape in CONVOLUTION.items()}
END, HEAD = weights(output_norm=ROW), weights(output=(WORDS, WIDTH))
CASES = {
    "llama": (KV_2, [ATTENTION | MLP] * 2, END),
    "qwen2": (KV_2, [BIASED | MLP] * 2, END | HEAD),
    "gemma2": (HEADS_OF_8, [ATTENTION | MORE_NORMS | MLP] * 2, END),
    "gemma3": (HEADS_OF_8, [NORMED | MORE_NORMS | MLP] * 2, END),
    "qwen2moe": (OF_EXPERTS, [BIASED | EXPERTS] * 2, END | HEAD),
    "lfm2": (OF_CONVOLUTIONS, [CONVOLUTION | MLP, NORMED | MLP], weights(token_embd_norm=ROW)),
}


def write(path, architecture, leave_out=""):
    """Write a file of random numbers; matrices in eight bits where their rows allow it."""
    keys, blocks, outside = CASES[architecture]
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    for key, value in (PLAIN | keys).items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
        add(f"{architecture}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"w{number}" for number in range(WORDS)])
    inside = {f"blk.{number}.{name}": shape for number, block in enumerate(blocks) for name, shape in block.items()}
    for name, shape in (weights(token_embd=(WORDS, WIDTH)) | outside | inside).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        kind = gguf.GGMLQuantizationType["Q8_0" if len(shape) > 1 and shape[-1] % 32 == 0 else "F32"]
        if name != leave_out:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()


@pytest.mark.parametrize("architecture", CASES)
def test_every_weight_is_that_of_transformers_own_reader(tmp_path, architecture):
    write(tmp_path / "tiny.gguf", architecture)
    dense = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", **dense).state_dict()
    ours = load_model(tmp_path / "tiny.gguf", device="cpu").hf.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name, weight in theirs.items() if not torch.equal(ours[name], weight)] == []


def test_experts_without_up_projection_are_refused(tmp_path):
    write(tmp_path / "half.gguf", "qwen2moe", leave_out="blk.0.ffn_up_exps.weight")
    message = r"lacks 1 of the model's tensors \(blk.0.ffn_up_exps.weight, ...\)"
    refused(ModelUnavailableError, message, load_model, tmp_path / "half.gguf", device="cpu")
