"""Networks that are no transformers models: a GPT in plain PyTorch, and models of nnsight."""

import copy

import numpy as np
import pytest
import torch
from nnsight import TransformersModel
from plain_gpt import GPT
from reference import relative_error
from refusals import refused
from torch import nn
from torch.autograd.functional import jacobian
from torch.utils.checkpoint import checkpoint

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UnsupportedModelError

IDS = torch.tensor([[5, 17, 3, 40, 64, 0, 22, 9]])


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    made = GPT()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def branch(block, x, token_in, token_out):
    """What a block adds to one token, as a function of the state of another."""

    def added(row):
        moved = torch.cat([x[:token_in], row[None], x[token_in + 1 :]])[None]
        return (block(moved) - moved)[0, token_out]

    return added


@pytest.mark.parametrize(("token_in", "token_out"), [(7, 7), (2, 2), (1, 6)])
def test_jacobians_of_a_plain_gpt_are_exact(gpt, token_in, token_out):
    trace, parts = cl.trace(cl.wrap_model(gpt, blocks="transformer.h"), IDS), copy.deepcopy(gpt).double().transformer
    x = (parts["wte"](IDS) + parts["wpe"](torch.arange(IDS.shape[1]))).detach()
    for number, block in enumerate(parts["h"]):
        np.testing.assert_allclose(trace.hidden[number], x[0], atol=1e-5)
        added, row = branch(block, x[0], token_in, token_out), x[0, token_in]
        found = trace.jacobian(number, token_in, token_out).dense().double()
        assert relative_error(found, jacobian(added, row)) < 2e-6
        step = 1e-5 * torch.randn(row.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        ends = added(row + step) - added(row - step)
        torch.testing.assert_close(found @ step, ends / 2, rtol=1e-4, atol=1e-4 * float(ends.norm()))
        x = block(x).detach()
    np.testing.assert_allclose(trace.hidden[-1], x[0], atol=1e-5)


def test_plain_networks_and_nnsight_models_are_measured(gpt):
    gpt.train()
    model = cl.wrap_model(gpt, blocks="transformer.h", name="mine")
    assert (model.name, model.n_blocks, model.d_model, model.precision) == ("mine", 3, 24, "float32")
    assert model.blocks.modules is gpt.transformer["h"] and not gpt.training
    depth, whole = cl.measure_depth(model, [IDS], ks=(5,)), cl.trace(model, IDS)
    one = 1 - float(depth.normalized_miscoupling.sel(k=5).isel(prompt=0, block_1=0, block_2=2))
    found = cl.coupling(*(whole.jacobian(block).dense() for block in (0, 2)), k=5).coupling
    assert found == pytest.approx(one, abs=1e-5)
    behind_norm = whole.jacobian(2, boundary="hidden_states")
    refused(UnsupportedModelError, "GPT is no transformers model and has no hidden_states", behind_norm.dense)
    path = cl.measure_trajectories(model, [IDS])  # whose readings behind the final norm are left out
    assert float(path.line_shape_score[0]) == pytest.approx(float(cl.line_shape_score(whole.hidden[:, -1])), abs=1e-6)
    plain = cl.load_model("nano-neox")
    model = cl.wrap_model(TransformersModel(plain.hf, tokenizer=plain.tokenizer, task="text-generation"))
    found, expected = (cl.trace(one, "It was the best of times").jacobian(4).dense() for one in (model, plain))
    assert torch.equal(found, expected) and model.tokenizer is plain.tokenizer
    model = cl.wrap_model(plain.hf, blocks="gpt_neox.layers")
    assert model.blocks.path == "gpt_neox.layers" and model.n_blocks == 12


def with_blocks(module: nn.Module) -> nn.Module:
    """A module that runs none of its blocks."""
    module.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    return module


class _Block(nn.Module):
    """A block that makes its output in a way of its own."""

    def __init__(self, way, number):
        super().__init__()
        self.way, self.layer_idx = way, number
        self.inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return self.way(self, x)


WAYS = {
    "no derivative in the second": lambda block, x: x + block.inner(x.detach() if block.layer_idx == 1 else x),
    "casts": lambda block, x: x + block.inner(x.bfloat16()).float(),
    "writes over its stream": lambda block, x: x.add_(block.inner(x)),
    "checkpoints": lambda block, x: x + checkpoint(block.inner, x, use_reentrant=False),
}


def net(way: str, blocks: int = 1, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    blocks = [_Block(WAYS[way], number).to(dtype) for number in range(blocks)]
    return nn.Sequential(nn.Embedding(9, 8), nn.Sequential(*blocks))


UNNAMED = "no transformers model; name the list of its blocks, such as blocks='transformer.h'"
OVER = r"block 1 of .* two runs; is it in training mode, or does it write over .* \(x \+="
CASTS = r"block 1 of .* does not run in torch.float32, take out casts: .*dtype"
WRONG, UNSUPPORTED = ParameterError, UnsupportedModelError


@pytest.mark.parametrize(
    ("made", "path", "error", "message"),
    [
        (GPT(), None, WRONG, UNNAMED),
        (GPT(), "h", WRONG, "blocks is 'h', where GPT has no list of blocks; its lists are 'transformer.h'"),
        (GPT(), 3, WRONG, "blocks is 3, where GPT has no list of blocks"),
        (nn.Linear(2, 2), "h", WRONG, "Linear has no list of blocks; it has no list of modules"),
        (with_blocks(nn.Embedding(9, 8)), "blocks", UNSUPPORTED, "does not run the blocks named; what reads token ids"),
        (with_blocks(nn.Linear(7, 8)), "blocks", UNSUPPORTED, "does not run on 7 token ids alone, .*wrap what does"),
        (net("casts", dtype=torch.bfloat16), "1", UNSUPPORTED, CASTS),
        (net("writes over its stream"), "1", UNSUPPORTED, OVER),
        (net("no derivative in the second", blocks=5), "1", UNSUPPORTED, "block 2 .*: autograd's derivative is not"),
        ("gpt2", "h", WRONG, "hf_model is a str; a transformers model or nn.Module was expected"),
    ],
)
def test_networks_without_suitable_blocks_are_refused(made, path, error, message):
    refused(error, message, cl.wrap_model, made, blocks=path)


def test_checkpointed_block_is_refused_in_one_line():
    J = cl.trace(cl.wrap_model(net("checkpoints"), blocks="1"), IDS % 9).jacobian(0)
    for use in (J.dense, lambda: J @ torch.ones(8), lambda: J.svd(2)):
        refused(UnsupportedModelError, "under torch.utils.checkpoint, .*; switch checkpointing off", use)


class _Causal(nn.TransformerEncoder):
    """A stack of torch's own layers, whose fast path for inference rounds otherwise, with a mask."""

    def forward(self, x):
        return super().forward(x, mask=triangle(x.shape[1]))


def triangle(n: int) -> torch.Tensor:
    return torch.full((n, n), -torch.inf).triu(1)


@pytest.mark.parametrize("stack", [nn.TransformerEncoder, _Causal])
def test_encoder_layers_of_torch_are_measured(stack):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    net = nn.Sequential(nn.Embedding(9, 8), stack(layer, 2, enable_nested_tensor=False))
    trace = cl.trace(cl.wrap_model(net, blocks="1.layers"), IDS % 9)
    x, layer = trace.hidden[1].double(), copy.deepcopy(net[1].layers[1]).double()
    mask = triangle(len(x)).double() if stack is _Causal else None
    wanted = jacobian(branch(lambda moved: layer(moved, mask), x, 4, 6), x[4])
    assert relative_error(trace.jacobian(1, 4, 6).dense(), wanted) < 1e-5 and torch.backends.mha.get_fastpath_enabled()
