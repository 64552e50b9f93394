"""Weights that are no numbers are named for what they are, when a model is loaded."""

from __future__ import annotations

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from coupling_lib.blocks import finite, offload, precision
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.models.load import load_model, wrap_model

UP = "model.layers.1.mlp.up_proj.weight"


def spoilt(folder, **bad: list[float]):
    """A saved Llama with some entries of some weights replaced."""
    tiny.save_llama(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name, values in bad.items():
        weights[name].view(-1)[: len(values)] = torch.tensor(values)
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "nf4"])
def test_weights_that_are_nan_are_named_at_load_in_one_line(tmp_path, stored):
    folder = spoilt(tmp_path / "m", **{UP: [float("nan")] * 3})
    with pytest.raises(ModelUnavailableError) as caught:
        load_model(folder, precision=stored)
    if stored != "nf4":  # a quantised group of 64 has one scale, and shares its NaN
        assert str(caught.value) == (
            f"model {str(folder)!r}: weights {UP} hold 3 NaN of 2,048 entries; "
            "fetch it again or choose another revision"
        )
    assert f"weights {UP} hold" in str(caught.value) and "NaN of 2,048 entries" in str(caught.value)


def test_infinite_weights_are_named_and_further_tensors_counted(tmp_path):
    bad = {"model.embed_tokens.weight": [float("inf")] * 9000, UP: [float("nan"), float("-inf")]}
    with pytest.raises(ModelUnavailableError) as caught:
        load_model(spoilt(tmp_path / "m", **{name: values[:8960] for name, values in bad.items()}))
    assert "weights model.embed_tokens.weight hold 8,960 infinite of 8,960 entries (and " in str(caught.value)
    assert "other tensors are not finite); fetch it again" in str(caught.value)


def test_both_kinds_are_counted_in_a_model_from_memory():
    hf = tiny.llama()
    with torch.no_grad():
        hf.model.layers[1].mlp.up_proj.weight[0, :2] = torch.tensor([float("nan"), float("-inf")])
    with pytest.raises(ModelUnavailableError, match=f"'mine': weights {UP} hold 1 NaN and 1 infinite of 2,048 entries"):
        wrap_model(hf, name="mine")


def test_blocks_that_stay_on_disk_are_looked_at_one_by_one(tmp_path):
    folder = spoilt(tmp_path / "m", **{UP: [float("nan")]})
    hf = tiny.llama()
    least = offload.plan(type(hf), hf.config).bytes(torch.float32)
    with pytest.raises(ModelUnavailableError, match=f"weights {UP} hold 1 NaN of 2,048 entries"):
        load_model(folder, memory=least)


def test_finite_weights_that_overflow_are_told_apart():
    hf = tiny.llama()
    with torch.no_grad():
        hf.model.layers[1].mlp.up_proj.weight.fill_(3e38)
        hf.model.layers[1].mlp.down_proj.weight.fill_(3e38)
    with pytest.raises(
        UnsupportedModelError, match="block 2 gives values that are not finite, and all weights are finite"
    ):
        wrap_model(hf, name="mine")


def test_weights_of_a_sound_model_are_not_read(monkeypatch):
    monkeypatch.setattr(finite, "_weights", lambda *arguments: pytest.fail("weights were read"))
    assert precision.arithmetic(wrap_model(tiny.llama()).hf) == torch.float32
