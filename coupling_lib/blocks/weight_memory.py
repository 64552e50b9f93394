"""Memory that a model's weights need, compared before loading with the memory that is free and that is allowed."""

import copy
import math
import re

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks import packed
from coupling_lib.blocks.free_memory import available
from coupling_lib.errors import ModelUnavailableError, ParameterError, UnsupportedModelError, shown

# Bytes per weight; the scales of bitsandbytes add one float32 for every block of 64 weights in 4 bits.
_PLAIN = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_LINEAR = {"nf4": 0.5 + 4 / 64, "fp4": 0.5 + 4 / 64, "int8": 1.0}
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def skeleton(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model without its weights, on the meta device."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return model_class._from_config(copy.deepcopy(config), dtype=torch.float32)
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UnsupportedModelError(
            f"the configuration makes no {model_class.__name__} ({message}); check its values"
        ) from error


def bytes_needed(hf: PreTrainedModel) -> dict[str, int]:
    """Return the bytes that a model's weights need in each precision; a skeleton suffices."""
    # The linear layers and experts of the blocks are quantised; embeddings and the output layer stay in float32.
    total, head = sum(parameter.numel() for parameter in hf.parameters()), hf.get_output_embeddings()
    linear = sum(m.weight.numel() for m in hf.modules() if isinstance(m, nn.Linear) and m is not head)
    linear += sum(m.get_parameter(name).numel() for m in hf.modules() for name in packed.expert_stacks(m))
    need = {name: int(size * total) for name, size in _PLAIN.items()}
    return need | {name: int(size * linear + 4 * (total - linear)) for name, size in _LINEAR.items()}


def bytes_per_weight(precision: str) -> float:
    """Return the bytes that a weight of a block takes."""
    return (_PLAIN | _LINEAR)[precision]


def aligned(weight: torch.Tensor) -> torch.Tensor:
    """Copy a weight to an address that is a multiple of 64 bytes, as vector instructions need it."""
    # The summation order of matrix products depends on alignment; in a file a weight begins at any multiple of 8 bytes.
    return weight.clone() if weight.device.type == "cpu" and weight.data_ptr() % 64 else weight


def parse(budget: str | int | None) -> int | None:
    """Parse an amount of memory; None without a limit."""
    if budget is None:
        return None
    size = budget if isinstance(budget, int) and not isinstance(budget, bool) else 0
    if isinstance(budget, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", budget)):
        amount = float(found[1]) * _UNITS.get(found[2], 0)
        size = int(amount) if math.isfinite(amount) else 0
    if size <= 0:
        raise ParameterError(
            f"memory is {shown(budget)}; it must be a text such as '8GiB' or '500MB' (units: {', '.join(_UNITS)}), "
            "or a whole number of bytes"
        )
    return size


def check(need: dict[str, int], precision: str, device: torch.device, name: str, half_on_disk: int) -> None:
    """Refuse a model that does not fit, before anything large is downloaded or allocated."""
    if need[precision] <= (free := available(device)):
        return
    if fitting := [other for other in ("bfloat16", "int8", "nf4") if need[other] <= free]:
        advice = f"pass precision={fitting[0]!r} ({gb(need[fitting[0]])})"
    elif half_on_disk <= free:
        advice = f"pass precision='bfloat16', which leaves its blocks on disk ({gb(half_on_disk)})"
    else:
        advice = f"even precision='nf4' needs {gb(need['nf4'])}: choose a smaller model, or a machine with more memory"
    raise ModelUnavailableError(
        f"{name!r} needs {gb(need[precision])} in {precision}, and {gb(free)} are free on {device}; {advice}"
    )


def check_drawn(need: int, free: int, name: str) -> None:
    """Refuse a model whose fresh weights cannot be drawn even one block at a time."""
    if need > free:
        raise ModelUnavailableError(
            f"{name!r} needs {gb(need)} while its untrained weights are drawn, one block at a time in float32, and "
            f"{gb(free)} are free; choose a smaller model, or a machine with more memory"
        )


def check_offloaded(
    whole: int, offloaded: int | None, budget: int, precision: str, device: torch.device, name: str
) -> None:
    """Refuse a model that does not fit into a budget even with its blocks on disk."""
    bound = f"{name!r} needs {gb(whole)}, and memory allows {gb(budget)}"
    if offloaded is None:
        raise ParameterError(
            f"{bound}; weights are quantised while the whole model is read, so {precision} cannot stay on disk: "
            "pass precision='bfloat16', or allow more"
        )
    if offloaded > budget:
        raise ParameterError(
            f"{name!r} needs {gb(offloaded)} with its blocks on disk (everything else in {precision} and one block in "
            f"float32), and memory allows {gb(budget)}; pass memory='{offloaded // 10**6 + 1}MB' or more"
        )
    if offloaded > (free := available(device)):
        raise ModelUnavailableError(
            f"{name!r} needs {gb(offloaded)} with its blocks on disk, and {gb(free)} are free on {device}; choose a "
            "smaller model, or a machine with more memory"
        )


def gb(size: int) -> str:
    """Format a number of bytes for readers."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
