"""What tests of several rooms of the library need."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_layers_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers take rows of their weights as they do in models of real size."""
    from coupling_lib.blocks import rules  # what needs no torch does not wait for it

    monkeypatch.setattr(rules, "LEAST_WEIGHTS", 1)
