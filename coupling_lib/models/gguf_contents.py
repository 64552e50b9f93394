"""Keys and tensors of a GGUF file, compared with those that transformers reads.

transformers silently ignores keys and tensors that it has no table for. So each key that describes the model
must be read by transformers, or agree with the resulting configuration, or be written to it here; and each
tensor must become a weight. Any other is refused by name. llama.cpp divides the frequencies of the rotary
embedding by the tensor `rope_freqs`: in transformers, longrope with the same factors for short and for long texts.
"""

import math
from collections import UserDict
from collections.abc import Iterable
from typing import Any

import numpy as np
from transformers import PreTrainedConfig
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS, get_gguf_config, read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from coupling_lib.errors import UnsupportedModelError, shown
from coupling_lib.models.gguf_layout import Contents

_NEXT = "choose the model's safetensors files"
_ROPE_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
# Keys of the format's standard, with the names of the same number in configurations.
_CONFIG_NAMES = {
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_attention_heads"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("v_head_dim", "head_dim"),
    "attention.key_length_swa": ("head_dim",),
    "attention.value_length_swa": ("head_dim",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.sliding_window": ("sliding_window",),
    "attention.sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.scale": ("attention_multiplier",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok", "top_k_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
}
# Keys that change no number of a block: properties of the file's preparation, use of the last states, and lengths
# that the shapes of weights show too.
_HARMLESS = {"context_length", "feed_forward_length", "rope.scaling.finetuned"}
_HARMLESS |= {"tensor_data_layout", "pooling_type", "decoder_start_token_id"}
# Values without effect.
_NEUTRAL = {"logit_scale": 1, "attention.scale": 1, "residual_scale": 1, "embedding_scale": 1, "attention.causal": True}


class _RecordingDict(UserDict):
    """A dictionary that records the keys that are read, by `get` too."""

    def __init__(self, values: dict) -> None:
        self.read_keys: set[str] = set()
        super().__init__(values)

    def __getitem__(self, key: str) -> Any:
        self.read_keys.add(key)
        return super().__getitem__(key)


def complete_config(config: PreTrainedConfig, contents: Contents) -> PreTrainedConfig:
    """Write keys that transformers ignored to a configuration, and refuse those without a place there."""
    kind, name = contents.architecture, contents.name
    values = {key.removeprefix(f"{kind}."): value for key, value in contents.keys.items() if key.startswith(f"{kind}.")}
    found = _ROPE_TENSORS & contents.tensors.keys()
    factors = {tensor.removesuffix(".weight"): contents.dense(tensor).tolist() for tensor in sorted(found)}
    scaling = [key for key in values if key.startswith("rope.scal") and key not in _HARMLESS]
    config = _scaled(config, {key: values.pop(key) for key in scaling}, factors, name)
    for key in ("rope.dimension_count", "rope.dimension_count_swa"):
        _check_rotated(config, key, values.pop(key, None), name)
    for key in values.keys() - _known_keys(config, kind, contents):
        _apply_key(config, key, values[key], name)
    return type(config).from_dict(config.to_dict())


def refuse_unused(tensors: Iterable[str | None], name: str) -> None:
    """Refuse a file with a tensor that is no weight of the model."""
    # Layers that predict further tokens in training are not part of the model, and rotary scales are in
    # the configuration. `attn_rot_embd` was written by the first versions of the format and never read.
    known = ("nextn.", "mtp.", "attn_rot_embd")
    others = {tensor for tensor in tensors if tensor} - _ROPE_TENSORS
    if left := sorted(tensor for tensor in others if not any(part in tensor for part in known)):
        raise UnsupportedModelError(
            f"{name!r} holds {len(left)} tensors that transformers does not take from GGUF files ({left[0]}, ...): it "
            f"would be another model without them; {_NEXT}"
        )


def _known_keys(config: PreTrainedConfig, kind: str, contents: Contents) -> set[str]:
    """Return the keys that transformers writes to a configuration."""
    if kind in GGUF_CONFIG_ARCHS:
        metadata, tensors = read_gguf_metadata(str(contents.file))
        recorded = _RecordingDict(metadata)
        get_gguf_config(recorded, tensors)
        return {key.removeprefix(f"{kind}.") for key in recorded.read_keys}
    tables = GGUF_TO_TRANSFORMERS_MAPPING["config"]
    found = {kind, kind.replace("-", "_"), config.model_type, config.model_type.removesuffix("_text")} & tables.keys()
    # Keys that these tables map to nothing are checked here.
    return {key for table in found for key, role in tables[table].items() if role not in (None, -1)}


def _apply_key(config: PreTrainedConfig, key: str, value: Any, name: str) -> None:
    """Compare a key with the configuration, write it there where it has a place, or refuse it."""
    if key in _HARMLESS or (key != "attention.causal" and not value) or value == _NEUTRAL.get(key, ...):
        return
    of_base = key in ("rope.freq_base", "rope.freq_base_swa")
    if of_base and any(_same(rope.get("rope_theta"), value) for rope in _ropes(config)):
        return
    if key == "attention.sliding_window_pattern" and isinstance(value, list):
        kinds = getattr(config, "layer_types", None) or []
        if [kind == "sliding_attention" for kind in kinds] == [bool(one) for one in value[: len(kinds)]]:
            return
    known = config.to_dict() | getattr(config, "attribute_map", {})
    places = [place for place in _CONFIG_NAMES.get(key, (key.rpartition(".")[2],)) if place in known]
    if any(_same(one, value) for place in places for one in _values(config, place)):
        return
    message = f"{name!r} says {key} = {shown(value, 40)}, "
    if not places:
        raise UnsupportedModelError(f"{message}which transformers does not take from GGUF files; {_NEXT}")
    # Which blocks have a window is another setting, which stays as it is: only the width is the file's.
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    windowless = key == "attention.sliding_window" and "sliding_attention" not in kinds
    if key not in _CONFIG_NAMES or windowless or isinstance(value, list) or key.endswith(("length", "count", "_kv")):
        has = f"and the configuration that transformers makes of it has {places[0]} = "
        raise UnsupportedModelError(f"{message}{has}{shown(next(iter(_values(config, places[0])), None), 40)}; {_NEXT}")
    setattr(config, places[0], value)


def _values(config: PreTrainedConfig, key: str) -> list:
    """Return all values of a setting: the general one, and those of single blocks."""
    values = config.to_dict()
    parts = [values, *(values.get("per_layer_config") or {}).values()]
    key = getattr(config, "attribute_map", {}).get(key, key)
    return [part[key] for part in parts if part.get(key) is not None]


def _same(mine: Any, theirs: Any) -> bool:
    """Return whether a number of a configuration, or one a block, equals that of a file up to float32 rounding."""
    try:
        alike = np.isclose(mine, theirs, rtol=1e-6, atol=0)
    except (TypeError, ValueError):  # no numbers, or not as many
        return mine == theirs
    return bool(alike.all()) if alike.size else mine == theirs


# -- the rotary embedding


def _ropes(config: PreTrainedConfig) -> list[dict]:
    """Return the settings of a model's rotary embeddings, that of blocks with full attention first."""
    found = getattr(config, "rope_parameters", None) or {}
    kinds = sorted((key for key, part in found.items() if isinstance(part, dict)), key="full_attention".__ne__)
    return [found[kind] for kind in kinds] or ([found] if found else [])


def _check_rotated(config: PreTrainedConfig, key: str, dimensions: int | None, name: str) -> None:
    """Refuse a file whose number of rotated dimensions differs from the configuration's."""
    if dimensions is None or not (ropes := _ropes(config)):
        return
    heads = _values(config, "head_dim") or [config.hidden_size // config.num_attention_heads]
    shares = {rope.get("partial_rotary_factor") or 1.0 for rope in ropes}
    made = {int(width * share) for width in heads for share in shares} | set(heads[1:])
    if dimensions not in made | {getattr(config, "rotary_dim", None)}:
        raise UnsupportedModelError(
            f"{name!r} rotates {dimensions} dimensions of a head ({key}), and the configuration that "
            f"transformers makes of it {min(made)}; {_NEXT}"
        )


def _scaled(config: PreTrainedConfig, keys: dict, factors: dict[str, list], name: str) -> PreTrainedConfig:
    """Write a file's scaling of the rotary embedding to its configuration."""
    scaling = {key.removeprefix("rope.").removeprefix("scaling."): value for key, value in keys.items()}
    kind = scaling.pop("type", "linear" if "scale_linear" in scaling or "factor" in scaling else "none")
    factor = scaling.pop("factor", scaling.pop("scale_linear", 1.0)) or 1.0
    original = scaling.pop("original_context_length", None)
    attention = scaling.pop("attn_factor", None)
    new: dict[str, Any] | None = None
    if "rope_factors_long" in factors and "rope_factors_short" in factors:
        original = original or config.max_position_embeddings
        new = {"rope_type": "longrope", "original_max_position_embeddings": original}
        new |= {"long_factor": factors.pop("rope_factors_long"), "short_factor": factors.pop("rope_factors_short")}
        new["factor"] = config.max_position_embeddings / original
        new |= {"attention_factor": attention} if attention else {}
        if hasattr(config, "original_max_position_embeddings"):
            config.original_max_position_embeddings = original
    elif "rope_freqs" in factors and kind in ("none", "linear", "longrope"):
        divided = [factor ** (kind == "linear") * one for one in factors.pop("rope_freqs")]
        if not all(_same(one, 1.0) for one in divided) and not _divides(config, divided):
            new = {"rope_type": "longrope", "factor": 1.0, "attention_factor": attention or 1.0}
            new |= {"long_factor": divided, "short_factor": divided}
            new |= {"original_max_position_embeddings": config.max_position_embeddings}
    elif kind == "linear" and not _same(factor, 1.0):
        new = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        new = {"rope_type": "yarn", "factor": factor}
        new |= {"original_max_position_embeddings": original} if original else {}
        for key in ("beta_fast", "beta_slow"):
            if (value := scaling.pop(f"yarn_{key}", scaling.pop(key, None))) is not None:
                new[key] = value
        attention = scaling.pop("yarn_attn_factor", attention)
        new |= {"attention_factor": attention * (0.1 * math.log(factor) + 1)} if attention and attention != 1 else {}
    left = [f"rope.scaling.{key}" for key, value in scaling.items() if value] + [f"{key}.weight" for key in factors]
    known = kind in ("none", "linear", "yarn") or new is not None
    if left or not known or (new is not None and not _ropes(config)):
        what = left[0] if left else f"rope.scaling.type = {shown(kind, 40)}"
        raise UnsupportedModelError(
            f"{name!r} scales its rotary embedding by {what}, which the configuration of a {config.model_type} has no "
            f"place for; {_NEXT}"
        )
    if new is not None:
        first = _ropes(config)[0]
        kept = {key: first[key] for key in ("rope_theta", "partial_rotary_factor") if key in first}
        first.clear()
        first.update(kept | new)
    return config


def _divides(config: PreTrainedConfig, factors: list[float]) -> bool:
    """Return whether a configuration's frequencies are already divided by these factors."""
    found = getattr(config, "rope_parameters", None) or {}
    rope = _ropes(config)[0] if found else {}
    if (make := ROPE_INIT_FUNCTIONS.get(rope.get("rope_type"))) is None:
        return False
    by_kind = isinstance(found.get("full_attention"), dict)
    made = make(config, layer_type="full_attention" if by_kind else None)[0].tolist()
    plain = [rope["rope_theta"] ** (-at / len(factors)) for at in range(len(factors))]
    wanted = [frequency / factor for frequency, factor in zip(plain, factors, strict=True)]
    made += [0.0] * (len(wanted) - len(made))
    return bool(np.allclose(made, wanted, rtol=1e-4, atol=1e-9))
