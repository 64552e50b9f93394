"""Memory beside results: budgets of intermediate tensors, and release of freed memory to the system."""

import ctypes
import platform
import re
from collections.abc import Mapping

import torch

# Size of results in bytes from which memory is worth a twentieth of the time.
_LARGE = 2**25
# Only glibc can be asked to release freed memory; other C libraries are left alone.
_GLIBC = ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None


def budget(by_device: Mapping[str, int], device: str, held: int) -> int:
    """Return the bytes that intermediate tensors may take on a device, half as many beside large results."""
    return by_device.get(device, by_device["cpu"]) // (2 if held >= _LARGE else 1)


def ran_out(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the CPU or on a GPU."""
    pattern = r"not enough memory|can(no|')t allocate memory|out of memory"
    typed = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return typed or re.search(pattern, str(error), re.IGNORECASE) is not None


def give_back(held: int = _LARGE) -> None:
    """Release freed memory between allocations to the system."""
    # The C library keeps it for later. After many tensors of a size that no other fits into, it is as much again as the
    # memory in use.
    if held >= _LARGE and _GLIBC is not None:
        _GLIBC.malloc_trim(0)
