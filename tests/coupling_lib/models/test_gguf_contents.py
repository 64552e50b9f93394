"""Keys and tensors of GGUF files that transformers leaves out: taken, or refused by name."""

import gguf
import numpy as np
import pytest
import tiny
import torch
from reference import relative_error
from refusals import refused
from tiny_gguf import write
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from coupling_lib.errors import UnsupportedModelError
from coupling_lib.models import gguf_contents
from coupling_lib.models.load import load_model

ROPE, HALF = 10000.0, 4
IDS = (torch.arange(60) * 7 % 280)[None]
FACTORS = np.array([1.0, 1.1, 3.0, 8.0])


def loaded(tmp_path, **more):
    """Load a file with further keys and tensors, and return the weights that it says."""
    weights = write(tmp_path / "tiny.gguf", "F16", tokenizer=False, **more)
    return load_model(tmp_path / "tiny.gguf", device="cpu").hf, weights


@torch.no_grad()
def off(hf, weights, **rope):
    """How far a model's logits are from those of the file's weights under a scaling that transformers is told."""
    theirs = tiny.llama(num_attention_heads=4, num_key_value_heads=2, rope_parameters={"rope_theta": ROPE} | rope)
    theirs.load_state_dict({name: torch.from_numpy(weight).float() for name, weight in weights.items()})
    return relative_error(hf(IDS).logits, theirs(IDS).logits)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
# The frequencies without a scaling over those with it, by transformers' own formula.
PLAIN = LlamaConfig(hidden_size=8, num_attention_heads=1, rope_parameters={"rope_theta": ROPE} | LLAMA3)
DIVIDED = ROPE ** (-np.arange(HALF) / HALF) / ROPE_INIT_FUNCTIONS["llama3"](PLAIN, "cpu")[0].numpy()
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SLOW = {"rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_beta_fast": 16.0}
LONG, SCALE = {"rope.scaling.original_context_length": 32}, {"rope.scaling.attn_factor": 1.25}
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.5], "long_factor": FACTORS.tolist()}
BOTH = {f"rope_factors_{kind}.weight": np.array(LONG_ROPE[f"{kind}_factor"]) for kind in ("short", "long")}
LONG_ROPE |= {"original_max_position_embeddings": 32, "factor": 8.0}  # 256 positions over 32
# By name: further keys and tensors of a file, and the same scaling in the terms of transformers.
SCALINGS = {
    "llama3": ({}, {"rope_freqs.weight": DIVIDED}, LLAMA3),
    "linear": ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}, LINEAR),
    "linear, older": ({"rope.scale_linear": 4.0}, {}, LINEAR),
    "yarn": (YARN, {}, YARN_ROPE),
    "yarn, betas": (YARN | SLOW, {}, YARN_ROPE | {"beta_slow": 2.0, "beta_fast": 16.0}),
    "longrope": (LONG, BOTH, LONG_ROPE),
    "longrope, scaled": (LONG | SCALE, BOTH, LONG_ROPE | {"attention_factor": 1.25}),
}


@pytest.mark.parametrize(("keys", "tensors", "rope"), SCALINGS.values(), ids=SCALINGS)
def test_rotary_scaling_is_that_of_the_file(tmp_path, keys, tensors, rope):
    hf, weights = loaded(tmp_path, keys=keys, tensors=tensors)
    assert off(hf, weights, **rope) < 1e-5
    # Without it the model would be another one.
    assert off(hf, weights, rope_type="default") > 1e-3


NEUTRAL = [
    ({}, {"rope_freqs.weight": np.ones(HALF)}),
    ({"rope.scaling.type": "none"}, {}),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0, "rope.scaling.finetuned": True}, {}),
    ({"attention.key_length": 8, "attention.value_length": 8, "attention.causal": True}, {}),
    ({"attention.clamp_kqv": 0.0, "expert_count": 0, "logit_scale": 1.0, "tensor_data_layout": "x"}, {}),
    ({}, {"blk.0.attn_rot_embd.weight": np.ones(4), "blk.3.nextn.eh_proj.weight": np.ones((4, 4))}),
]


@pytest.mark.parametrize(("keys", "tensors"), NEUTRAL)
def test_keys_without_effect_are_accepted(tmp_path, keys, tensors):
    hf, weights = loaded(tmp_path, keys=keys, tensors=tensors)
    assert off(hf, weights, rope_type="default") < 1e-6
    assert hf.config.rope_parameters["rope_type"] == "default"


FREQUENCIES = "scales its rotary embedding by"
SCALED = {"rope.scaling.factor": 2.0, "rope.scaling.yarn_log_multiplier": 0.1}
UNSUPPORTED = [
    ({"attention.causal": False}, {}, "says attention.causal = False, which transformers does not take"),
    ({"logit_scale": 0.25}, {}, "says logit_scale = 0.25, which transformers does not take"),
    ({"attn_logit_softcapping": 50.0}, {}, "says attn_logit_softcapping = 50.0, which"),
    ({"attention.sliding_window": 16}, {}, "says attention.sliding_window = 16, which"),
    ({"attention.value_length": 16}, {}, "says attention.value_length = 16, and the .* has head_dim = 8"),
    ({"rope.dimension_count_swa": 4}, {}, r"rotates 4 dimensions of a head \(rope.dimension_count_swa\), and .* it 8"),
    ({"expert_count": 4}, {}, "says expert_count = 4, which"),
    ({"rope.scaling.type": "twisted", "rope.scaling.factor": 2.0}, {}, f"{FREQUENCIES} rope.scaling.type = 'twisted'"),
    ({"rope.scaling.type": "yarn"} | SCALED, {}, f"{FREQUENCIES} rope.scaling.yarn_log_multiplier"),
    ({"rope.scaling.alpha": 1000.0}, {}, f"{FREQUENCIES} rope.scaling.alpha"),
    ({}, {"rope_factors_long.weight": FACTORS}, f"{FREQUENCIES} rope_factors_long.weight"),
    ({}, {"blk.0.attn_q.bias": np.ones(32)}, r"holds 1 tensors .* \(blk.0.attn_q.bias, ...\)"),
    ({}, {f"blk.{n}.attn_q_norm.weight": np.ones(8) for n in (1, 0)}, "holds 2 tensors .*blk.0"),
    ({}, {"blk.0.ffn_up.scale": np.ones(1)}, r"holds 1 .* \(blk.0.ffn_up.scale, ...\): it would be another"),
]


@pytest.mark.parametrize(("keys", "tensors", "message"), UNSUPPORTED)
def test_unsupported_keys_and_tensors_are_refused(tmp_path, keys, tensors, message):
    line = refused(UnsupportedModelError, message, loaded, tmp_path, keys=keys, tensors=tensors)
    assert line.endswith("choose the model's safetensors files")


def test_sliding_window_is_taken_from_the_file():
    config = Gemma3TextConfig(sliding_window=4096, num_hidden_layers=2, layer_types=["sliding_attention"] * 2)
    settle, key = gguf_contents._apply_key, "attention.sliding_window"
    settle(config, key, 512, "mine")
    assert config.sliding_window == 512
    config.layer_types = ["full_attention"] * 2
    refused(UnsupportedModelError, f"{key} = 64, and the configuration .* = 512", settle, config, key, 64, "mine")
    standard = {key.removeprefix("{arch}.") for part in vars(gguf.Keys).values() if isinstance(part, type)
                for key in vars(part).values() if isinstance(key, str)}  # fmt: skip
    assert gguf_contents._CONFIG_NAMES.keys() <= standard and set(gguf_contents._NEUTRAL) <= standard
