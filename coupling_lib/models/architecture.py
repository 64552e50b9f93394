"""Choice of the model class for a configuration, from transformers' own tables and never from remote code."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
)

from coupling_lib.blocks import weight_memory
from coupling_lib.blocks.find import find_blocks
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError, shown
from coupling_lib.models import dequantised
from coupling_lib.models.wrap import refuse_two_stacks

# More blocks than any model has: even without their weights they would exhaust the memory.
_MOST_BLOCKS = 10_000


def read_config(folder: Path, name: str) -> PreTrainedConfig:
    """Read a model's configuration."""
    file = f"config.json of {name!r}"
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = raw.get("model_type")
    except FileNotFoundError:
        raise ModelUnavailableError(f"{name!r} has no config.json; choose a model in the transformers format") from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelUnavailableError(f"{file} is damaged; fetch it again") from error
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING_NAMES:
        raise _unknown(name, f"the model type {model_type!r}", "auto_map" in raw)
    if (given := dequantised.find(raw)) and not isinstance(given, dict):
        how = f"its weights are quantised already ({shown(given)}), and not how"
        raise UnsupportedModelError(f"{file} says that {how}; check its values")
    try:
        config = dequantised.strip(AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True))
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(f"{file} is not understood ({message}); check its values") from error
    if (depth := getattr(config.get_text_config(), "num_hidden_layers", None) or 0) > _MOST_BLOCKS:
        depths = f"it has {depth:,} blocks, and at most {_MOST_BLOCKS:,} can be measured"
        raise UnsupportedModelError(f"{file} says that {depths}; check its values")
    if getattr(config, "is_encoder_decoder", False):
        refuse_two_stacks(weight_memory.skeleton(model_class(config, name), config), name)
    return config


def refuse_other_shapes(mismatched: Iterable[tuple], name: str) -> None:
    """Refuse weights whose shapes differ from the configuration's."""
    for key, *shapes in sorted(mismatched, key=lambda found: found[0]):
        stored, asked = (" x ".join(map(str, shape)) for shape in shapes)
        apart = f"the weights in {name!r} and their configuration do not belong together"
        raise UnsupportedModelError(f"{apart}: {key} is {stored}, and config.json asks for {asked}")


def refuse_further_blocks(hf: PreTrainedModel, unused: Iterable[str], name: str) -> None:
    """Refuse weights of more blocks than the configuration states, which transformers would silently leave out."""
    blocks = find_blocks(hf)
    numbers = (re.search(rf"(?:^|\.){blocks.path.rpartition('.')[2]}\.(\d+)\.", key) for key in unused)
    stored = 1 + max((int(found[1]) for found in numbers if found), default=-1)
    # Layers that predict further tokens in training are stored as further blocks, and are not part of the model.
    if stored > len(blocks) + (getattr(hf.config, "num_nextn_predict_layers", None) or 0):
        differing = f"says {len(blocks)} blocks, and the weights are of {stored}"
        raise ModelUnavailableError(f"config.json of {name!r} {differing}; take both from one source")


def model_class(config: PreTrainedConfig, name: str) -> type[PreTrainedModel]:
    """Return the model class of a configuration."""
    # The class that the configuration names comes first, so that every stored weight has its place: an encoder keeps
    # its head. Where it names none, an encoder differs from a decoder by having a masked-language-model class.
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
        raise _unknown(name, f"the architecture {named!r}", bool(remote))
    return found


def _unknown(name: str, what: str, remote: bool) -> UnsupportedModelError:
    """Return the error for a model that transformers cannot evaluate by itself."""
    lack = f"transformers {transformers.__version__} has no such model"
    reason = "it needs remote code, which is never run" if remote else lack
    return UnsupportedModelError(f"{name!r} has {what}: {reason}; choose a model that transformers supports itself")
