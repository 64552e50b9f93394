"""The one line with which a call is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refused(error: type[Exception], message: str, call: Callable, *given: Any, **named: Any) -> str:
    """Call what raises an error with a message of one line, and return the line."""
    with pytest.raises(error, match=message or None) as caught:
        call(*given, **named)
    said = str(caught.value)
    assert said and len(said.splitlines()) == 1
    return said
