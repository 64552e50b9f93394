"""Memory beside results: how much of it counts, and what is free inside this process given back to the system."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

# Bytes of results beside which memory is worth more than a twentieth of the time.
_LARGE = 2**25


def budget(by_device: Mapping[str, int], device: str, held: int) -> int:
    """Give how many bytes intermediate tensors may take on a device, half of it beside large results."""
    return by_device.get(device, by_device["cpu"]) // (2 if held >= _LARGE else 1)


def give_back(held: int = _LARGE) -> None:
    """Give back memory that was freed and lies between what is in use."""
    # The C library keeps it for later. After many tensors of a size that no other fits into, it is as much again as
    # what is in use. Only glibc can be asked to give it back; with another, nothing happens.
    if held >= _LARGE and _glibc() is not None:
        _glibc().malloc_trim(0)


@cache
def _glibc() -> Any:
    return ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None
