"""What tests of several rooms of the library need."""

import pytest

import coupling_lib as cl


@pytest.fixture(scope="module")
def model():
    """A trained model, for files that have none of their own."""
    return cl.load_model("nano-neox")


@pytest.fixture
def small_layers_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers take rows of their weights as they do in models of real size."""
    from coupling_lib.blocks import rules  # what needs no torch does not wait for it

    monkeypatch.setattr(rules, "LEAST_WEIGHTS", 1)
