"""Rules of differentiation against autograd: rows read off instead of multiplied out, and activations' kept slopes."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

import coupling_lib as cl
from coupling_lib.blocks import rules
from coupling_lib.blocks.rules import linearised, picking_rows

pytestmark = pytest.mark.usefixtures("small_layers_count_as_large")
LAYERS = {"Linear": lambda: nn.Linear(6, 5), "Conv1D": lambda: Conv1D(5, 6)}
UNITS = torch.eye(5)
COTANGENTS = {
    "unit vectors in order": UNITS,
    "some of them": UNITS[1:4],
    "in another order": UNITS[[3, 0, 4]],
    "scaled": UNITS * torch.tensor([2.0, -1.0, 0.5, 1.0, 3.0])[:, None],
    "one of them zero": UNITS * torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])[:, None],
    "all zero": torch.zeros(3, 5),
    "full": torch.randn(4, 5, generator=torch.Generator().manual_seed(0)),
    "the last full": torch.cat([UNITS, torch.ones(1, 5)]),
}


def pulled(layer: nn.Module, cotangents: torch.Tensor) -> torch.Tensor:
    x = torch.ones(6, requires_grad=True)
    with picking_rows(layer):
        y = layer(x.clone())  # what counts operations does not take a leaf
    assert torch.equal(y, layer(x.clone()))
    return torch.vmap(lambda u: torch.autograd.grad(y, x, u, retain_graph=True)[0])(cotangents)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("cotangents", COTANGENTS.values(), ids=COTANGENTS)
def test_picked_rows_are_the_product_with_weights(kind, cotangents):
    layer = LAYERS[kind]().requires_grad_(False)
    W = layer.weight if kind == "Linear" else layer.weight.mT
    torch.testing.assert_close(pulled(layer, cotangents), cotangents @ W, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_nothing_is_multiplied_for_unit_vectors(kind):
    layer = LAYERS[kind]().requires_grad_(False)
    with FlopCounterMode(display=False) as evaluated:
        layer(torch.ones(6))
    with FlopCounterMode(display=False) as units:
        pulled(layer, UNITS)
    with FlopCounterMode(display=False) as full:
        pulled(layer, COTANGENTS["full"])
    # `pulled` evaluates the layer twice.
    assert units.get_total_flops() == 2 * evaluated.get_total_flops()
    assert full.get_total_flops() == units.get_total_flops() + 2 * 4 * 5 * 6


@pytest.mark.parametrize("columns", [2048, 2112, 2050])  # slabs of 256, of 64, and none
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 16, 60, 400])
def test_product_with_large_weights_matches_float64(columns, turned, count):
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(2100, columns, generator=generator)
    W = W.mT.contiguous().mT if turned else W
    rows = torch.randn(count, 2100, generator=generator)
    assert W.numel() >= rules._LARGE and W.is_contiguous() is not turned
    wanted = (rows.double() @ W.double()).float()
    torch.testing.assert_close(rules._multiply(rows, W), wanted, rtol=0, atol=2100**0.5 * 1e-5)


def test_rules_keep_weights_and_second_derivatives():
    first, second = (nn.Linear(4, 4).requires_grad_(False) for _ in range(2))
    before = first.weight.clone(), second.weight.clone()
    x = torch.ones(4, requires_grad=True)
    with picking_rows(block := nn.ModuleList([first, second])):
        y = block[0](x) + block[1](x)  # two gradients meet at x and are added up
    found = torch.vmap(lambda u: torch.autograd.grad(y, x, u)[0])(torch.eye(4))
    torch.testing.assert_close(found, before[0] + before[1])
    assert torch.equal(first.weight, before[0]) and torch.equal(second.weight, before[1])
    layer = nn.Linear(6, 5).double().requires_grad_(False)
    x, u = torch.ones(6, dtype=torch.float64, requires_grad=True), torch.zeros(5, dtype=torch.float64)
    with picking_rows(layer):
        y = layer(x)
    u.requires_grad_(True)
    (g,) = torch.autograd.grad(y, x, u, create_graph=True)
    v = torch.arange(6, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(g, u, v)[0], layer.weight @ v)
    block = nn.Sequential(nn.Linear(4, 4), ACT2FN["gelu_new"])
    point = torch.randn(4, requires_grad=True)
    with linearised(block):
        y = block(point)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(y, point, torch.ones(4))
    names = [event.name for event in profile.events()]
    assert names.count("aten::mul") == 1 and "aten::tanh_backward" not in names


class Adapted(nn.Linear):
    """Computes something else."""


def test_rules_apply_to_large_known_layers_only(monkeypatch):
    for rule, block, hooks in [
        (picking_rows, nn.Sequential(Adapted(3, 3), nn.Linear(3, 3), nn.LayerNorm(3)), [0, 1, 0]),
        (linearised, nn.Sequential(nn.PReLU(), nn.SiLU()), [0, 1]),
    ]:
        with rule(block):
            assert [len(module._forward_hooks) for module in block] == hooks
        assert not any(module._forward_hooks for module in block)
    monkeypatch.undo()
    block = nn.Sequential(nn.Linear(511, 512), nn.Linear(512, 512))
    with picking_rows(block):
        assert [len(module._forward_hooks) for module in block] == [0, 1]
    config = GPT2Config(n_embd=384, n_layer=1, n_head=6, vocab_size=64, n_positions=32)
    torch.manual_seed(0)
    model = cl.wrap_model(GPT2LMHeadModel(config), name="wide")
    trace, d, n = cl.trace(model, torch.arange(9)[None]), 384, 9
    with FlopCounterMode(display=False) as counter:
        cl.block_jacobians(trace, 0, [(8, 8)])
    weights, head = 12 * d**2, d // 6
    evaluated = weights + 2 * n * d + n * d * head
    # A cotangent meets two matrices of a head's width, for the queries and for the token's own keys.
    assert counter.get_total_flops() == 2 * evaluated + 2 * (weights - 4 * d**2 + 2 * d * head) * d


@pytest.mark.parametrize(
    "name", ["gelu", "gelu_new", "quick_gelu", "silu", "relu", "relu2", "tanh", "gelu_pytorch_tanh"]
)
def test_cotangents_are_pulled_back_as_by_autograd(name):
    block = nn.Sequential(nn.Linear(5, 7), ACT2FN[name], nn.Linear(7, 5)).double()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda x: block(x).sum(0), x)

    def rows(cotangents: torch.Tensor) -> torch.Tensor:
        point = x.clone().requires_grad_(True)
        with linearised(block):
            y = block(point)
        assert torch.equal(y, block(point))
        pull = torch.vmap(lambda u: torch.autograd.grad(y, point, u, retain_graph=True)[0])
        return pull(cotangents)

    found = rows(torch.eye(5, dtype=torch.float64)[:, None].expand(5, 3, 5))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
