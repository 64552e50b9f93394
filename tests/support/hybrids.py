"""Tiny configurations of families whose blocks carry a state: recurrences, short convolutions, and hybrids of them."""

from __future__ import annotations

_BASE = dict(
    vocab_size=64, hidden_size=32, num_hidden_layers=3, max_position_embeddings=64, bos_token_id=0, eos_token_id=0
)
_PURE = dict(
    vocab_size=64, hidden_size=32, num_hidden_layers=3, pad_token_id=0, bos_token_id=0, eos_token_id=0, state_size=8
)
_GQA = dict(_BASE, pad_token_id=0, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=64)
_MAMBA2 = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
_MIXED = ["linear_attention", "full_attention", "linear_attention"]

# Name, configuration class, arguments, route.
HYBRIDS = [
    ("mamba", "MambaConfig", _PURE, "state"),
    ("falcon-mamba", "FalconMambaConfig", _PURE, "state"),
    ("mamba2", "Mamba2Config", dict(_PURE, num_heads=8, head_dim=8, n_groups=2, chunk_size=4), "state"),
    (
        "mamba2-bounded",
        "Mamba2Config",
        dict(_PURE, num_heads=8, head_dim=8, n_groups=2, chunk_size=4, time_step_limit=(0.5, 1.0)),
        "sequence",
    ),
    (
        "qwen3-next",
        "Qwen3NextConfig",
        dict(
            _GQA,
            **_EXPERTS,
            layer_types=_MIXED,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        ),
        "attention and state",
    ),
    ("olmo-hybrid", "OlmoHybridConfig", dict(_GQA, layer_types=_MIXED), "attention and state"),
    ("falcon-h1", "FalconH1Config", dict(_GQA, **_MAMBA2, mamba_d_ssm=64), "state"),
    (
        "granite-4-h",
        "GraniteMoeHybridConfig",
        dict(
            _GQA,
            **_MAMBA2,
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=64,
            layer_types=["mamba", "attention", "mamba"],
        ),
        "attention and state",
    ),
    ("bamba", "BambaConfig", dict(_GQA, **_MAMBA2, attn_layer_indices=[1]), "attention and state"),
    (
        "lfm2",
        "Lfm2Config",
        dict(_GQA, block_ff_dim=64, conv_L_cache=3, layer_types=["conv", "full_attention", "conv"]),
        "attention and state",
    ),
    (
        "jamba",
        "JambaConfig",
        dict(
            _GQA,
            **_EXPERTS,
            attn_layer_period=3,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8,
            mamba_dt_rank=4,
        ),
        "attention and state",
    ),
    (
        "zamba2",
        "Zamba2Config",
        dict(
            _GQA,
            mamba_d_state=8,
            n_mamba_heads=8,
            mamba_ngroups=1,
            chunk_size=4,
            adapter_rank=8,
            num_mem_blocks=1,
            layers_block_type=["mamba", "hybrid", "mamba"],
        ),
        "sequence",
    ),
    (
        "nemotron-h",
        "NemotronHConfig",
        dict(
            _GQA,
            mamba_num_heads=8,
            mamba_head_dim=8,
            ssm_state_size=8,
            n_groups=1,
            chunk_size=4,
            layers_block_type=["mamba", "attention", "mamba"],
        ),
        "attention and sequence",
    ),
    (
        "recurrent-gemma",
        "RecurrentGemmaConfig",
        dict(_GQA, lru_width=32, attention_window_size=4, block_types=["recurrent", "recurrent", "attention"]),
        "attention and sequence",
    ),
    # With a cache its weights are written to in place while they are differentiated, which autograd refuses.
    ("rwkv", "RwkvConfig", dict(_BASE, context_length=64, use_cache=False), "sequence"),
]
