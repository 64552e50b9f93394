"""Makes a tiny random model of any type of transformers: its configuration with sizes shrunk by name, and weights.

Weights are large enough that no block is nearly linear. `tiny_families.toml` says how names are shrunk, and what some
types need besides.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

MAPPINGS: dict[str, Mapping[str, Any]] = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "image classification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "image and text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
LARGEST_ID = 511
NEEDED = Path(__file__).with_suffix(".toml")
SIZES, NEEDS = tomllib.loads(NEEDED.read_text(encoding="utf-8")).values()
# Labels, and what is derived from the number of layers.
DROPPED = ("id2label", "label2id", "per_layer_config", "stage_names", "out_features", "out_indices")


def shrunk(given: Mapping[str, Any], ids: dict[str, int], blocks: int = 3) -> dict[str, Any]:
    """Shrink a configuration's settings by name, and nested ones; `ids` has each special token's number by its name."""
    depth = next((v for k, v in given.items() if re.fullmatch(SIZES["layers"], str(k)) and isinstance(v, int)), 0)
    by_layer = [value for value in given.values() if isinstance(value, list) and len(value) == depth > 4]
    # Numbers of layers are told from settings of layers by being all different.
    numbers = [value for value in by_layer if isinstance(value[0], int) and len(set(value)) == depth]
    # Of layers that differ one of each kind, and the first more than once if there are few.
    kinds = list(zip(*(map(str, value) for value in by_layer if value not in numbers), strict=True))
    chosen = [kinds.index(kind) for kind in dict.fromkeys(kinds)][:4]
    chosen = [0] * (blocks - len(chosen)) + chosen

    def small(name: str, value: Any) -> Any:
        if isinstance(value, list) and value in numbers:
            return list(range(len(chosen)))
        if isinstance(value, list) and value in by_layer:
            return [small(name, value[layer]) for layer in chosen]
        if isinstance(value, list):
            return [small(f"{name}{place}" if "_id" in name else name, each) for place, each in enumerate(value)]
        if isinstance(value, Mapping):
            # Other stacks are less deep than the text's, which is told from them by its depth.
            return shrunk(value, ids, 3 if re.search(r"text|llm|rope|decoder", name) else 2)
        if (name, value) == ("head_dim", None):
            return 8
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if re.search(r"_(id|ids|index)\d*$", name):
            return value if value < 64 else ids.setdefault(name, LARGEST_ID - len(ids))
        if re.fullmatch(SIZES["layers"], name):
            return len(chosen)
        if name == "num_key_value_heads" and value == given.get("num_attention_heads"):
            return 4
        return min(value, next((size for size, names in SIZES["largest"] if re.fullmatch(names, name)), value))

    return {name: small(str(name), value) for name, value in given.items() if name not in DROPPED}


def configuration(mapping: str, kind: str) -> PreTrainedConfig:
    """Make the tiny configuration of a type."""
    family = CONFIG_MAPPING[kind]
    needs = {place: value for kinds, those in NEEDS.items() if kind in kinds.split() for place, value in those.items()}
    given = shrunk(family().to_dict(), {}) if needs.pop("shrunk", True) else family().to_dict()
    for place, value in needs.items():
        inner, (*path, last) = given, place.split("/")
        for part in path:
            inner[part] = inner.get(part) or {}
            inner = inner[part]
        inner[last] = value
    decoder = {"is_decoder": True} if mapping == "causal" and kind in MAPPINGS["masked"] else {}
    return family(**{name: value for name, value in given.items() if name not in (*DROPPED, "model_type")} | decoder)


def build(mapping: str, kind: str, alone: bool) -> PreTrainedModel:
    """Build a type's tiny random model; of one of several stacks the text's `alone`, if asked."""
    name, config = MAPPINGS[mapping][kind], configuration(mapping, kind)
    family = getattr(transformers, name if isinstance(name, str) else name[0])
    parts = (part for part in vars(config).values() if isinstance(part, family.config_class))
    config = config if isinstance(config, family.config_class) else next(parts, config)
    if alone:
        config = config.get_text_config(decoder=True)
        tables = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_MAPPING)
        family = next(table[type(config)] for table in tables if type(config) in table)
    torch.manual_seed(0)
    hf, generator = family(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in (weight for weight in hf.parameters() if weight.is_floating_point()):
            size = min(0.15, 1.2 * (len(weight) / max(1, weight.numel())) ** 0.5) if weight.ndim > 1 else 0.1
            weight.add_((size * torch.randn(weight.shape, generator=generator)).to(weight.dtype))
    return hf
