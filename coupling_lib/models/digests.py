"""What a model computes with beside its configuration and the weights of its files, as text and as a digest."""

import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks.makeup import settings


def description(hf: nn.Module) -> str:
    """Write the kinds and settings of a model's modules, functions by their names, the same in every process."""
    parts = ((name, part) for name, part in hf.named_modules() if not isinstance(part, PreTrainedModel))
    return repr([(name, type(part).__qualname__, [*map(_written, settings(part))]) for name, part in parts])


def as_made(hf: nn.Module) -> str:
    """Hash what no file of a model holds: its description, and buffers that it computes, such as rotary tables."""
    found, total = dict(hf.named_buffers()), hashlib.sha256(description(hf).encode())
    for name in sorted(found.keys() - hf.state_dict().keys()):
        total.update(name.encode())
        total.update(as_bytes(found[name]))
    return total.hexdigest()


def as_bytes(tensor: Tensor) -> np.ndarray:
    """View the bytes of a tensor, copying them only from another device or layout; none of one without values."""
    values = tensor.new_empty(0, device="cpu") if tensor.is_meta else tensor.detach().cpu()
    return values.contiguous().reshape(-1).view(torch.uint8).numpy()


def _written(setting: tuple[str, object]) -> tuple[str, str]:
    name, value = setting
    return name, getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else repr(value)
