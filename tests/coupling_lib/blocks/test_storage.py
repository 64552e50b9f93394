"""Ways to store weights: what is registered is copied as it says, and what nothing knows is refused."""

import pytest
import tiny
import torch
from refusals import refused
from torch import nn

import coupling_lib as cl
from coupling_lib.blocks import storage
from coupling_lib.errors import ParameterError, UnsupportedModelError, UntrustworthyResultError
from coupling_lib.jacobian import tracing
from coupling_lib.models import wrap

IDS = torch.arange(3, 12)[None]


class Halved(storage.Storage):
    """Linear layers that hold twice their weights, as bytes."""

    def weights(self, module: nn.Module) -> dict[str, int]:
        return {"weight": module.weight.numel()} if isinstance(module, nn.Linear) else {}

    def dense(self, module, dtype, memo):
        made = nn.Linear(module.in_features, module.out_features, bias=False)
        made.weight = nn.Parameter(module.weight.to(dtype) / 2, requires_grad=False)
        return made


def in_bytes() -> nn.Sequential:
    layer = nn.Linear(3, 2, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[2, 4, 6], [8, 10, 12]], dtype=torch.uint8), requires_grad=False)
    return nn.Sequential(layer, nn.LayerNorm(2))


@pytest.mark.parametrize(("block", "kind"), [(in_bytes(), "as torch.uint8"), (nn.Linear(2, 2, device="meta"), "on no")])
def test_weights_of_unknown_storage_are_refused(monkeypatch, block, kind):
    monkeypatch.setattr(storage, "REGISTERED", [])
    message = f"is stored {kind}.* wrap the model by cl.wrap_model"
    refused(UnsupportedModelError, message, storage.dense_copy, block, torch.float32)


def test_registered_storage_builds_dense_layers(monkeypatch):
    monkeypatch.setattr(storage, "REGISTERED", [Halved()])
    block = in_bytes()
    copy = storage.dense_copy(block, torch.float64)
    assert copy[0].weight.tolist() == [[1, 2, 3], [4, 5, 6]] and copy[1].weight.dtype == torch.float64
    assert storage.in_few_bits(block) and not storage.on_disk(block)
    assert storage.share_in("uint8", block) == 6 / 10 and block[0].weight.dtype == torch.uint8


def test_dense_block_is_copied_for_another_dtype_only():
    block = nn.Sequential(nn.Linear(3, 2))
    assert storage.dense_copy(block, torch.float32) is block
    copy = storage.dense_copy(block, torch.float64)
    assert copy is not block and storage.dense_copy(copy, torch.float64) is copy


def test_core_trace_takes_token_ids_only(monkeypatch):
    model = cl.wrap_model(hf := tiny.llama())
    refused(ParameterError, "the input is a str; give a tensor of input_ids", tracing.trace, model, "a text")
    wanted = cl.trace(model, IDS).jacobian(1).dense()
    with monkeypatch.context() as patch:
        patch.setattr(storage, "REGISTERED", [])
        assert torch.equal(tracing.trace(wrap.wrap_model(hf), IDS).jacobian(1).dense(), wanted)
    object.__setattr__(model, "recheck", None)
    hf.model.layers[1].mlp.register_forward_hook(lambda _, __, y: 2 * y)
    message = "blocks were changed since they were checked; wrap it again"
    refused(UntrustworthyResultError, message, tracing.trace, model, IDS)
