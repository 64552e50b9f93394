"""Tiny random configurations of every model family that is tested, as data.

Each case is a configuration class and its arguments, three blocks deep and 32 wide, small enough for a
float64 brute-force derivative. `narrow` marks families whose own code casts to float32 inside (norms,
rotary tables, softmax), so that a float64 check of them is a float32 check there. `route` is the route that the
library is expected to find by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from hybrids import HYBRIDS
from transformers import AutoModelForCausalLM, PreTrainedModel

from coupling_lib.errors import PostNormWarning
from coupling_lib.models.load import Model, wrap_model

BASE = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)
VISION = dict(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=16,
    patch_size=4,
    num_channels=3,
)
GQA = dict(BASE, num_key_value_heads=2, head_dim=8)


@dataclass(frozen=True)
class Family:
    """One tiny configuration."""

    name: str
    config: str
    arguments: dict = field(default_factory=dict)
    narrow: bool = False
    bidirectional: bool = False
    model: str | None = None
    route: str = "attention"

    def build(self, seed: int = 0) -> PreTrainedModel:
        """Build the model in float64 with random weights, large enough that no block is nearly linear."""
        dtype = torch.float64
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**self.arguments)
        config._experts_implementation = "eager"
        if self.model:
            hf = getattr(transformers, self.model)._from_config(config, dtype=dtype)
        else:
            hf = AutoModelForCausalLM.from_config(config, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in hf.parameters():
                if parameter.ndim >= 2:
                    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.add_((0.15 * noise).to(parameter.dtype))
        return hf.eval().requires_grad_(False)


def _layers(**others: object) -> dict:
    return {**GQA, **others}


FAMILIES = [
    Family("llama", "LlamaConfig", GQA, narrow=True),
    Family("qwen2", "Qwen2Config", GQA, narrow=True),
    Family("qwen3", "Qwen3Config", GQA, narrow=True),
    Family("phi3", "Phi3Config", GQA, narrow=True),
    Family("gemma", "GemmaConfig", GQA, narrow=True),
    Family("olmo", "OlmoConfig", GQA, narrow=True),
    Family("cohere", "CohereConfig", GQA, narrow=True),
    Family("granite", "GraniteConfig", GQA, narrow=True),
    Family("glm4", "Glm4Config", GQA, narrow=True),
    Family("smollm3", "SmolLM3Config", GQA, narrow=True),
    Family("mistral-window", "MistralConfig", _layers(sliding_window=4), narrow=True),
    Family("gemma2-window", "Gemma2Config", _layers(sliding_window=4), narrow=True),
    Family("gemma3-window", "Gemma3TextConfig", _layers(sliding_window=4), narrow=True),
    Family("cohere2-window", "Cohere2Config", _layers(sliding_window=4), narrow=True),
    Family("phi", "PhiConfig", BASE, narrow=True),
    Family("gpt-neox", "GPTNeoXConfig", BASE, narrow=True),
    Family("gpt-neox-sequential", "GPTNeoXConfig", dict(BASE, use_parallel_residual=False), narrow=True),
    Family("opt", "OPTConfig", dict(BASE, ffn_dim=64, word_embed_proj_dim=32), narrow=True),
    Family("olmo2", "Olmo2Config", GQA, narrow=True),
    Family("stablelm", "StableLmConfig", GQA, narrow=True),
    Family("starcoder2", "Starcoder2Config", GQA, narrow=True),
    Family("nemotron", "NemotronConfig", GQA, narrow=True),
    Family("gpt2", "GPT2Config", dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64)),
    Family("mixtral", "MixtralConfig", _layers(num_local_experts=4, num_experts_per_tok=2), narrow=True),
    Family(
        "qwen3-moe",
        "Qwen3MoeConfig",
        _layers(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1),
        narrow=True,
    ),
    Family(
        "gpt-oss", "GptOssConfig", _layers(num_local_experts=4, num_experts_per_tok=2, sliding_window=4), narrow=True
    ),
    Family(
        "deepseek-v3",
        "DeepseekV3Config",
        dict(
            BASE,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            kv_lora_rank=16,
            q_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            n_shared_experts=1,
            num_key_value_heads=4,
        ),
        narrow=True,
    ),
    Family(
        "falcon-7b",
        "FalconConfig",
        dict(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            multi_query=True,
            parallel_attn=True,
        ),
        narrow=True,
        route="cache",
    ),
    Family(
        "falcon-new",
        "FalconConfig",
        dict(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_kv_heads=2,
            new_decoder_architecture=True,
        ),
        narrow=True,
        route="cache",
    ),
    Family(
        "falcon-alibi",
        "FalconConfig",
        dict(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            multi_query=False,
            parallel_attn=False,
            alibi=True,
            bias=True,
        ),
        narrow=True,
        route="cache",
    ),
    Family(
        "mpt-alibi",
        "MptConfig",
        dict(vocab_size=64, d_model=32, n_layers=3, n_heads=4, max_seq_len=64),
        narrow=True,
        route="cache",
    ),
    Family(
        "bloom-alibi",
        "BloomConfig",
        dict(vocab_size=64, hidden_size=32, n_layer=3, n_head=4),
        narrow=True,
        route="cache",
    ),
    Family(
        "gptj",
        "GPTJConfig",
        dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64, rotary_dim=4),
        narrow=True,
        route="cache",
    ),
    Family(
        "gpt-neo",
        "GPTNeoConfig",
        dict(
            vocab_size=64,
            hidden_size=32,
            num_layers=3,
            num_heads=4,
            max_position_embeddings=64,
            window_size=4,
            attention_types=[[["global", "local"], 1], [["global"], 1]],
        ),
        narrow=True,
        route="cache",
    ),
    Family("bert", "BertConfig", BASE, bidirectional=True, model="BertModel"),
    Family("vit", "ViTConfig", VISION, bidirectional=True, narrow=True, model="ViTModel"),
    Family("deit", "DeiTConfig", VISION, bidirectional=True, narrow=True, model="DeiTModel"),
    Family("dinov2", "Dinov2Config", VISION, bidirectional=True, narrow=True, model="Dinov2Model"),
    Family("roberta", "RobertaConfig", BASE, bidirectional=True, narrow=True, model="RobertaModel"),
    Family(
        "gpt-bigcode",
        "GPTBigCodeConfig",
        dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0),
        narrow=True,
    ),
    Family(
        "codegen",
        "CodeGenConfig",
        dict(
            vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64, rotary_dim=4, bos_token_id=0, eos_token_id=0
        ),
        narrow=True,
        route="cache",
    ),
    Family("persimmon", "PersimmonConfig", BASE, narrow=True),
    Family("olmo3-window", "Olmo3Config", _layers(sliding_window=4), narrow=True),
    Family("exaone4", "Exaone4Config", _layers(sliding_window=4), narrow=True),
    Family("ernie4.5", "Ernie4_5Config", GQA, narrow=True),
    Family("helium", "HeliumConfig", GQA, narrow=True),
    Family(
        "qwen2-moe",
        "Qwen2MoeConfig",
        _layers(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
        narrow=True,
    ),
    *(Family(name, config, given, narrow=True, route=route) for name, config, given, route in HYBRIDS),
]

# Eight that stand for all in `make test`: together they take every route, and every rule by which a block is found,
# called again and differentiated. The others run in `make test-all`, under the marker `thorough`.
STANDING_FOR_ALL = (
    "llama",  # attention: rotary angles, keys shared by heads, gates that are merged, rows that are picked
    "bloom-alibi",  # cache: biases instead of positions, and an activation with a backward of its own
    "mamba",  # state alone
    "qwen3-next",  # attention and state, block by block; experts, with a shared one
    "recurrent-gemma",  # attention in a sliding window, and the whole sequence
    "zamba2",  # the whole sequence; one layer in several blocks
    "bert",  # tokens that see later ones, and norms in the stream
    "vit",  # pictures
)


def named(name: str) -> Family:
    """Give the family of a name."""
    return next(family for family in FAMILIES if family.name == name)


def each_family(families: Iterable[Family] = FAMILIES) -> pytest.MarkDecorator:
    """Run a test for the families that stand for all, and for the others where all are asked for."""
    return pytest.mark.parametrize(
        "family",
        [
            pytest.param(one, id=one.name, marks=[pytest.mark.thorough] * (one.name not in STANDING_FOR_ALL))
            for one in families
        ],
    )


_LOADED: dict[tuple[str, torch.dtype], Model] = {}


def loaded(family: Family, dtype: torch.dtype = torch.float64) -> Model:
    """Give a family's model, built and checked once for all tests; for those that leave it as it is."""
    key = family.name, dtype
    if key not in _LOADED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PostNormWarning)
            _LOADED[key] = wrap_model(family.build().to(dtype), name=family.name)
    return _LOADED[key]
