"""The one line with which a call is refused."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(error: type[Exception], message: str, call: Callable, *given: Any, **named: Any) -> str:
    """Call what raises an error with a message of one line, and return the line."""
    with pytest.raises(error, match=message or None) as caught:
        call(*given, **named)
    line = str(caught.value)
    assert line and len(line.splitlines()) == 1
    return line
