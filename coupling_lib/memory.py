"""Whether a model fits: what its weights need in each precision against what is free, asked before loading."""

from __future__ import annotations

import copy
from pathlib import Path

import psutil
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.errors import ModelUnavailableError

# Bytes per weight; the scales of bitsandbytes add one float32 for every block of 64 weights in 4 bits.
_PLAIN = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_LINEAR = {"nf4": 0.5 + 4 / 64, "fp4": 0.5 + 4 / 64, "int8": 1.0}
_CGROUP = Path("/sys/fs/cgroup")


def skeleton(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model without its weights.

    Args:
        model_class: class of the model.
        config: its configuration.

    Returns:
        the model, its parameters on the meta device.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return model_class._from_config(copy.deepcopy(config), dtype=torch.float32)


def needed(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> dict[str, int]:
    """Compute what the weights of a model need, without making them.

    bitsandbytes quantises the linear layers of the blocks; embeddings and the output layer stay in float32.

    Args:
        model_class: class of the model.
        config: its configuration.

    Returns:
        bytes by precision.
    """
    hf = skeleton(model_class, config)
    total = sum(parameter.numel() for parameter in hf.parameters())
    head = hf.get_output_embeddings()
    linear = sum(m.weight.numel() for m in hf.modules() if isinstance(m, nn.Linear) and m is not head)
    need = {name: int(size * total) for name, size in _PLAIN.items()}
    return need | {name: int(size * linear + 4 * (total - linear)) for name, size in _LINEAR.items()}


def available(device: torch.device) -> int:
    """Measure the memory that is free on a device.

    Args:
        device: a CPU or a CUDA device.

    Returns:
        bytes; on a CPU never more than what the process's control group still allows, as in a batch job.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        # Cached file pages count as used but are given back when memory runs short.
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        used = int((_CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
    except (OSError, ValueError, KeyError):
        return free
    return max(0, min(free, limit - used))


def check(need: dict[str, int], precision: str, device: torch.device, name: str, *, untrained: bool) -> None:
    """Refuse a model that does not fit, before anything large is downloaded or made.

    Args:
        need: bytes by precision, from `needed`.
        precision: the precision asked for.
        device: where the weights are to lie.
        name: what the user called the model.
        untrained: whether the weights are made afresh, in float32 on the CPU whatever the precision.

    Raises:
        ModelUnavailableError: if too little memory is free; the message names the precisions that fit.
    """
    if untrained and need["float32"] > (free := available(torch.device("cpu"))):
        raise ModelUnavailableError(
            f"{name!r} needs {_gb(need['float32'])} while its untrained weights are made in float32, and {_gb(free)} "
            "are free; choose a smaller model, or a machine with more memory"
        )
    if need[precision] <= (free := available(device)):
        return
    fitting = [other for other in ("bfloat16", "int8", "nf4") if need[other] <= free]
    advice = (
        f"pass precision={fitting[0]!r} ({_gb(need[fitting[0]])})"
        if fitting
        else f"even precision='nf4' needs {_gb(need['nf4'])}: choose a smaller model, or a machine with more memory"
    )
    raise ModelUnavailableError(
        f"{name!r} needs {_gb(need[precision])} in {precision}, and {_gb(free)} are free on {device}; {advice}"
    )


def _gb(size: int) -> str:
    """Write a size for readers."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
