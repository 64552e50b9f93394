"""Adapters of peft: layers that replace a model's own, such as y = W x + s B A x for LoRA, as parts of a block.

Methods that insert tokens of their own before the prompt change the input instead, and are refused.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from coupling_lib.blocks.model_config import random_input
from coupling_lib.errors import UnsupportedModelError, shown

CONFIG = "adapter_config.json"
# Parts of an adapter's configuration that describe its origin, not its function.
_ORIGIN = ("base_model_name_or_path", "revision", "inference_mode", "peft_version")


def refuse_folder(folder: Path) -> None:
    """Refuse a folder that holds an adapter, and name the two lines that load it on its base model."""
    if not (folder / CONFIG).is_file():
        return
    base = None
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        base = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    raise UnsupportedModelError(
        f"the folder {str(folder)!r} holds an adapter, which peft puts on a base model that fits into memory, "
        f"in two lines: base = cl.load_model({shown(base or 'path/to/base')}); "
        f"model = cl.wrap_model(peft.PeftModel.from_pretrained(base.hf, {str(folder)!r}), base.tokenizer)"
    )


def unwrap_peft(model: Any) -> Any:
    """Return the model inside a `PeftModel`; any other model unchanged."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel | peft.PeftMixedModel):
        return model
    for name, config in model.peft_config.items():
        beyond = {
            "puts tokens of its own before every prompt": config.is_prompt_learning,
            "looks for certain tokens in every prompt": getattr(config, "alora_invocation_tokens", None),
            "wants a task with every prompt": config.peft_type.value == "POLY",
        }
        for does in filter(beyond.get, beyond):
            raise UnsupportedModelError(
                f"the adapter {name!r} ({config.peft_type.value}) {does}, of which the model's layers know nothing; "
                "take one that changes layers alone, such as plain LoRA"
            )
    return model.eval().base_model.model


@torch.no_grad()
def check_output(model: nn.Module, hf: PreTrainedModel) -> None:
    """Refuse a `PeftModel` whose output differs from that of the model with its layers."""
    if model is hf:
        return
    given = {hf.main_input_name: random_input(hf, torch.Generator().manual_seed(0), n_tokens=7)}
    if not torch.equal(*(one(**given)[0] for one in (model, hf))):
        raise UnsupportedModelError(
            f"the PeftModel{names(model)} does not answer as the model with its layers does; take one that changes "
            "layers alone, such as plain LoRA"
        )


def names(hf: nn.Module) -> str:
    """Return the active adapters of a model as text, such as " with LORA 'default'"; empty if there are none."""
    configs, layers = getattr(hf, "peft_config", {}), [layer for _, layer in _layers(hf)]
    in_layers = {name for layer in layers if not layer.disable_adapters for name in layer.active_adapters}
    active = in_layers if layers else configs.keys()
    found = [f"{config.peft_type.value} {name!r}" for name, config in configs.items() if name in active]
    return f" with {' and '.join(found)}" if found else ""


def settings(hf: nn.Module) -> str:
    """Return the settings of a model's adapters, beside their weights, as text; empty if it has none."""
    layers = [
        (name, type(layer).__name__, layer.disable_adapters, layer.active_adapters, getattr(layer, "scaling", None))
        for name, layer in _layers(hf)
    ]
    if not layers:
        return ""
    configs = {name: config.to_dict() for name, config in getattr(hf, "peft_config", {}).items()}
    plain = {name: {key: part for key, part in one.items() if key not in _ORIGIN} for name, one in configs.items()}
    # The order of a set differs between processes.
    return json.dumps([layers, plain], sort_keys=True, default=lambda x: sorted(x) if isinstance(x, set) else str(x))


def _layers(hf: nn.Module) -> list[tuple[str, Any]]:
    """List the layers that peft put into a model, by name; none unless peft is imported, as its import is slow."""
    if (peft := sys.modules.get("peft.tuners.tuners_utils")) is None:
        return []
    return [(name, part) for name, part in hf.named_modules() if isinstance(part, peft.BaseTunerLayer)]
