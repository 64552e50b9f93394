"""Which class a configuration calls for, decided from transformers' own tables and never from remote code."""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
)

from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError

DEEPEST = 10_000
"""Blocks above which a configuration is taken for damaged: building so many modules alone would take hours."""


def read_config(folder: Path, name: str) -> PreTrainedConfig:
    """Read a model's configuration."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = raw.get("model_type")
    except FileNotFoundError:
        raise ModelUnavailableError(f"{name!r} has no config.json; choose a model in the transformers format") from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise ModelUnavailableError(f"config.json of {name!r} is damaged; fetch it again") from error
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING_NAMES:
        raise UnsupportedModelError(_unknown(name, f"the model type {model_type!r}", "auto_map" in raw))
    if method := raw.get("quantization_config"):
        raise UnsupportedModelError(
            f"the weights of {name!r} are quantised already ({method.get('quant_method', 'unknown method')}); "
            "choose the original and pass precision='nf4', 'fp4' or 'int8'"
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        said = f"is not understood ({' '.join(str(error).split())[:200]}); check its values"
        raise UnsupportedModelError(f"config.json of {name!r} {said}") from error
    refuse_encoder_decoder(config, name)
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(depth, int) and depth > DEEPEST:
        raise UnsupportedModelError(
            f"config.json of {name!r} speaks of {depth:,} blocks, and no transformer has more than {DEEPEST:,}; "
            "check its num_hidden_layers"
        )
    return config


def refuse_encoder_decoder(config: PreTrainedConfig, name: str) -> None:
    """Refuse a model with two stacks of blocks."""
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name!r} is an encoder-decoder ({config.model_type}), whose decoder blocks read a second stream; choose "
            "a decoder, an encoder or a vision transformer"
        )


def model_class(config: PreTrainedConfig, name: str) -> type[PreTrainedModel]:
    """Choose the class that evaluates a configuration."""
    # The class that the configuration names comes first, so that every stored weight has its place: an encoder keeps
    # its head. Where it names none, an encoder is told from a decoder by having a masked-language-model class.
    listed = config.architectures if isinstance(config.architectures, list) else []
    named = listed[0] if listed and isinstance(listed[0], str) else None
    declared = getattr(transformers, named, None) if named else None
    known = isinstance(declared, type) and issubclass(declared, PreTrainedModel)
    if known and isinstance(config, declared.config_class):
        return declared
    kind = type(config)
    tables = [MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING]
    if kind in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        tables.reverse()
    found = next((table[kind] for table in tables if kind in table), None)
    found = found[0] if isinstance(found, tuple) else found
    # MPT's repositories write MPTForCausalLM where transformers has MptForCausalLM: the same class.
    remote = getattr(config, "auto_map", None) and named and found and named.lower() != found.__name__.lower()
    if found is None or remote:
        raise UnsupportedModelError(_unknown(name, f"the architecture {named!r}", bool(remote)))
    return found


def _unknown(name: str, what: str, remote: bool) -> str:
    """Say why a model that transformers cannot evaluate by itself is refused."""
    reason = f"transformers {transformers.__version__} has no such model"
    if remote:
        reason = "it needs remote code, which is never run"
    return f"{name!r} has {what}: {reason}; choose a model that transformers supports itself"
