"""Memory beside results: how much of it counts, and what is free inside this process given back to the system."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

# Bytes of results beside which memory is worth more than a twentieth of the time.
_LARGE = 2**25


def is_large(held: int) -> bool:
    """Tell whether results take so much memory that what is used beside them has to be kept small.

    Args:
        held: bytes of the results.

    Returns:
        whether they are 32 MiB or more.

    Example:
        >>> is_large(12 * 768 * 768 * 4), is_large(24 * 1024 * 1024 * 4)
        (False, True)
    """
    return held >= _LARGE


def give_back(held: int = _LARGE) -> None:
    """Give back memory that was freed and lies between what is in use.

    The C library keeps it for later. After many tensors of a size that no other fits into, it is as much again as
    what is in use. Only glibc can be asked to give it back; with another, nothing happens.

    Args:
        held: bytes of the results that are held meanwhile. Beside small ones there is little to gain, and nothing
            is done.

    Example:
        >>> give_back()
    """
    if is_large(held) and _glibc() is not None:
        _glibc().malloc_trim(0)


@cache
def _glibc() -> Any:
    return ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None
