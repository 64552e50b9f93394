"""Tiny random configurations of every model family that is tested, as data.

Each case is a configuration class and its arguments, three blocks deep and 32 wide, small enough for a
float64 brute-force derivative. `wide` marks families that compute in float64 throughout where they are asked to; the
own code of the others casts to float32 inside (norms, rotary tables, softmax), and so does their float64 check. `route`
is the route that the library is expected to find by itself.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoModelForCausalLM, PreTrainedModel

from coupling_lib.errors import PostNormWarning
from coupling_lib.models.model import Model
from coupling_lib.models.storages import wrap_model

_SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=3)
_IDS = dict(bos_token_id=0, eos_token_id=0)
_HEADS = dict(num_attention_heads=4, intermediate_size=64)
BASE = dict(_SMALL, **_HEADS, max_position_embeddings=64, **_IDS, pad_token_id=0)
VISION = dict(_HEADS, hidden_size=32, num_hidden_layers=3, image_size=16, patch_size=4, num_channels=3)
GQA = dict(BASE, num_key_value_heads=2, head_dim=8)
_GPT2 = dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
_LOCAL_EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
_WINDOW = dict(GQA, sliding_window=4)
_LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
_LATENT |= dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32)
_LATENT |= dict(n_group=2, topk_group=1, first_k_dense_replace=1, num_key_value_heads=4)
_SHARED_EXPERT = dict(moe_intermediate_size=32, shared_expert_intermediate_size=32)
_FALCON = dict(_SMALL, num_attention_heads=4)
_ALIBI = dict(multi_query=False, parallel_attn=False, alibi=True, bias=True)
_MPT = dict(vocab_size=64, d_model=32, n_layers=3, n_heads=4, max_seq_len=64)
_GPT_NEO = dict(vocab_size=64, hidden_size=32, num_layers=3, num_heads=4, max_position_embeddings=64, window_size=4)
_GPT_NEO |= dict(attention_types=[[["global", "local"], 1], [["global"], 1]])
# Families whose blocks carry a state: recurrences, short convolutions, and hybrids of them and attention.
_PURE = dict(_SMALL, **_IDS, pad_token_id=0, state_size=8)
_PURE_2 = dict(_PURE, num_heads=8, head_dim=8, n_groups=2, chunk_size=4)
_MAMBA_2 = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4)
_MIXED, _MAMBAS = ["linear_attention", "full_attention", "linear_attention"], ["mamba", "attention", "mamba"]
_LINEAR = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
_NEXT = dict(GQA, **_EXPERTS, **_SHARED_EXPERT, **_LINEAR)
_GRANITE = dict(GQA, **_MAMBA_2, **_LOCAL_EXPERTS, shared_intermediate_size=64)
_JAMBA = dict(attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1)
_JAMBA |= dict(mamba_d_state=8, mamba_dt_rank=4)
_CONVOLUTIONS = dict(block_ff_dim=64, conv_L_cache=3, layer_types=["conv", "full_attention", "conv"])
_ZAMBA = dict(mamba_d_state=8, n_mamba_heads=8, mamba_ngroups=1, chunk_size=4, adapter_rank=8, num_mem_blocks=1)
_NEMOTRON = dict(mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=8, n_groups=1, chunk_size=4)
_ZAMBA |= dict(layers_block_type=["mamba", "hybrid", "mamba"])
_NEMOTRON |= dict(layers_block_type=_MAMBAS)
_RECURRENT = dict(lru_width=32, attention_window_size=4, block_types=["recurrent", "recurrent", "attention"])
_RWKV = dict(_SMALL, **_IDS, max_position_embeddings=64)

# From transformers 5.24 on these families call their attention by its interface.
JOINED = "cache" if Version(transformers.__version__) < Version("5.24") else "attention"


@dataclass(frozen=True)
class Family:
    """One tiny configuration."""

    name: str
    config: str
    arguments: dict = field(default_factory=dict)
    wide: bool = False
    bidirectional: bool = False
    model: str | None = None
    route: str = "attention"

    def build(self, seed: int = 0) -> PreTrainedModel:
        """Build the model in float64 with random weights, large enough that no block is nearly linear."""
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**self.arguments)
        config._experts_implementation = "eager"
        make = getattr(transformers, self.model)._from_config if self.model else AutoModelForCausalLM.from_config
        hf, generator = make(config, dtype=torch.float64), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in (parameter for parameter in hf.parameters() if parameter.ndim >= 2):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_((0.15 * noise).to(parameter.dtype))
        return hf.eval().requires_grad_(False)


def alike(arguments: dict, names: dict[str, str], **more) -> list[Family]:
    """Families of the same arguments, by the beginnings of their configurations' names."""
    return [Family(name, f"{config}Config", arguments, **more) for name, config in names.items()]


_GATED = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3", "gemma": "Gemma", "olmo": "Olmo"}
_GATED |= {"cohere": "Cohere", "granite": "Granite", "glm4": "Glm4", "smollm3": "SmolLM3"}
_WINDOWED = {"mistral": "Mistral", "gemma2": "Gemma2", "gemma3": "Gemma3Text", "cohere2": "Cohere2"}

