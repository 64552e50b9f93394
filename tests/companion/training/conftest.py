"""What tests of trainings share: the digits, and a training that is killed."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from coupling_lib.inputs.labelled_images import LabelledImages, read_dataset


@pytest.fixture(scope="session")
def data() -> LabelledImages:
    return read_dataset("digits")


@pytest.fixture
def killed_at(monkeypatch) -> Callable[..., list]:
    """Interrupts a function at one of its calls; the list that it gives has what each call was about."""

    def interrupt(call: int, module: ModuleType, name: str, about: Callable[..., Any]) -> list:
        seen, whole = [], getattr(module, name)

        def interrupted(*given: Any) -> Any:
            seen.append(about(*given))
            if len(seen) == call:
                raise KeyboardInterrupt
            return whole(*given)

        monkeypatch.setattr(module, name, interrupted)
        return seen

    return interrupt
