"""Adapters of peft: a few weights beside a model's own, which change what its layers compute.

peft puts a layer of its own into the place of one of the model's, such as y = W x + s B A x for LoRA, around the layer
that was there. It is a part of the block like any other, so that the block's Jacobian is that of the adapted model.
Methods that put tokens of their own before the prompt change the input instead, and are refused.
"""

import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from coupling_lib.blocks import offload
from coupling_lib.blocks.record import random_input
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError, needed, shown

CONFIG, _WEIGHTS, _PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
# Methods whose files are read: their weights say all, and nothing in their configuration names another file.
_READ = ("LORA", "IA3")
# The first has peft import a module that the file names; the second lets an adapter answer after certain tokens alone.
_NOT_READ = ("megatron_config", "alora_invocation_tokens")
# Parts of an adapter's configuration that say where it comes from, not what it computes.
_ORIGIN = ("base_model_name_or_path", "revision", "inference_mode", "peft_version")


@dataclass(frozen=True)
class Adapter:
    """The files of an adapter, and the model that it belongs to."""

    folder: Path
    method: str
    base: str
    revision: str | None

    def put_on(self, hf: PreTrainedModel, name: str) -> None:
        """Put the adapter's layers into a model, with every weight of the file in its place, or refuse it."""
        peft = needed("peft", "adapters", f"the adapter {name!r}")
        if offload.is_offloaded(hf):
            raise ModelUnavailableError(
                f"the blocks of {self.base!r} stay on disk, where no adapter can be put on them; give more memory or a "
                f"narrower precision, or merge {name!r} into them with peft and load the result"
            )
        misfit = f"the adapter in {str(self.folder)!r} does not fit its base model {self.base!r}"
        try:
            # Not `PeftModel.from_pretrained`, which draws what is missing at random and leaves out what is over. What
            # peft warns of is how to train.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                config = peft.PeftConfig.from_pretrained(str(self.folder))
                mapping = getattr(hf, "_checkpoint_conversion_mapping", {})
                left = peft.PeftModel(hf, config).load_adapter(
                    str(self.folder), "default", torch_device=str(hf.device), key_mapping=mapping
                )
        except SafetensorError as error:
            said = f"{_WEIGHTS} of {name!r} is damaged or truncated ({error}); fetch it again"
            raise ModelUnavailableError(said) from error
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            said = f"{misfit} ({shown(str(error), 300)}); name another base in its {CONFIG}"
            raise UnsupportedModelError(said) from error
        for keys, what in ((left.missing_keys, "lacks"), (left.unexpected_keys, "has no place for")):
            if keys:
                said = f"{misfit}: it {what} {len(keys)} of the tensors ({min(keys)}, ...); take both from one source"
                raise UnsupportedModelError(said)


def read(folder: Path) -> Adapter | None:
    """Read what a folder's adapter is of; None where it holds none."""
    if not (folder / CONFIG).is_file():
        return None
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        method, base, revision = (config.get(key) for key in ("peft_type", "base_model_name_or_path", "revision"))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelUnavailableError(f"{CONFIG} in {str(folder)!r} is damaged; fetch it again") from error
    said = f"the adapter in {str(folder)!r}"
    further = next((key for key in _NOT_READ if config.get(key)), None)
    if method not in _READ or further:
        method = f"{method} with {further}" if method in _READ else shown(method)
        raise UnsupportedModelError(
            f"{said} is of the type {method}; {' and '.join(_READ)} are read: merge another into its model, or put it "
            "on with peft and pass that to cl.wrap_model"
        )
    if not isinstance(base, str) or not base.strip():
        raise ModelUnavailableError(
            f"{said} does not say which model it is of; write base_model_name_or_path in its {CONFIG}: a folder, an "
            "alias or a Hugging Face id"
        )
    if not (folder / _WEIGHTS).is_file():
        danger = f"only pickled weights ({_PICKLED}), which can run code when they are opened; convert them to"
        raise ModelUnavailableError(f"{said} has {danger if (folder / _PICKLED).is_file() else 'no'} {_WEIGHTS}")
    return Adapter(folder, method, base, revision if isinstance(revision, str) and revision else None)


def unwrapped(model: Any) -> Any:
    """Return the model that carries the layers of a `PeftModel`; anything else as it is."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel | peft.PeftMixedModel):
        return model
    for name, config in model.peft_config.items():
        if (does := _beyond_layers(config)) is not None:
            raise UnsupportedModelError(
                f"the adapter {name!r} ({config.peft_type.value}) {does}, of which the model's layers know nothing; "
                "take one that changes layers alone, such as plain LoRA"
            )
    return model.eval().base_model.model


@torch.no_grad()
def check_answer(model: nn.Module, hf: PreTrainedModel) -> None:
    """Refuse a `PeftModel` that does more in a forward pass than the layers it has put into a model do."""
    if model is hf:
        return
    given = {hf.main_input_name: random_input(hf, torch.Generator().manual_seed(0), n_tokens=7)}
    if not torch.equal(*(one(**given)[0] for one in (model, hf))):
        raise UnsupportedModelError(
            f"the PeftModel{named(model)} does not answer as the model with its layers does; take one that changes "
            "layers alone, such as plain LoRA"
        )


def named(hf: nn.Module) -> str:
    """Return the active adapters of a model, such as " with LORA 'default'"; empty where none does."""
    configs, layers = getattr(hf, "peft_config", {}), [layer for _, layer in _layers(hf)]
    active = {name for layer in layers if not layer.disable_adapters for name in layer.active_adapters}
    active = active if layers else set(configs)
    said = [f"{config.peft_type.value} {name!r}" for name, config in configs.items() if name in active]
    return f" with {' and '.join(said)}" if said else ""


def settings(hf: nn.Module) -> str:
    """Write what a model's adapters compute by, beside their weights; empty where it has none."""
    layers = [
        (name, type(layer).__name__, layer.disable_adapters, layer.active_adapters, getattr(layer, "scaling", None))
        for name, layer in _layers(hf)
    ]
    if not layers:
        return ""
    configs = {name: config.to_dict() for name, config in getattr(hf, "peft_config", {}).items()}
    plain = {name: {key: part for key, part in one.items() if key not in _ORIGIN} for name, one in configs.items()}
    # A set has another order in another process.
    return json.dumps([layers, plain], sort_keys=True, default=lambda x: sorted(x) if isinstance(x, set) else str(x))


def _beyond_layers(config: Any) -> str | None:
    """Return what an adapter does beside changing layers; None if that is all."""
    if config.is_prompt_learning:
        return "puts tokens of its own before every prompt"
    if getattr(config, "alora_invocation_tokens", None):
        return "looks for certain tokens in every prompt"
    return "wants a task with every prompt" if config.peft_type.value == "POLY" else None


def _layers(hf: nn.Module) -> list[tuple[str, Any]]:
    """List the layers that peft put into a model, by name; none where nothing has loaded it, for it takes a while."""
    if (peft := sys.modules.get("peft.tuners.tuners_utils")) is None:
        return []
    return [(name, part) for name, part in hf.named_modules() if isinstance(part, peft.BaseTunerLayer)]