FAMILIES = [
    *alike(GQA, _GATED),
    *alike(_WINDOW, {f"{name}-window": config for name, config in _WINDOWED.items()}),
    Family("phi", "PhiConfig", BASE),
    Family("gpt-neox", "GPTNeoXConfig", BASE),
    Family("gpt-neox-sequential", "GPTNeoXConfig", dict(BASE, use_parallel_residual=False)),
    Family("opt", "OPTConfig", dict(BASE, ffn_dim=64, word_embed_proj_dim=32)),
    *alike(GQA, {"olmo2": "Olmo2", "stablelm": "StableLm", "starcoder2": "Starcoder2", "nemotron": "Nemotron"}),
    Family("gpt2", "GPT2Config", _GPT2, wide=True),
    Family("mixtral", "MixtralConfig", dict(GQA, **_LOCAL_EXPERTS)),
    Family("qwen3-moe", "Qwen3MoeConfig", dict(GQA, **_EXPERTS, moe_intermediate_size=32, decoder_sparse_step=1)),
    Family("gpt-oss", "GptOssConfig", dict(_WINDOW, **_LOCAL_EXPERTS)),
    Family("deepseek-v3", "DeepseekV3Config", dict(BASE, **_LATENT)),
    Family("falcon-7b", "FalconConfig", dict(_FALCON, multi_query=True, parallel_attn=True), route="cache"),
    Family("falcon-new", "FalconConfig", dict(_FALCON, num_kv_heads=2, new_decoder_architecture=True), route="cache"),
    Family("falcon-alibi", "FalconConfig", dict(_FALCON, **_ALIBI), route="cache"),
    Family("mpt-alibi", "MptConfig", _MPT, route="cache"),
    Family("bloom-alibi", "BloomConfig", dict(vocab_size=64, hidden_size=32, n_layer=3, n_head=4), route="cache"),
    Family("gptj", "GPTJConfig", dict(_GPT2, rotary_dim=4), route=JOINED),
    Family("gpt-neo", "GPTNeoConfig", _GPT_NEO, route="cache"),
    Family("bert", "BertConfig", BASE, wide=True, bidirectional=True, model="BertModel"),
    *(
        Family(name.lower(), f"{name}Config", VISION, bidirectional=True, model=f"{name}Model")
        for name in ("ViT", "DeiT", "Dinov2")
    ),
    Family("roberta", "RobertaConfig", BASE, bidirectional=True, model="RobertaModel"),
    Family("gpt-bigcode", "GPTBigCodeConfig", dict(_GPT2, **_IDS)),
    Family("codegen", "CodeGenConfig", dict(_GPT2, **_IDS, rotary_dim=4), route=JOINED),
    Family("persimmon", "PersimmonConfig", BASE),
    Family("olmo3-window", "Olmo3Config", _WINDOW),
    Family("exaone4", "Exaone4Config", _WINDOW),
    *alike(GQA, {"ernie4.5": "Ernie4_5", "helium": "Helium"}),
    Family("qwen2-moe", "Qwen2MoeConfig", dict(GQA, **_EXPERTS, **_SHARED_EXPERT)),
    *alike(_PURE, {"mamba": "Mamba", "falcon-mamba": "FalconMamba"}, route="state"),
    Family("mamba2", "Mamba2Config", _PURE_2, route="state"),
    Family("mamba2-bounded", "Mamba2Config", dict(_PURE_2, time_step_limit=(0.5, 1.0)), route="sequence"),
    Family("qwen3-next", "Qwen3NextConfig", dict(_NEXT, layer_types=_MIXED), route="attention and state"),
    Family("olmo-hybrid", "OlmoHybridConfig", dict(GQA, layer_types=_MIXED), route="attention and state"),
    Family("falcon-h1", "FalconH1Config", dict(GQA, **_MAMBA_2, mamba_d_ssm=64), route="state"),
    Family("granite-4-h", "GraniteMoeHybridConfig", dict(_GRANITE, layer_types=_MAMBAS), route="attention and state"),
    Family("bamba", "BambaConfig", dict(GQA, **_MAMBA_2, attn_layer_indices=[1]), route="attention and state"),
    Family("lfm2", "Lfm2Config", dict(GQA, **_CONVOLUTIONS), route="attention and state"),
    Family("jamba", "JambaConfig", dict(GQA, **_EXPERTS, **_JAMBA), route="attention and state"),
    Family("zamba2", "Zamba2Config", dict(GQA, **_ZAMBA), route="sequence"),
    Family("nemotron-h", "NemotronHConfig", dict(GQA, **_NEMOTRON), route="attention and sequence"),
    Family("recurrent-gemma", "RecurrentGemmaConfig", dict(GQA, **_RECURRENT), route="attention and sequence"),
    # With a cache its weights are written to in place while they are differentiated, which autograd refuses.
    Family("rwkv", "RwkvConfig", dict(_RWKV, context_length=64, use_cache=False), route="sequence"),
]

# Eight that stand for all in `make test`: together they take every route, and every rule by which a block is found,
# called again and differentiated. The others run in `make test-all`, under the marker `thorough`.
REPRESENTATIVE = (
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
    """Return the family of a name."""
    return next(family for family in FAMILIES if family.name == name)


def each_family(families: Iterable[Family] = FAMILIES) -> pytest.MarkDecorator:
    """Run a test for the families that stand for all, and for the others where all are asked for."""
    marks = {name: [] for name in REPRESENTATIVE}
    rows = [pytest.param(one, id=one.name, marks=marks.get(one.name, pytest.mark.thorough)) for one in families]
    return pytest.mark.parametrize("family", rows)


_LOADED: dict[tuple[str, torch.dtype], Model] = {}


def loaded(family: Family, dtype: torch.dtype = torch.float64) -> Model:
    """Return a family's model, built and checked once for all tests; for those that leave it as it is."""
    key = family.name, dtype
    if key not in _LOADED:
        with warnings.catch_warnings(action="ignore", category=PostNormWarning):
            _LOADED[key] = wrap_model(family.build().to(dtype), name=family.name)
    return _LOADED[key]
