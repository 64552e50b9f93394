"""Memory that is free inside this process, given back to the system."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

# Bytes from which results are large enough for the time to be well spent.
_LARGE = 2**25


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
    if held >= _LARGE and _glibc() is not None:
        _glibc().malloc_trim(0)


@cache
def _glibc() -> Any:
    return ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None
