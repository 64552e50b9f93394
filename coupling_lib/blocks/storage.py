"""Storage of weights, and the copy of a block with plain, wide weights on which it is differentiated.

Jacobians are formed in float32 or wider. A block with other weights is replaced, while it is measured, by a *dense
copy*. Every storage of weights beside torch's own is in `REGISTERED`; weights that none of them reads are refused.
"""

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from coupling_lib.errors import UnsupportedModelError

# What nnsight and accelerate put in the place of a module's own `forward`; a copy runs the class's own.
_REPLACED = ("forward", "_hf_hook", "_old_forward")


class Storage:
    """A way to store weights that torch itself does not have; methods take one module at a time."""

    on_disk = False

    def weights(self, module: nn.Module) -> dict[str, int]:
        """Count the entries of a module's own weights that are stored in few bits, by name."""
        return {}

    def stores(self, module: nn.Module) -> bool:
        """Return whether a module stores weights in this way."""
        return bool(self.weights(module))

    def dense(self, module: nn.Module, dtype: torch.dtype, memo: dict[int, Any]) -> nn.Module | None:
        """Build the layer with plain weights that replaces a module in a copy; None to copy the module."""

    def fill(self, duplicate: nn.Module, block: nn.Module, dtype: torch.dtype) -> None:
        """Read weights that copying leaves out into the copy of a block."""

    def prepare(self, hf: PreTrainedModel, name: str) -> None:
        """Make a model's layers compute with their dequantised weights, or refuse the model."""


# Filled by `models.storages`.
REGISTERED: list[Storage] = []


def in_few_bits(module: nn.Module) -> bool:
    """Return whether a module holds weights of few bits."""
    return any(each.weights(part) for each in REGISTERED for part in module.modules())


def on_disk(module: nn.Module) -> bool:
    """Return whether weights of a module are on disk."""
    return any(each.stores(part) for each in REGISTERED if each.on_disk for part in module.modules())


def share_in(precision: str, module: nn.Module) -> float:
    """Return the share of a module's weights that are stored in a precision: a dtype's name, or one of few bits."""
    held = total = 0
    for part in module.modules():
        few = {name: count for each in REGISTERED for name, count in each.weights(part).items()}
        plain = [weight for name, weight in part._parameters.items() if weight is not None and name not in few]
        held += sum(few.values()) + sum(weight.numel() for weight in plain if str(weight.dtype) == f"torch.{precision}")
        total += sum(few.values()) + sum(weight.numel() for weight in plain)
    return held / max(1, total)


def arithmetic(hf: PreTrainedModel) -> torch.dtype:
    """Return the dtype in which Jacobians of a model are formed."""
    return torch.float64 if hf.dtype == torch.float64 else torch.float32


def dense_copy(block: nn.Module, dtype: torch.dtype, device: torch.device | None = None) -> nn.Module:
    """Return a block with plain, wide weights, on a device if one is named: itself if its weights are so, or a copy."""
    # The parts of a module before the module itself, whose plain layer may hold its parts' plain layers.
    parts = list(block.modules())[::-1]
    stored = [(each, part) for each in REGISTERED for part in parts if each.stores(part)]
    _refuse_unknown(block, {id(weight) for _, part in stored for weight in part.parameters()})
    if not stored and all(p.dtype == dtype and device in (None, p.device) for p in block.parameters()):
        return block
    memo: dict[int, Any] = {}
    for module in block.modules():
        memo |= {id(module.__dict__[name]): None for name in _REPLACED if name in module.__dict__}
    for each, part in stored:
        if (layer := each.dense(part, dtype, memo)) is not None:
            memo[id(part)] = layer
    duplicate = copy.deepcopy(block, memo)
    for each in dict.fromkeys(each for each, _ in stored):
        each.fill(duplicate, block, dtype)
    duplicate = nn.Module.to(duplicate, device, dtype)  # a whole model's own refuses where layers were quantised
    for module in duplicate.modules():
        for name in _REPLACED:
            module.__dict__.pop(name, None)
    return duplicate.requires_grad_(False)


def _refuse_unknown(block: nn.Module, known: set[int]) -> None:
    """Refuse weights that are not plain numbers of a tensor, unless their storage is registered."""
    for name, weight in block.named_parameters():
        narrow = weight.dtype.itemsize == 1 or hasattr(weight, "quant_state")
        if (narrow or weight.is_meta) and id(weight) not in known:
            kind = "on no device" if weight.is_meta else f"as {weight.dtype}"
            raise UnsupportedModelError(
                f"weight {name!r} of a {type(block).__name__} is stored {kind}, and nothing that was imported reads "
                "it; load it by cl.load_model, or wrap the model by cl.wrap_model"
            )
