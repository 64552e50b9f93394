"""What is checked when a model is loaded whose blocks stay on disk: few of them are read, and no fault passes."""

import pytest
import tiny
import torch
from reference import brute_force_jacobian, relative_error
from refusals import refused
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

import coupling_lib as cl
from coupling_lib.blocks import offload, placing
from coupling_lib.blocks import validate as checks
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError, UntrustworthyResultError


def deep(**changes) -> torch.nn.Module:
    """Eight blocks of one kind."""
    return tiny.llama(num_hidden_layers=8, **changes)


def spoilt_at(number: int) -> torch.nn.Module:
    """The same, with a weight of one block that is no number."""
    hf = deep()
    with torch.no_grad():
        hf.model.layers[number].mlp.up_proj.weight[0, 0] = float("nan")
    return hf


def on_disk(hf, folder):
    """A model that was saved, loaded with its blocks on disk."""
    hf.save_pretrained(folder)
    return cl.load_model(folder, memory=placing.plan(hf).bytes(torch.float32))


def test_only_compared_blocks_are_read_from_disk(tmp_path, monkeypatch):
    read, one = [], offload.StoredWeights.__getitem__
    monkeypatch.setattr(
        offload.StoredWeights,
        "__getitem__",
        lambda stored, name: read.append(stored._entries[name]["weight_name"]) or one(stored, name),
    )
    model = on_disk(deep(), tmp_path)
    assert model.offloaded and model.blocks.routes == ("attention",) * 8
    counts = [read.count(f"model.layers.{number}.mlp.up_proj.weight") for number in range(8)]
    assert counts == [3, 0, 0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(("wrong", "message"), [(0, "hold 1 NaN"), (4, "hold 1 NaN"), (7, "hold 1 NaN"), (3, "")])
def test_nan_weights_on_disk_are_refused(tmp_path, wrong, message):
    if message:
        with pytest.raises(ModelUnavailableError, match=f"layers.{wrong}.mlp.up_proj.weight {message}"):
            on_disk(spoilt_at(wrong), tmp_path)
        return
    model = on_disk(spoilt_at(wrong), tmp_path)
    with pytest.raises(UntrustworthyResultError, match="holds NaN or infinite values after block 4; look for such w"):
        cl.trace(model, torch.arange(3, 12)[None])


class Fed(LlamaDecoderLayer):
    """A block that is not given what the block before it wrote."""

    def __call__(self, x, *args, **kwargs):
        return super().__call__(x + 1.0, *args, **kwargs)


@pytest.mark.parametrize("wrong", [0, 3])
def test_change_between_two_blocks_is_refused(tmp_path, wrong):
    model = on_disk(deep(), tmp_path)
    model.hf.model.layers[wrong + 1].__class__ = Fed
    message = f"block {wrong + 2} of LlamaForCausalLM .* does not read what block {wrong + 1} wrote"
    refused(UnsupportedModelError, message, cl.trace, model, torch.arange(3, 12)[None])
    refused(UnsupportedModelError, message, checks.validate, model.hf)


def test_hooks_on_offloaded_blocks_are_differentiated(tmp_path):
    def shifted(module, args, kwargs):
        return (args[0] + args[0].tanh(), *args[1:]), kwargs

    whole = cl.wrap_model(deep())
    model = on_disk(deep(), tmp_path)
    found = []
    for each in (whole, model):
        each.hf.model.layers[1].register_forward_pre_hook(shifted, with_kwargs=True)
        found.append(cl.trace(each, torch.arange(3, 12)[None]).jacobian(1).dense())
    wanted = brute_force_jacobian(whole.hf, whole.hf.model.layers[1], {"input_ids": torch.arange(3, 12)[None]}, 8, 8)
    assert torch.equal(*found) and relative_error(found[0], wanted) < 1e-5
    model = on_disk(deep(attention_dropout=0.5), tmp_path / "dropout")
    refused(UnsupportedModelError, "block 1 .* two answers in two runs", checks.validate, model.hf.train())


@pytest.mark.parametrize("wrong", [0, 4, 7])
def test_offloaded_block_that_mixes_tokens_takes_sequence_route(tmp_path, wrong, monkeypatch):
    plain = LlamaMLP.forward

    def mixing(module, x):
        mixed = getattr(module, "number", None) == wrong
        return plain(module, x + mixed * x.mean(dim=1, keepdim=True))

    monkeypatch.setattr(LlamaMLP, "forward", mixing)
    model = on_disk(deep(), tmp_path)
    for number, block in enumerate(model.blocks.modules):
        block.mlp.number = number  # by this name it makes no kind of its own
    routes = checks.validate(model.hf).routes
    assert routes == tuple("sequence" if number == wrong else "attention" for number in range(8))
