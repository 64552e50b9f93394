"""What quantised layers stand for, in float64, and kernels to put in the place of bitsandbytes' own."""

import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from math import prod

import bitsandbytes as bnb
import numpy as np
import torch
from torch import nn

# The published tables: Dettmers et al. (2023), appendix E; and one sign, two exponent and one mantissa bit.
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
FP4 = [value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3)]
TABLES = {"nf4": NF4, "fp4": FP4 + [-value for value in FP4]}


def four_bits(layer: nn.Module) -> torch.Tensor:
    """The matrix of a 4-bit layer: entry i of the flat matrix has the scale of block i // blocksize."""
    state = layer.weight.quant_state
    i = np.arange(prod(state.shape))
    packed = layer.weight.data.cpu().view(torch.uint8).numpy().flatten()[i // 2]
    scales = state.absmax.cpu().numpy()
    if state.nested:
        within, j = state.state2, np.arange(len(scales))
        code, outer = (part.cpu().numpy().astype(float) for part in (within.code, within.absmax))
        scales = code[scales] * outer[j // within.blocksize] + float(state.offset)
    table = np.array(TABLES[state.quant_type], np.float32).astype(float)  # as it is stored
    flat = table[np.where(i % 2 == 0, packed >> 4, packed & 15)] * scales[i // state.blocksize].astype(float)
    return torch.tensor(flat).reshape(state.shape)


def eight_bits(layer: nn.Module) -> torch.Tensor:
    """The matrix of an int8 layer: one scale a row."""
    scale = layer.state.SCB if layer.state.SCB is not None else layer.weight.SCB
    return layer.weight.data.double() * scale.double()[:, None] / 127


def dense(hf: nn.Module, into: nn.Module) -> nn.Module:
    """Put the weights that the quantised layers of a model stand for into a dense one of float64."""
    for name, module in hf.named_modules():
        if isinstance(module, (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt)):
            weight = four_bits(module) if isinstance(module, bnb.nn.Linear4bit) else eight_bits(module)
            into.get_submodule(name).weight.data.copy_(weight)
    return into


def by_row(row: torch.Tensor, column: torch.Tensor, width: int, blocksize: int) -> torch.Tensor:
    """Where bitsandbytes 0.50.2 takes the scale of an entry on CPUs with AVX-512."""
    return row * (width // blocksize) + column // blocksize


def by_entry(row: torch.Tensor, column: torch.Tensor, width: int, blocksize: int) -> torch.Tensor:
    """Where the scale of an entry belongs."""
    return (row * width + column) // blocksize


def kernel_in_place(where: Callable[..., torch.Tensor]) -> AbstractContextManager[None]:
    """Put a kernel that takes its scales at given places in the place of the registered one for the CPU."""

    def dequantise(A, absmax, blocksize, quant_type, shape, dtype):
        rows, width = prod(shape[:-1]), shape[-1]
        A = A.view(torch.uint8).flatten()
        index = torch.stack([A >> 4, A & 15], dim=1).flatten()[: rows * width].long()
        values = torch.tensor(TABLES[quant_type])[index].view(rows, width)
        places = where(torch.arange(rows)[:, None], torch.arange(width), width, blocksize)
        return (values * absmax.float()[places]).view(shape).to(dtype)

    return operator_in_place("dequantize_4bit", dequantise)


@contextmanager
def operator_in_place(name: str, function: Callable) -> Generator[None]:
    """Put a function in the place of one of bitsandbytes' operators on the CPU."""
    library = torch.library.Library("bitsandbytes", "IMPL")
    with warnings.catch_warnings(action="ignore"):
        library.impl(name, function, "CPU")
    try:
        yield
    finally:
        library._destroy()
