"""Keys and tensors of GGUF files that transformers leaves out: taken, or refused by name."""

import gguf
import numpy as np
import pytest
import tiny
import torch
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
    write(tmp_path / "tiny.gguf", "F16", tokenizer=False, **more)
    return load_model(tmp_path / "tiny.gguf", device="cpu").hf


def off(tmp_path, hf, **rope):
    """How far a model's logits are from those of the file's weights under a scaling that transformers is told."""
    weights = write(tmp_path / "plain.gguf", "F16", tokenizer=False)
    theirs = tiny.llama(num_attention_heads=4, num_key_value_heads=2, rope_parameters={"rope_theta": ROPE} | rope)
    theirs.load_state_dict({name: torch.from_numpy(weight).float() for name, weight in weights.items()})
    with torch.no_grad():
        wanted = theirs(IDS).logits
        return float((hf(IDS).logits - wanted).norm() / wanted.norm())


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.5], "long_factor": FACTORS.tolist()}
LONG |= {"original_max_position_embeddings": 32}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}


def frequencies(rope):
    """The frequencies of a scaling, and those without, by transformers' own formulas."""
    config = LlamaConfig(hidden_size=8, num_attention_heads=1, rope_parameters={"rope_theta": ROPE} | rope)
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")[0].numpy(), ROPE ** (-np.arange(HALF) / HALF)


def scalings():
    made, plain = frequencies(LLAMA3)
    long = {"rope.scaling.original_context_length": 32}
    both = {f"rope_factors_{kind}.weight": np.array(LONG[f"{kind}_factor"]) for kind in ("short", "long")}
    longer = {"factor": 8.0}  # 256 positions over 32
    yield "llama3", {}, {"rope_freqs.weight": plain / made}, LLAMA3
    linear = {"rope_type": "linear", "factor": 4.0}
    yield "linear", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}, linear
    yield "linear, older", {"rope.scale_linear": 4.0}, {}, linear
    yield "yarn", YARN, {}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    slow = {"rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_beta_fast": 16.0}
    original = {"beta_slow": 2.0, "beta_fast": 16.0, "original_max_position_embeddings": 64}
    yield "yarn, betas", YARN | slow, {}, {"rope_type": "yarn", "factor": 4.0} | original
    yield "longrope", long, both, LONG | longer
    scale = {"rope.scaling.attn_factor": 1.25}
    yield "longrope, scaled", long | scale, both, LONG | longer | {"attention_factor": 1.25}


@pytest.mark.parametrize(("keys", "tensors", "rope"), [row[1:] for row in scalings()], ids=[r[0] for r in scalings()])
def test_rotary_scaling_is_that_of_the_file(tmp_path, keys, tensors, rope):
    hf = loaded(tmp_path, keys=keys, tensors=tensors)
    assert off(tmp_path, hf, **rope) < 1e-5
    # Without it the model would be another one.
    assert off(tmp_path, hf, rope_type="default") > 1e-3


def test_untrained_model_has_the_rotary_scaling(tmp_path):
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    write(tmp_path / "tiny.gguf", "F16", tokenizer=False, keys=keys)
    fresh = load_model(tmp_path / "tiny.gguf", device="cpu", untrained=True).hf
    assert fresh.config.rope_parameters == {"rope_theta": ROPE, "rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("keys", "tensors"),
    [
        ({}, {"rope_freqs.weight": np.ones(HALF)}),
        ({"rope.scaling.type": "none"}, {}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0, "rope.scaling.finetuned": True}, {}),
        ({"attention.key_length": 8, "attention.value_length": 8, "attention.causal": True}, {}),
        ({"attention.clamp_kqv": 0.0, "expert_count": 0, "logit_scale": 1.0, "tensor_data_layout": "x"}, {}),
        ({}, {"blk.0.attn_rot_embd.weight": np.ones(4), "blk.3.nextn.eh_proj.weight": np.ones((4, 4))}),
    ],
)
def test_keys_without_effect_are_accepted(tmp_path, keys, tensors):
    hf = loaded(tmp_path, keys=keys, tensors=tensors)
    assert off(tmp_path, hf, rope_type="default") < 1e-6
    assert hf.config.rope_parameters["rope_type"] == "default"


TWISTED = {"rope.scaling.type": "twisted", "rope.scaling.factor": 2.0}
YARN_LOG = TWISTED | {"rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.1}
NORMS = {f"blk.{block}.attn_q_norm.weight": np.ones(8) for block in (1, 0)}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention.causal": False}, "says attention.causal = False, which transformers does not take"),
        ({"logit_scale": 0.25}, "says logit_scale = 0.25, which transformers does not take"),
        ({"attn_logit_softcapping": 50.0}, "says attn_logit_softcapping = 50.0, which"),
        ({"attention.sliding_window": 16}, "says attention.sliding_window = 16, which"),
        ({"attention.value_length": 16}, "says attention.value_length = 16, and the .* has head_dim = 8"),
        ({"rope.dimension_count_swa": 4}, r"rotates 4 dimensions of a head \(rope.dimension_count_swa\), and .* it 8"),
        ({"expert_count": 4}, "says expert_count = 4, which"),
        (TWISTED, "embedding by rope.scaling.type = 'twisted'"),
        (YARN_LOG, "yarn_l"),
        ({"rope.scaling.alpha": 1000.0}, "scales its rotary embedding by rope.scaling.alpha"),
        ({"rope_factors_long.weight": FACTORS}, "scales its rotary embedding by rope_factors_long.weight"),
        ({"blk.0.attn_q.bias": np.ones(32)}, r"holds 1 tensors .* \(blk.0.attn_q.bias, ...\)"),
        (NORMS, "holds 2 tensors .*blk.0"),
        ({"blk.0.ffn_up.scale": np.ones(1)}, r"holds 1 tensors .* \(blk.0.ffn_up.scale, ...\): it would be another"),
    ],
)
def test_unsupported_keys_and_tensors_are_refused(tmp_path, keys, message):
    kind = "tensors" if isinstance(next(iter(keys.values())), np.ndarray) else "keys"
    line = refused(UnsupportedModelError, message, loaded, tmp_path, **{kind: keys})
    assert line.endswith("choose the model's safetensors files")


def test_sliding_window_is_taken_from_the_file():
    config = Gemma3TextConfig(sliding_window=4096, num_hidden_layers=2, layer_types=["sliding_attention"] * 2)
    settle, key = gguf_contents._apply_key, "attention.sliding_window"
    settle(config, key, 512, "mine")
    assert config.sliding_window == 512
    config.layer_types = ["full_attention"] * 2
    message = f"{key} = 64, and the configuration .* = 512"
    refused(UnsupportedModelError, message, settle, config, key, 64, "mine")
    standard = {key.removeprefix("{arch}.") for part in vars(gguf.Keys).values() if isinstance(part, type)
                for key in vars(part).values() if isinstance(key, str)}  # fmt: skip
    assert gguf_contents._CONFIG_NAMES.keys() <= standard and set(gguf_contents._NEUTRAL) <= standard
